"""The longest that each variant takes in a budget: a table a phase."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.markup import escape
from rich.table import Table as Grid

from attnbench.core.format import size, time_taken
from attnbench.report.figures.sheet import save
from attnbench.report.tables import BAD, GOOD, console, grid, put
from attnbench.report.tables import FAINT as FAINT_limits_view

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Row = Mapping[str, Any]
OTHER = "*"
"""Behind the names of what is not softmax attention."""
ABOUT = "≈ "
"""Before what was not run."""
WORDS = {"memory": "memory", "time": "time", "": "–"}


def show(rows: Sequence[Row], budget: Mapping[str, Any], by: str) -> None:
    """``limits``: for each phase and mask the variants, the longest first."""
    out = console()
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["phase"], row["mask"]), []).append(row)
    for (phase, mask), some in groups.items():
        out.print(f"\n[bold]{escape(f'{phase} · mask {mask}')}[/]")
        put(_grid(some, budget, by))
    out.print()
    for line in (*_amiss(rows), *_foot(rows, budget, by)):
        out.print(escape(line), style=FAINT_limits_view)


def _grid(rows: Sequence[Row], budget: Mapping[str, Any], by: str) -> Grid:
    longest = "longest that held" if by == "seq" else "largest batch that held"
    memory = f"{size(budget['peak_bytes'])} alone, predicted"
    right = (longest, "time there", "peak there", memory)
    made = grid(
        "variant",
        longest,
        "limited by",
        "time there",
        "peak there",
        "does not hold at",
        memory,
        right=right,
        words=["does not hold at"],
    )
    for row in rows:
        held = row["held"]
        name = escape(row["variant"] + OTHER * (row["computes"] != "softmax"))
        if held is None:
            made.add_row(name, "none", _by(row), "", "", escape(_not_held(row)), _memory(row))
            continue
        made.add_row(
            name,
            f"[{GOOD}]{held['size']:,}[/]",
            _by(row),
            time_taken(held["time_s"]),
            size(held["peak_bytes"]),
            escape(_not_held(row)),
            _memory(row),
        )
    return made


def _by(row: Row) -> str:
    why = row["limited_by"]
    if why in WORDS:
        return f"{WORDS[why]}{'' if row['fails'] else ' ≈' * bool(why)}"
    return f"[{BAD}]{escape(why.replace('_', ' '))}[/]"


def _not_held(row: Row) -> str:
    """The shortest that does not hold; what was not run is said so."""
    fails = row["fails"]
    if fails is None:
        known = {what: at for what, at in row["predicted"].items() if at is not None}
        if row["held"] is None or not row["limited_by"]:
            return row["why"] or "nothing: the search ends there"
        what = row["limited_by"]
        return f"{ABOUT}above {known[what]:,} ({what}, predicted)"
    if row["held"] is None and fails["why"] not in ("memory", "time"):
        return f"{fails['size']:,}: {fails['reason']}"
    figure = ""
    if fails["why"] == "memory" and fails["peak_bytes"]:
        figure = size(fails["peak_bytes"])
    elif fails["why"] == "time":
        figure = time_taken(fails["time_s"]) if fails["time_s"] else fails["reason"]
    words = [word for word in (figure, "predicted" * (not fails["ran"])) if word]
    return f"{fails['size']:,}" + f" ({', '.join(words)})" * bool(words)


def _memory(row: Row) -> str:
    at = row["predicted"].get("memory")
    return "" if at is None else f"{ABOUT}{at:,}"


def _amiss(rows: Sequence[Row]) -> list[str]:
    """What failed otherwise than by a budget, and what the meters had to say."""
    lines = []
    for row in rows:
        fails, name = row["fails"], f"{row['variant']} {row['phase']}"
        if fails is not None and fails["why"] not in ("memory", "time"):
            lines.append(f"! {name} at {fails['size']:,}: {fails['why']}: {fails['reason']}")
    flags: dict[str, list[str]] = {}
    for row in rows:
        for flag in ((row["held"] or {}).get("probe") or {}).get("flags", ()):
            kind = re.sub(r"\d+", "…", flag)
            flags.setdefault(kind, []).append(f"{row['variant']} {row['phase']}")
    return lines + [f"! {flag}: {', '.join(names)}" for flag, names in flags.items()]


def _foot(rows: Sequence[Row], budget: Mapping[str, Any], by: str) -> list[str]:
    step = "multiples of 64, brackets of a sixteenth" if by == "seq" else "brackets of a sixteenth"
    lines = [
        f"budget: {size(budget['peak_bytes'])} and {time_taken(budget['seconds'])} a call; "
        f"{step}; what held was run there, and right",
        "peak: bytes live above the inputs at the worst instant, output included; time: the median "
        "of a few calls",
        f"{ABOUT.strip()} predicted, not run: by the row's formula where it was exact, else as it "
        "grew",
    ]
    if any(row["computes"] != "softmax" for row in rows):
        lines.append(f"{OTHER} not softmax attention")
    return lines


INK, PAPER, GRID, FAINT = "#222222", "#ffffff", "#dddddd", "#777777"
ROW, HEAD, PANEL = 0.25, 1.9, 5.0
"""Inches: of a variant, of what stands above and below, of a panel's width."""
THICK = 0.68
ROOM = 6.0
"""The longest bar is so many times as long as the axis begins before the shortest."""


class ReasonLook(NamedTuple):
    """How a reason is drawn: by colour and by hatch, so that either will do."""

    words: str
    color: str
    hatch: str


LOOKS = {
    "time": ReasonLook("held back by time", "#6ba8de", ""),
    "memory": ReasonLook("held back by memory", "#f2b64a", "////"),
    "": ReasonLook("the search ended there", "#b9b9b9", ""),
}
ELSE = ReasonLook("wrong, crashed or refused beyond", "#d8705f", "xxxx")


def draw(
    rows: Sequence[Row], budget: Mapping[str, Any], by: str, title: str, files: Sequence[Path]
) -> bool:
    """Draw the bars; False where nothing held anywhere."""
    if not any(row["held"] for row in rows):
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    groups = list(dict.fromkeys((row["phase"], row["mask"]) for row in rows))
    names = _names(rows)
    settings: dict[Any, Any] = {
        "font.size": 9,
        "svg.fonttype": "none",
        "svg.hashsalt": "attnbench",
        "hatch.linewidth": 0.6,
        "text.color": INK,
        "axes.edgecolor": GRID,
        "axes.labelcolor": INK,
    }
    with mpl.rc_context(settings):
        figure, grid = plt.subplots(
            1,
            len(groups),
            figsize=(PANEL * len(groups) + 1.6, ROW * len(names) + HEAD),
            squeeze=False,
            sharey=True,
            sharex=True,
            layout="constrained",
            facecolor=PAPER,
        )
        words = (
            f"{size(budget['peak_bytes'])} above the inputs, {time_taken(budget['seconds'])} a call"
        )
        figure.suptitle(f"{title}\n{words}", fontsize=11, x=0.02, ha="left")
        start, end = _start(rows), _end(rows)
        for axes, group in zip(grid[0], groups, strict=True):
            some = {row["variant"]: row for row in rows if (row["phase"], row["mask"]) == group}
            axes.set_title(f"{group[0]} · mask {group[1]}", loc="left", fontsize=10)
            _panel(axes, some, names, start)
            axes.set_xlim(start, end)
            axes.set_xlabel("sequence length" if by == "seq" else "batch")
        _names_beside(grid[0][0], names, rows)
        _legend(figure, rows, budget)
        for file in files:
            date = {"Date": None} if file.suffix == ".svg" else None
            save(figure, file, dpi=130, metadata=date)
        plt.close(figure)
    return True


def _names(rows: Sequence[Row]) -> list[str]:
    """The variants, whoever gets furthest in the first panel on top."""
    first = (rows[0]["phase"], rows[0]["mask"])
    best: dict[str, tuple[int, int]] = {}
    for row in rows:
        held = row["held"]["size"] if row["held"] else 0
        here = (held if (row["phase"], row["mask"]) == first else 0, held)
        best[row["variant"]] = max(best.get(row["variant"], (0, 0)), here)
    return sorted(best, key=lambda name: best[name], reverse=True)


def _start(rows: Sequence[Row]) -> float:
    """Where the bars begin: so that the shortest is as wide as its number."""
    return float(min(row["held"]["size"] for row in rows if row["held"]) / ROOM)


def _panel(axes: Axes, rows: Mapping[str, Row], names: Sequence[str], start: float) -> None:
    for at, name in enumerate(names):
        row = rows.get(name)
        if row is None:
            _say(axes, start, at, "not asked")
        elif not row["held"]:
            _say(axes, start, at, _why(row))
        else:
            _bar(axes, row, at, start)
    axes.set_xscale("log", base=2)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    axes.minorticks_off()
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(color=GRID, left=False, labelcolor=INK)


def _bar(axes: Axes, row: Row, at: int, start: float) -> None:
    """What held in full colour, pale what is in doubt, and a tick where it does not hold."""
    held, fails, look = row["held"]["size"], row["fails"], LOOKS.get(row["limited_by"], ELSE)
    ink: dict[str, Any] = {"edgecolor": PAPER, "linewidth": 0.0, "height": THICK, "zorder": 2}
    axes.barh(at, held - start, left=start, color=look.color, hatch=look.hatch, **ink)
    axes.annotate(
        f"{held:,}",
        (held, at),
        xytext=(-4, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=7,
        color=INK,
        zorder=4,
        bbox={"boxstyle": "round,pad=0.15", "facecolor": look.color, "linewidth": 0},
    )
    if fails is not None:
        axes.barh(at, fails["size"] - held, left=held, color=look.color, alpha=0.35, **ink)
        axes.plot(
            [fails["size"]] * 2,
            [at - THICK / 2, at + THICK / 2],
            color=INK,
            linewidth=1.3,
            linestyle="-" if fails["ran"] else (0, (1, 1)),
            zorder=3,
        )
    memory = row["predicted"].get("memory")
    if memory is not None and row["limited_by"] != "memory":
        axes.plot(
            [memory],
            [at],
            marker="D",
            markersize=4,
            markerfacecolor=PAPER,
            markeredgecolor=FAINT,
            markeredgewidth=0.9,
            linestyle="",
            zorder=3,
        )


def _say(axes: Axes, start: float, at: int, text: str) -> None:
    axes.annotate(
        text,
        (start, at),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
        color=FAINT,
    )


def _why(row: Row) -> str:
    """Why there is no bar, in a few words."""
    text = str(row["why"]).split(": ")[0]
    return text if len(text) <= 40 else text[:39] + "…"


def _end(rows: Sequence[Row]) -> float:
    """Right of everything that is drawn."""
    found = [row for row in rows if row["held"]]
    ends = [float((row["fails"] or row["held"])["size"]) for row in found]
    return 1.5 * max(ends + [float(row["predicted"].get("memory") or 0) for row in found])


def _short(value: float) -> str:
    """``512``, ``64 Ki``: the powers of two of an axis."""
    for unit, many in (("Mi", 2**20), ("Ki", 2**10)):
        if value >= many:
            return f"{value / many:g} {unit}"
    return f"{value:g}"


def _names_beside(axes: Axes, names: Sequence[str], rows: Sequence[Row]) -> None:
    others = {row["variant"] for row in rows if row["computes"] != "softmax"}
    axes.set_yticks(range(len(names)), [name + OTHER * (name in others) for name in names])


def _legend(figure: Figure, rows: Sequence[Row], budget: Mapping[str, Any]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    held = [row for row in rows if row["held"]]
    looks = dict.fromkeys(LOOKS.get(row["limited_by"], ELSE) for row in held)
    shown: list[Any] = [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor=PAPER, label=look.words)
        for look in looks
    ]
    ticks = {row["fails"]["ran"] for row in held if row["fails"]}
    if True in ticks:
        shown.append(
            Line2D(
                [],
                [],
                color=INK,
                marker="|",
                markersize=9,
                linestyle="",
                markeredgewidth=1.3,
                label="run there, and did not hold",
            )
        )
    if False in ticks:
        shown.append(
            Line2D(
                [],
                [],
                color=INK,
                linestyle=(0, (1, 1)),
                linewidth=1.3,
                label="its exact formula rules that out",
            )
        )
    if any(row["predicted"].get("memory") and row["limited_by"] != "memory" for row in held):
        shown.append(
            Line2D(
                [],
                [],
                color=FAINT,
                marker="D",
                markersize=4,
                linestyle="",
                markerfacecolor=PAPER,
                label=f"{size(budget['peak_bytes'])} alone, predicted",
            )
        )
    if any(row["computes"] != "softmax" for row in rows):
        shown.append(Line2D([], [], linestyle="", label=f"{OTHER} not softmax attention"))
    figure.legend(handles=shown, loc="outside lower left", ncols=3, frameon=False, fontsize=8)
