"""The longest that each variant takes in a budget: a table a phase and mask, and a picture."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.markup import escape

from attnbench.core.format import size, time_taken
from attnbench.report.figures.sheet import save
from attnbench.report.tables import BAD, GOOD, Styled, Table, columns, console
from attnbench.report.tables import FAINT as FAINT_TEXT
from attnbench.report.tables import show as show_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
OTHER = "*"
"""Behind the names of what is not softmax attention."""
ABOUT = "≈ "
"""Before what was not run."""
BUDGETS = ("memory", "time")


def show(rows: Sequence[Row], budget: Mapping[str, Any], by: str) -> None:
    """Print a table for each phase and mask, the longest first, and the notes below."""
    for (phase, mask), group in _groups(rows).items():
        show_table(_table(f"{phase} · mask {mask}", group, budget, by))
    out = console()
    out.print()
    for line in (*_warnings(rows), *_notes(rows, budget, by)):
        out.print(escape(line), style=FAINT_TEXT)


def _groups(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["phase"], row["mask"]), []).append(row)
    return groups


def _table(title: str, rows: Sequence[Row], budget: Mapping[str, Any], by: str) -> Table:
    longest = "longest that held" if by == "seq" else "largest batch that held"
    numbers = (
        longest,
        "time there",
        "peak there",
        f"{size(budget['peak_bytes'])} alone, predicted",
    )
    heads = columns(
        *("variant", longest, "limited by", "time there", "peak there", "does not hold at"),
        numbers[-1],
        right=numbers,
        wrap=["does not hold at"],
    )
    return Table(title, heads, [_cells(row) for row in rows])


def _cells(row: Row) -> list[Any]:
    held, memory = row["held"], row["predicted"].get("memory")
    return [
        _name(row),
        Styled(f"{held['size']:,}", GOOD) if held else "none",
        _limited_by(row),
        time_taken(held["time_s"]) if held else "",
        size(held["peak_bytes"]) if held else "",
        _not_held(row),
        "" if memory is None else f"{ABOUT}{memory:,}",
    ]


def _name(row: Row) -> str:
    return str(row["variant"]) + (OTHER if row["computes"] != "softmax" else "")


def _limited_by(row: Row) -> Any:
    why = row["limited_by"]
    if not why:
        return "–"
    if why in BUDGETS:
        return why if row["fails"] else f"{why} ≈"
    return Styled(why.replace("_", " "), BAD)


def _not_held(row: Row) -> str:
    """The shortest that does not hold, and whether it was run."""
    fails, what = row["fails"], row["limited_by"]
    if fails is None:
        if row["held"] is None or not what:
            return row["why"] or "nothing: the search ends there"
        return f"{ABOUT}above {row['predicted'][what]:,} ({what}, predicted)"
    if row["held"] is None and fails["why"] not in BUDGETS:
        return f"{fails['size']:,}: {fails['reason']}"
    figure = ""
    if fails["why"] == "memory" and fails["peak_bytes"]:
        figure = size(fails["peak_bytes"])
    elif fails["why"] == "time":
        figure = time_taken(fails["time_s"]) if fails["time_s"] else fails["reason"]
    words = ", ".join(filter(None, [figure, "" if fails["ran"] else "predicted"]))
    return f"{fails['size']:,}" + (f" ({words})" if words else "")


def _warnings(rows: Sequence[Row]) -> list[str]:
    """Failures other than a budget, and the flags of the meters."""
    lines = []
    flags: dict[str, list[str]] = {}
    for row in rows:
        fails, name = row["fails"], f"{row['variant']} {row['phase']}"
        if fails is not None and fails["why"] not in BUDGETS:
            lines.append(f"! {name} at {fails['size']:,}: {fails['why']}: {fails['reason']}")
        for flag in ((row["held"] or {}).get("probe") or {}).get("flags", ()):
            flags.setdefault(re.sub(r"\d+", "…", flag), []).append(name)
    return lines + [f"! {flag}: {', '.join(names)}" for flag, names in flags.items()]


def _notes(rows: Sequence[Row], budget: Mapping[str, Any], by: str) -> list[str]:
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


# ---- the picture ---------------------------------------------------------------------------------

INK, PAPER, GRID, FAINT = "#222222", "#ffffff", "#dddddd", "#777777"
ROW, HEAD, PANEL = 0.25, 1.9, 5.0
"""Inches: of a variant, of what stands above and below, of a panel's width."""
THICK = 0.68
ROOM = 6.0
"""The shortest bar is this many times as long as the length at which the axis begins."""
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "attnbench",
    "hatch.linewidth": 0.6,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
}


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
DIAMOND: dict[str, Any] = {
    "marker": "D",
    "markersize": 4,
    "markerfacecolor": PAPER,
    "markeredgecolor": FAINT,
    "markeredgewidth": 0.9,
    "linestyle": "",
}


def draw(
    rows: Sequence[Row], budget: Mapping[str, Any], by: str, title: str, files: Sequence[Path]
) -> bool:
    """Draw the bars; False where nothing held anywhere."""
    held = [row for row in rows if row["held"]]
    if not held:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    groups, names = _groups(rows), _order(rows)
    start = min(row["held"]["size"] for row in held) / ROOM
    with mpl.rc_context(SETTINGS):
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
        for axes, ((phase, mask), group) in zip(grid[0], groups.items(), strict=True):
            axes.set_title(f"{phase} · mask {mask}", loc="left", fontsize=10)
            _panel(axes, {row["variant"]: row for row in group}, list(names), start)
            axes.set_xlim(start, 1.5 * _end(held))
            axes.set_xlabel("sequence length" if by == "seq" else "batch")
        grid[0][0].set_yticks(range(len(names)), list(names.values()))
        _legend(figure, held, names, budget)
        for file in files:
            date = {"Date": None} if file.suffix == ".svg" else None
            save(figure, file, dpi=130, metadata=date)
        plt.close(figure)
    return True


def _order(rows: Sequence[Row]) -> dict[str, str]:
    """The variants with their labels, those that get furthest in the first panel on top."""
    first = (rows[0]["phase"], rows[0]["mask"])
    best: dict[str, tuple[int, int]] = {}
    for row in rows:
        held = row["held"]["size"] if row["held"] else 0
        here = (held if (row["phase"], row["mask"]) == first else 0, held)
        best[row["variant"]] = max(best.get(row["variant"], (0, 0)), here)
    labels = {row["variant"]: _name(row) for row in rows}
    return {name: labels[name] for name in sorted(best, key=lambda name: best[name], reverse=True)}


def _panel(axes: Axes, rows: Mapping[str, Row], names: Sequence[str], start: float) -> None:
    for at, name in enumerate(names):
        row = rows.get(name)
        if row is not None and row["held"]:
            _bar(axes, row, at, start)
            continue
        text = "not asked" if row is None else str(row["why"]).split(": ")[0]
        _write(axes, (start, at), text if len(text) <= 40 else text[:39] + "…", 4, color=FAINT)
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
    box = {"boxstyle": "round,pad=0.15", "facecolor": look.color, "linewidth": 0}
    _write(axes, (held, at), f"{held:,}", -4, ha="right", color=INK, zorder=4, bbox=box)
    if fails is not None:
        axes.barh(at, fails["size"] - held, left=held, color=look.color, alpha=0.35, **ink)
        line = "-" if fails["ran"] else (0, (1, 1))
        ends = [at - THICK / 2, at + THICK / 2]
        axes.plot([fails["size"]] * 2, ends, color=INK, linewidth=1.3, linestyle=line, zorder=3)
    memory = row["predicted"].get("memory")
    if memory is not None and row["limited_by"] != "memory":
        axes.plot([memory], [at], zorder=3, **DIAMOND)


def _write(axes: Axes, place: tuple[float, float], text: str, shift: int, **style: Any) -> None:
    """Small text beside a place, shifted by so many points."""
    axes.annotate(
        text,
        place,
        xytext=(shift, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
        **style,
    )


def _end(held: Sequence[Row]) -> float:
    """The largest size that is drawn."""
    ends = [(row["fails"] or row["held"])["size"] for row in held]
    return float(max(ends + [row["predicted"].get("memory") or 0 for row in held]))


def _short(value: float) -> str:
    """``512``, ``64 Ki``: the powers of two of an axis."""
    for unit, many in (("Mi", 2**20), ("Ki", 2**10)):
        if value >= many:
            return f"{value / many:g} {unit}"
    return f"{value:g}"


def _legend(
    figure: Figure, held: Sequence[Row], names: Mapping[str, str], budget: Mapping[str, Any]
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    looks = dict.fromkeys(LOOKS.get(row["limited_by"], ELSE) for row in held)
    shown: list[Any] = [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor=PAPER, label=look.words)
        for look in looks
    ]

    def entry(label: str, **style: Any) -> None:
        shown.append(Line2D([], [], label=label, **style))

    ran = {row["fails"]["ran"] for row in held if row["fails"]}
    if True in ran:
        tick = {"marker": "|", "markersize": 9, "markeredgewidth": 1.3, "linestyle": ""}
        entry("run there, and did not hold", color=INK, **tick)
    if False in ran:
        entry("its exact formula rules that out", color=INK, linestyle=(0, (1, 1)))
    if any(row["predicted"].get("memory") and row["limited_by"] != "memory" for row in held):
        entry(f"{size(budget['peak_bytes'])} alone, predicted", **DIAMOND)
    if any(label.endswith(OTHER) for label in names.values()):
        entry(f"{OTHER} not softmax attention", linestyle="")
    figure.legend(handles=shown, loc="outside lower left", ncols=3, frameon=False, fontsize=8)
