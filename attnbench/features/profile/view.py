"""A profile on one terminal screen, and the picture of what is alive over a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text

from attnbench.core.format import (
    NONE,
    duration,
    flop_rate,
    ms,
    percent,
    plain,
    short,
    size,
    unit_of_rates,
)
from attnbench.features.profile.why_slower import watched
from attnbench.report import tidy
from attnbench.report.figures.sheet import HUES, INK, PAPER, save, sheet
from attnbench.report.tables import FAINT, console

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDEST = 120  # columns of the curve, or of numbers, at the most
COLORS = {"forward": "cyan", "backward": "magenta"}
NAME, BAR = 28, 14  # columns of an operator's name and of a bar
LEAST = 0.01  # of the phase: what takes less is counted with the others
MOST_ALONE, MOST_BESIDE = 8, 4
"""Operators a phase that are named, of one variant and of two side by side."""
LINES = 4
BLOCKS = " ▁▂▃▄▅▆▇█"

Profile = Mapping[str, Any]


ProfileRow = tuple[str, float, float | None, float | None]
"""What took time in a phase, an operator, or several, or the time outside all: its name, seconds,
calls, and FLOP/s."""


def show(profiles: Sequence[Profile], why: Sequence[str]) -> None:
    """One variant, or two side by side with the reasons."""
    out, alone = console(Console().width), len(profiles) == 1  # as wide as a screen, if it is none
    names = " against ".join(p["variant"] for p in profiles)
    out.print(f"[bold]{escape(names)}[/]  {escape(profiles[0]['slug'])}")
    for sentence in why:
        out.print(escape(sentence))
    out.print()
    if alone:
        _heads(out, profiles)
        _uncut(out, _alone(profiles[0]))
        out.print()
        timed = [x for x in profiles[0]["lines"] if x["forward_share"] is not None]
        if timed:
            out.print("[bold]by line of code[/], each with its gradient")
        grid = _wide()
        for line in timed[:LINES]:
            part = line["forward_share"] + line["backward_share"]
            text = Text(f"{line['place']}  ", style="bold")
            text.append(line["code"], style=f"{FAINT} not bold")
            grid.add_row(percent(part), _bar(part, 1.0, "default"), text)
        if timed:
            out.print(grid, end="\n\n")
        _memory(out, profiles, rows=3, sources=6)
    else:
        _uncut(out, _beside(profiles))
        _heads(out, profiles)
        _memory(out, profiles, rows=2, sources=3)
    for profile in profiles:
        for caveat in profile["caveats"]:
            out.print(escape(f"! {profile['variant']}: {caveat}"), style=FAINT)


def _uncut(out: Console, grid: Grid) -> None:
    """Print a table of numbers as wide as these are."""
    width = out.measure(grid, options=out.options.update(width=WIDEST)).maximum
    console(max(out.width, width)).print(grid)


def csv_rows(profiles: Sequence[Profile]) -> Iterator[tidy.Row]:
    """A row for what takes time: an operator, a kernel, the time outside all; and a row for what is
    alive at the peak of memory: what an operator allocated in a line of code.
    """
    for p in profiles:
        about = {name: p[name] for name in ("variant", "computes")} | tidy.of_problem(p["problem"])
        nothing = dict.fromkeys(("ms", "calls", "gflop_per_s", "mib"))
        for phase in p["phases"]:
            kind = phase["of"].removesuffix("s")
            rows = [(kind, each) for each in phase["operators"]]
            if kind == "operator":
                rows.append((f"outside {kind}s", {"self_s": phase["outside_s"]}))
            for what, each in rows:
                where = {"part": phase["name"], "what": what, "name": plain(each.get("name", ""))}
                rate, took = each.get("flop_rate"), {"ms": 1e3 * each["self_s"]}
                took |= {"calls": each.get("calls"), "gflop_per_s": rate and 1e-9 * rate}
                yield {**about, **where, "place": "", "code": "", **nothing, **took}
        for source in p["memory"]["sources"]:
            where = {"part": "backward" if source["backward"] else "forward", "what": "allocation"}
            where |= {"name": plain(source["operator"]), "place": source["place"]}
            held = {"mib": source["peak_bytes"] / MIB}
            yield {**about, **where, "code": source["code"], **nothing, **held}


def _heads(out: Console, profiles: Sequence[Profile]) -> None:
    for p in profiles:
        timed, traced = p["plain"]["total_s"], watched(p)
        text = f"{p['variant']} " * (len(profiles) > 1) + f"unwatched {duration(timed)}"
        if p["phases"] and p["phases"][0]["of"] == "operators":
            text += f", profiled {duration(traced)} ({percent(traced / timed - 1, '+')})"
        else:
            text += f", kernels {duration(traced)}"
        if p["cost"]:
            text += f"; {flop_rate(p['cost']['flop_rate'])} useful"
        out.print(escape(text), style=FAINT if len(profiles) > 1 else None)
        if p["note"]:
            out.print(escape(p["note"]), style=FAINT)


def rows_of(phase: Mapping[str, Any], most: int) -> list[ProfileRow]:
    """An operator a row, then the others as one, then the time outside all."""
    least = LEAST * max(phase["profiled_s"], 1e-12)
    large = [x for x in phase["operators"] if x["self_s"] >= least][:most]
    rows: list[ProfileRow] = [(x["name"], x["self_s"], x["calls"], x["flop_rate"]) for x in large]
    if others := phase["operators"][len(large) :]:
        name = "1 other" if len(others) == 1 else f"{len(others)} others"
        rows.append((name, sum(x["self_s"] for x in others), None, None))
    if phase["of"] == "operators":
        rows.append(("outside operators", phase["outside_s"], None, None))
    return rows


def _table(*columns: str) -> Grid:
    """A table of names and numbers; a column without a name is for bars."""
    grid = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for number, name in enumerate(columns):
        left = number == 0 or not name or name[0] == "<"
        grid.add_column(
            escape(name.removeprefix("<")), justify="left" if left else "right", no_wrap=True
        )
    return grid


def _alone(profile: Profile) -> Grid:
    whole = sum(p["profiled_s"] for p in profile["phases"]) or 1.0
    of = profile["phases"][0]["of"] if profile["phases"] else "operators"
    rates = [r for p in profile["phases"] for *_, r in rows_of(p, MOST_ALONE) if r]
    unit, named = unit_of_rates(max(rates, default=0.0))
    grid = _table(of, "self ms", "share", "", "calls", named)
    for phase in profile["phases"]:
        color, seconds = COLORS[phase["name"]], phase["profiled_s"]
        head = (f"[{color}]{phase['name']}[/]", ms(seconds), percent(seconds / whole))
        grid.add_row(*(f"[bold]{text}[/]" for text in head), _bar(seconds, whole, color))
        for name, seconds, calls, flops in rows_of(phase, MOST_ALONE):
            rate = f"{flops / unit:.3g}" if flops else NONE
            known = [] if calls is None else [f"{calls:g}", rate]
            bar = _bar(seconds, whole, color)
            grid.add_row(_indented(name), ms(seconds), percent(seconds / whole), bar, *known)
    return grid


def _beside(profiles: Sequence[Profile]) -> Grid:
    """Both on one scale: that of the slower."""
    whole = max(sum(p["profiled_s"] for p in x["phases"]) for x in profiles) or 1.0
    columns = [c for p in profiles for c in ("ms", "<" + short(p["variant"], BAR))]
    grid = _table("self time, one scale", *columns)

    def add(name: str, seconds: Sequence[float | None], color: str, style: str = "default") -> None:
        cells: list[RenderableType] = [name]
        for s in seconds:
            known = s is not None
            cells += [f"[{style if known else FAINT}]{ms(s)}[/]"]
            cells += [_bar(s, whole, color) if s is not None else ""]
        grid.add_row(*cells)

    for name in dict.fromkeys(p["name"] for x in profiles for p in x["phases"]):
        color = COLORS[name]
        phases = [next((p for p in x["phases"] if p["name"] == name), None) for x in profiles]
        times = [p and p["profiled_s"] for p in phases]
        add(f"[bold {color}]{name}[/]", times, color, "bold")
        for operator, seconds in _merged([p for p in phases if p is not None]):
            add(_indented(operator), seconds, color)
    return grid


def _merged(phases: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[float | None]]]:
    """Operators by the longest time in either, then the rest of each; None where it never runs."""
    spent = [{x["name"]: x["self_s"] for x in p["operators"]} for p in phases]
    longest = {n: max(s.get(n, 0) for s in spent) for each in spent for n in each}
    least = LEAST * max((p["profiled_s"] for p in phases), default=0.0)
    ranked = sorted(longest, key=lambda n: -longest[n])
    shown = [n for n in ranked if longest[n] >= least][:MOST_BESIDE]
    for name in shown:
        yield name, [s.get(name) for s in spent]
    rest = zip(spent, phases, strict=True)
    yield "all else", [sum(s[n] for n in s if n not in shown) + p["outside_s"] for s, p in rest]


def _memory(out: Console, profiles: Sequence[Profile], *, rows: int, sources: int) -> None:
    """What is alive over time as a curve, of two on one scale, and at the peak by line of code."""
    top = max((p["memory"]["peak_bytes"] for p in profiles), default=0) or 1
    end = max(p["memory"]["end_ms"] for p in profiles)
    for p in profiles:
        m = p["memory"]
        head = f"[bold]{escape(p['variant'])}: [/]" if len(profiles) > 1 else ""
        head += f"[bold]peak {size(m['peak_bytes'])}[/] above the inputs"
        if m["turn_ms"] is not None:
            head += f", in {m['peak_phase']}"
        if m["turn_bytes"] is not None:
            head += f"; {size(m['turn_bytes'])} between the phases"
        out.print(head)
        for line in curve(m, min(out.width, WIDEST), rows, top, end):
            out.print(line)
        grid = _wide()
        there = [s for s in m["sources"] if s["peak_bytes"] > LEAST * m["peak_bytes"]]
        for s in sorted(there, key=lambda s: (not s["place"], -s["peak_bytes"]))[:sources]:
            operator = short(plain(s["operator"]), NAME) or "Python"
            text = Text(f"{s['place'] or NONE} ", style="bold")  # einsum.py:22 bmm  torch.einsum(…
            text.append(operator + " in its gradient" * s["backward"], style="default not bold")
            text.append(f"  {s['code']}", style=f"{FAINT} not bold")
            color = COLORS["backward" if s["backward"] else "forward"]
            grid.add_row(size(s["peak_bytes"]), _bar(s["peak_bytes"], top, color), text)
        out.print(grid)


def _wide() -> Grid:
    """A number, a bar, and text."""
    grid = Grid.grid(padding=(0, 1, 0, 0), expand=True)
    grid.add_column(width=8, justify="right", no_wrap=True)
    grid.add_column(width=BAR, no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    return grid


def curve(memory: Mapping[str, Any], width: int, rows: int, top: float, end: float) -> list[Text]:
    """Bytes alive over time, drawn with blocks, ``rows`` high; backward in its own color.

    The whole height is ``top`` bytes, the whole width ``end`` ms.
    """
    end, turn = max(end, 1e-9), memory["turn_ms"]
    held = [0.0, *(float(sum(row)) for row in memory["alive"])]
    ends = np.array([*memory["at_ms"], memory["end_ms"]])  # of each of them
    columns = np.clip(ends / end * width, 0, width - 1).astype(int)
    levels = np.zeros(width)
    for bytes_, first, last in zip(held, [0, *columns[:-1]], columns, strict=True):
        levels[first : last + 1] = np.maximum(levels[first : last + 1], bytes_)
    split = width if turn is None else int(turn / end * width)
    steps = [max(int(level > 0), round(level / top * rows * 8)) for level in levels]
    lines = []
    for row in reversed(range(min(rows, max(1, -(-max(steps) // 8))))):
        text = "".join(BLOCKS[max(0, min(8, step - 8 * row))] for step in steps)
        line = Text(text[:split], style=COLORS["forward"], no_wrap=True)
        lines.append(line.append(text[split:], style=COLORS["backward"]))
    return lines


def _indented(name: str) -> str:
    return "  " + escape(short(plain(name), NAME))


def _bar(value: float, whole: float, color: str) -> Bar:
    return Bar(whole, 0, value, width=BAR, color=color)


MIB = 2**20
GRADIENT, AGAIN = "////", ".."
"""Hatches: of what the gradients allocate, and of a color that is used for the second time."""
LEAST_BAND = 0.005  # of the peak: a source that never held more gets no band
CODE, OPERATOR = 46, 23
"""Characters of a line of code, and of an operator's name, that the key has room for."""
WIDE, HIGH, LINE = 7.6, 4.2, 0.19
"""Inches: a panel's width, its height, and that of a line of the key."""
LEAST_KEYS = 6


def draw(profiles: Sequence[Profile], files: Sequence[Path]) -> None:
    """Write one variant's memory, or two side by side on one scale of bytes and one of time, to
    each of the files; raises :class:`CantBeDone` where one can't be written.
    """
    bands = [_bands(p["memory"]) for p in profiles]
    keys = max(LEAST_KEYS, 1 + max(map(len, bands)))
    heights = HIGH, LINE * keys
    inches = WIDE * len(profiles), sum(heights)
    with sheet(*inches, "constrained", hatch=PAPER) as figure:
        panels = figure.subplots(2, len(profiles), squeeze=False, height_ratios=heights)
        names = " against ".join(p["variant"] for p in profiles)
        title = f"{names}: memory above the inputs over one call\n{profiles[0]['slug']}"
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
        top = max((p["memory"]["peak_bytes"] for p in profiles), default=0) or 1
        end = max(1e-6, *(p["memory"]["end_ms"] for p in profiles))
        panels[0][0].set_ylabel("alive, MiB")
        for axes, key, profile, of_it in zip(*panels, profiles, bands, strict=True):
            axes.set(xlim=(0, end), ylim=(0, 1.15 * top / MIB))
            _panel(axes, profile, of_it, end)
            _key(key, of_it, keys)
        save(figure, files)


Band = tuple[int, Mapping[str, Any], dict[str, Any]]
"""A source's place in the picture: its number, the source, and how it looks."""


def _bands(memory: Mapping[str, Any]) -> list[Band]:
    """From the bottom up, each of another color or hatch.

    Their order is that of the first instant at which each is alive: what stays lies at the bottom.
    """
    first, sources, colors = {}, memory["sources"], [*HUES.values()]
    for number, source in enumerate(sources):
        if source["most_bytes"] > LEAST_BAND * memory["peak_bytes"]:
            first[number] = next(i for i, row in enumerate(memory["alive"]) if row[number])
    bands = list[Band]()
    for turn, number in enumerate(sorted(first, key=lambda number: (first[number], number))):
        hatch = GRADIENT * sources[number]["backward"] + AGAIN * (turn // len(colors))
        look = {"facecolor": colors[turn % len(colors)], "edgecolor": PAPER, "linewidth": 0.6}
        bands.append((number, sources[number], {**look, "hatch": hatch or None}))
    return bands


def _panel(axes: Axes, profile: Profile, bands: Sequence[Band], end: float) -> None:
    memory = profile["memory"]
    at = [0.0, *memory["at_ms"], memory["end_ms"]]
    below = [0.0] * len(at)
    for number, _, look in bands:
        values = [row[number] / MIB for row in memory["alive"]]
        above = [b + v for b, v in zip(below, [0.0, *values, *values[-1:]], strict=True)]
        axes.fill_between(at, below, above, step="post", **look)
        below = above
    turn, peak = memory["turn_ms"], memory["peak_bytes"]
    title = f"{profile['variant']}: peak {size(peak)}"
    if memory["turn_bytes"] is not None:
        title += f", {size(memory['turn_bytes'])} between forward and backward"
    if turn:
        title += "\nstriped: allocated by the gradient of that line"
    axes.set_title("\n".join([title, *profile["caveats"]]), loc="left")
    axes.set_xlabel("ms, with every allocation noted")
    axes.grid(visible=False, axis="x")
    if turn is not None:
        axes.axvline(turn, color=INK, linewidth=0.8, linestyle="--")
        where = axes.get_xaxis_transform()
        axes.text(turn, 0.995, " backward", transform=where, fontsize=8, va="top")
    late = memory["peak_ms"] > end / 2
    axes.plot([memory["peak_ms"]], [peak / MIB], "v", color=INK, markersize=5)
    side: dict[str, Any] = {"ha": "right" if late else "left", "fontsize": 8}
    offset: dict[str, Any] = {"xytext": (-6 if late else 6, 3), "textcoords": "offset points"}
    axes.annotate(f"peak {size(peak)}", (memory["peak_ms"], peak / MIB), **offset, **side)


def _key(axes: Axes, bands: Sequence[Band], lines: int) -> None:
    """A line for each band, in the order in which they lie on each other:
    ``32 MiB  einsum.py:22  bmm  torch.einsum(…``
    """
    from matplotlib.patches import Rectangle

    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(-lines, 0))
    look: dict[str, Any] = {"va": "center", "fontsize": 7, "family": "DejaVu Sans Mono"}
    for line, (_, source, band) in enumerate(reversed(bands), 1):
        axes.add_patch(Rectangle((0, -line + 0.15), 0.03, 0.7, **band))
        operator = short(plain(source["operator"]), OPERATOR) + " in gradient" * source["backward"]
        place, code = source["place"] or NONE, source["code"]
        code = code if len(code) <= CODE else code[: CODE - 1] + "…"
        text = f"{size(source['most_bytes']):>8}  {place:<17} {operator:<35} {code}"
        axes.text(0.04, -line + 0.5, text.rstrip(), clip_on=True, **look)
