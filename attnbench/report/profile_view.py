"""A profile on one terminal screen: where the time goes, and what is alive at the worst instant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text

from attnbench.answer.said import milliseconds, plain, short, size
from attnbench.answer.why_slower import watched
from attnbench.report.tables import FAINT, console

WIDEST = 120
"""Columns of the curve, at the most."""
FORWARD, BACKWARD = "cyan", "magenta"
COLORS = {"forward": FORWARD, "backward": BACKWARD}
NAME, BAR = 28, 14
"""Columns of an operator's name and of a bar."""
LEAST = 0.01
"""Of the phase: what takes less is counted with the others."""
MOST_ALONE, MOST_BESIDE = 8, 4
"""Operators a phase that are named, of one variant and of two side by side."""
SOURCES_ALONE, SOURCES_BESIDE = 6, 3
LINES = 4
BLOCKS = " ▁▂▃▄▅▆▇█"

Profile = Mapping[str, Any]


class Row(NamedTuple):
    """What took time in a phase: an operator, several, or what is none."""

    name: str
    seconds: float
    calls: float | None = None
    rate: float | None = None


def show(profiles: Sequence[Profile], why: Sequence[str]) -> None:
    """One variant, or two side by side with the reasons."""
    out = console(Console().width)  # a screen's, whether it is one or not
    names = " against ".join(p["variant"] for p in profiles)
    out.print(f"[bold]{escape(names)}[/]  {escape(profiles[0]['slug'])}")
    for sentence in why:
        out.print(escape(sentence))
    out.print()
    if len(profiles) == 1:
        _heads(out, profiles)
        _alone(out, profiles[0])
        _lines(out, profiles[0])
        _memory(out, profiles, rows=3, sources=SOURCES_ALONE)
    else:
        _beside(out, profiles)
        _heads(out, profiles)
        _memory(out, profiles, rows=2, sources=SOURCES_BESIDE)
    for profile in profiles:
        for caveat in profile["caveats"]:
            out.print(escape(f"! {profile['variant']}: {caveat}"), style=FAINT)


def _heads(out: Console, profiles: Sequence[Profile]) -> None:
    """The time of plain calls, and what the profiler added to it."""
    for p in profiles:
        name = f"{p['variant']} " * (len(profiles) > 1)
        timed = p["plain"]["total_s"]
        words = f"{name}unwatched {milliseconds(timed)}"
        if p["phases"] and p["phases"][0]["of"] == "operators":
            words += f", profiled {milliseconds(watched(p))} ({watched(p) / timed - 1:+.0%})"
        else:
            words += f", kernels {milliseconds(watched(p))}"
        if p["cost"]:
            words += f"; {rate(p['cost']['flop_rate'])} useful GFLOP/s"
        out.print(escape(words), style=FAINT if len(profiles) > 1 else None)
        if p["note"]:
            out.print(escape(p["note"]), style=FAINT)


def rows_of(phase: Mapping[str, Any], most: int) -> list[Row]:
    """An operator a row, then the others as one, then the time outside of all."""
    least = LEAST * max(phase["profiled_s"], 1e-12)
    large = [x for x in phase["operators"] if x["self_s"] >= least][:most]
    rows = [Row(x["name"], x["self_s"], x["calls"], x["flop_rate"]) for x in large]
    others = phase["operators"][len(large) :]
    if others:
        rows.append(
            Row(f"{len(others)} other{'s' * (len(others) > 1)}", sum(x["self_s"] for x in others))
        )
    if phase["of"] == "operators":
        rows.append(Row("outside operators", phase["outside_s"]))
    return rows


def _table(*columns: tuple[str, str]) -> Grid:
    grid = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name, justify in columns:
        side: Literal["left", "right"] = "right" if justify == "right" else "left"
        grid.add_column(escape(name), justify=side, no_wrap=True)
    return grid


def _alone(out: Console, profile: Profile) -> None:
    whole = sum(p["profiled_s"] for p in profile["phases"]) or 1.0
    of = profile["phases"][0]["of"] if profile["phases"] else "operators"
    grid = _table((of, ""), ("self ms", "right"), ("share", "right"), ("", ""), ("calls", "right"),
                  ("GFLOP/s", "right"))  # fmt: skip
    for phase in profile["phases"]:
        color = COLORS[phase["name"]]
        share = phase["profiled_s"] / whole
        grid.add_row(
            f"[bold {color}]{phase['name']}[/]", f"[bold]{_ms(phase['profiled_s'])}[/]",
            f"[bold]{share:.0%}[/]", _bar(phase["profiled_s"], whole, color),
        )  # fmt: skip
        for row in rows_of(phase, MOST_ALONE):
            calls = "" if row.calls is None else f"{row.calls:g}"
            rated = rate(row.rate) if row.calls is not None else ""
            grid.add_row(
                "  " + escape(short(plain(row.name), NAME)), _ms(row.seconds),
                f"{row.seconds / whole:.0%}", _bar(row.seconds, whole, color), calls, rated,
            )  # fmt: skip
    out.print(grid)
    out.print()


def _lines(out: Console, profile: Profile) -> None:
    """The lines of code that take the time, each with its gradient's."""
    timed = [x for x in profile["lines"] if x["forward_share"] is not None]
    if not timed:
        return
    out.print("[bold]by line of code[/], each with its gradient")
    grid = _wide()
    for line in timed[:LINES]:
        share = line["forward_share"] + line["backward_share"]
        words = Text(f"{line['place']}  ", style="bold")
        words.append(line["code"], style=f"{FAINT} not bold")
        grid.add_row(f"{share:.0%}", _bar(share, 1.0, "default"), words)
    out.print(grid)
    out.print()


def _beside(out: Console, profiles: Sequence[Profile]) -> None:
    """Both on one scale: that of the slower."""
    whole = max(sum(p["profiled_s"] for p in x["phases"]) for x in profiles) or 1.0
    grid = _table(("self time, one scale", ""))
    for profile in profiles:
        grid.add_column("ms", justify="right", no_wrap=True)
        grid.add_column(escape(short(profile["variant"], BAR)), no_wrap=True)
    for name in dict.fromkeys(p["name"] for x in profiles for p in x["phases"]):
        color = COLORS[name]
        phases = [next((p for p in x["phases"] if p["name"] == name), None) for x in profiles]
        cells: list[RenderableType] = [f"[bold {color}]{name}[/]"]
        for p in phases:
            cells += [f"[bold]{_ms(p['profiled_s'])}[/]", _bar(p["profiled_s"], whole, color)] \
                if p else ["–", ""]  # fmt: skip
        grid.add_row(*cells)
        for label, seconds in _merged([p for p in phases if p is not None]):
            cells = ["  " + escape(short(plain(label), NAME))]
            for s in seconds:
                cells += [f"[{FAINT}]–[/]", ""] if s is None else [_ms(s), _bar(s, whole, color)]
            grid.add_row(*cells)
    out.print(grid)


def _merged(phases: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[float | None]]]:
    """Operators by the longest time in either, then the rest of each; None: it never runs it."""
    spent = [{x["name"]: x["self_s"] for x in p["operators"]} for p in phases]
    least = LEAST * max((p["profiled_s"] for p in phases), default=0.0)
    ranked = sorted({n for s in spent for n in s}, key=lambda n: -max(s.get(n, 0) for s in spent))
    shown = [n for n in ranked if max(s.get(n, 0) for s in spent) >= least][:MOST_BESIDE]
    for name in shown:
        yield name, [s.get(name) for s in spent]
    rest: list[float | None] = [
        sum(t for n, t in s.items() if n not in shown) + p["outside_s"]
        for s, p in zip(spent, phases, strict=True)
    ]
    yield "all else", rest


def _memory(out: Console, profiles: Sequence[Profile], *, rows: int, sources: int) -> None:
    """What is alive over time as a curve, of two on one scale, and at the peak by line of code."""
    top = max((p["memory"]["peak_bytes"] for p in profiles), default=0) or 1
    end = max(p["memory"]["end_ms"] for p in profiles)
    for p in profiles:
        m = p["memory"]
        name = f"{p['variant']}: " * (len(profiles) > 1)
        kept = "" if m["turn_bytes"] is None else f"; {size(m['turn_bytes'])} between the phases"
        where = f", in {m['peak_phase']}" * (m["turn_ms"] is not None)
        head = f"[bold]{escape(name)}peak {size(m['peak_bytes'])}[/] above the inputs{where}{kept}"
        out.print(head)
        width = min(out.width, WIDEST)
        for line in curve(m, width, rows, top, end):
            out.print(line)
        grid = _wide()
        for source in _at_peak(m)[:sources]:
            grid.add_row(size(source["peak_bytes"]), _bar(source["peak_bytes"], top,
                         BACKWARD if source["backward"] else FORWARD), _source(source))  # fmt: skip
        out.print(grid)


def _wide() -> Grid:
    """A number, a bar, and as many words as there is room for."""
    grid = Grid.grid(padding=(0, 1, 0, 0), expand=True)
    grid.add_column(width=8, justify="right", no_wrap=True)
    grid.add_column(width=BAR, no_wrap=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    return grid


def _at_peak(memory: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    there = [s for s in memory["sources"] if s["peak_bytes"] > LEAST * memory["peak_bytes"]]
    return sorted(there, key=lambda s: (not s["place"], -s["peak_bytes"]))


def _source(source: Mapping[str, Any]) -> Text:
    """``einsum.py:22 gradient of: …``"""
    made = short(plain(source["operator"]), NAME) or "Python"
    words = Text(f"{source['place'] or '–'} ", style="bold")
    words.append(f"{made}{' in its gradient' * source['backward']}  ", style="default not bold")
    words.append(source["code"], style=f"{FAINT} not bold")
    return words


def curve(memory: Mapping[str, Any], width: int, rows: int, top: float, end: float) -> list[Text]:
    """Bytes alive over time, drawn with blocks ``rows`` high; the second phase in its color.

    The whole height is ``top`` bytes, the whole width ``end`` ms.
    """
    end = max(end, 1e-9)
    levels = [0.0] * width
    held, column = 0.0, 0
    moments = [*zip(memory["at_ms"], memory["alive"], strict=True), (memory["end_ms"], None)]
    for at, alive in moments:
        here = min(width - 1, max(0, int(at / end * width)))
        for number in range(column, here + 1):
            levels[number] = max(levels[number], held)
        column, held = here, float(sum(alive)) if alive is not None else held
        levels[here] = max(levels[here], held if alive is not None else 0.0)
    turn = memory["turn_ms"]
    split = width if turn is None else int(turn / end * width)
    steps = [max(level > 0, round(level / top * rows * 8)) for level in levels]
    lines = []
    for row in reversed(range(min(rows, max(1, -(-max(steps) // 8))))):
        text = "".join(BLOCKS[max(0, min(8, step - 8 * row))] for step in steps)
        line = Text(text[:split], style=FORWARD, no_wrap=True)
        line.append(text[split:], style=BACKWARD)
        lines.append(line)
    return lines


def _bar(value: float, whole: float, color: str) -> Bar:
    return Bar(whole, 0, value, width=BAR, color=color)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds < 0.01 else f"{seconds * 1e3:.1f}"


def rate(flops: float | None) -> str:
    """In GFLOP/s; a dash where the work is not known."""
    return "–" if flops is None else f"{flops / 1e9:.3g}"
