"""A run as one picture: time, memory and error against sequence length, a column a phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float, float]
"""A value and its interval."""

INK, PAPER, GRID = "#222222", "#ffffff", "#dddddd"
MARKERS = "osD^vP"


class End(NamedTuple):
    """Where a line ends."""

    x: float
    y: float
    name: str
    color: Any


@dataclass(frozen=True)
class Measure:
    """One row of the picture: what is drawn, and how it is read off a record."""

    title: str
    read: Callable[[Record], Point | None]


def _time(record: Record) -> Point | None:
    t = record.time
    return (t.median_s * 1e3, t.low_s * 1e3, t.high_s * 1e3) if t else None


def _memory(record: Record) -> Point | None:
    peak = record.memory.peak_bytes / 2**20 if record.memory else None
    return (peak, peak, peak) if peak else None


def _error(record: Record) -> Point | None:
    errors = [e.relative for e in (record.error or {}).values() if e.relative]
    value = max(errors) if errors and record.time else None
    return (value, value, value) if value else None


MEASURES = (
    Measure("median time, ms", _time),
    Measure("peak memory, MiB", _memory),
    Measure("worst relative error against what each computes", _error),
)
MOST_EXACT, MOST_OTHERS = 10, 6
"""Lines that can still be told apart: the fastest of each kind at the longest length."""
OTHER = "*"
"""Behind the names of what is not softmax attention; their lines are dotted."""


def regimes(records: Iterable[Record]) -> list[dict[str, Any]]:
    """What is alike in the problems of the records but for their lengths and phases."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        rest = {
            k: v for k, v in record.problem.items() if k not in ("q_len", "kv_len", "phase")
        }  # fmt: skip
        found.setdefault(str(rest), rest)
    return list(found.values())


def draw(records: Sequence[Record], title: str, files: Sequence[Path]) -> bool:
    """Draw the first regime that was measured; False where there is nothing to draw."""
    measured = [r for r in records if r.time is not None]
    if not measured:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    regime = regimes(measured)[0]
    shown = [r for r in measured if all(r.problem[k] == v for k, v in regime.items())]
    phases = list(dict.fromkeys(r.problem["phase"] for r in shown))
    names = drawn_names(shown)
    all_names = {r.variant for r in shown}
    settings: dict[Any, Any] = {
        "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "attnbench",
        "text.color": INK, "axes.edgecolor": GRID, "axes.labelcolor": INK,
    }  # fmt: skip
    with mpl.rc_context(settings):
        size = (5.2 * len(phases) + 1.2, 3.6 * len(MEASURES) + 1.0)
        figure, grid = plt.subplots(
            len(MEASURES), len(phases), figsize=size, squeeze=False, sharex=True, sharey="row",
            layout="constrained", facecolor=PAPER,
        )  # fmt: skip
        words = f"{title}\n{_regime_words(regime)}\n{_key_words(names, all_names, shown)}"
        figure.suptitle(words.rstrip(), fontsize=11, x=0.02, ha="left")
        colors = mpl.color_sequences["petroff10"]
        ends = []
        for row, measure in zip(grid, MEASURES, strict=True):
            for axes, phase in zip(row, phases, strict=True):
                some = [r for r in shown if r.problem["phase"] == phase]
                ends.append((axes, _panel(axes, some, names, measure, colors)))
                axes.set_title(f"{phase}: {measure.title}", loc="left", fontsize=9)
        for row in grid:
            _at_least_a_decade(row[0])
        for axes, some_ends in ends:  # now that the rows have agreed on their limits
            _label_ends(axes, some_ends)
        for axes in grid[-1]:
            axes.set_xlabel("sequence length")
        for file in files:
            figure.savefig(
                file, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else None
            )
        plt.close(figure)
    return True


def _regime_words(p: dict[str, Any]) -> str:
    heads = f"batch {p['batch']}, {p['heads']} heads on {p['kv_heads']}, head_dim {p['head_dim']}"
    heads = f"level {p['level']}, " * (p["level"] != "core") + heads
    return f"mask {p['mask']}, {p['dtype']}, {p['inputs']} inputs, {heads}, on {p['device']}"


def drawn_names(records: Sequence[Record]) -> list[str]:
    """The fastest exact variants at the longest length they reached, then the fastest others."""
    last: dict[str, tuple[int, float]] = {}
    for r in records:
        if r.time is not None:
            here = (-r.problem["kv_len"], r.time.median_s)
            last[r.variant] = min(last.get(r.variant, here), here)
    exact = {r.variant for r in records if r.computes == "softmax"}
    ranked = sorted(last, key=lambda name: last[name])
    others = [name for name in ranked if name not in exact][:MOST_OTHERS]
    return [name for name in ranked if name in exact][:MOST_EXACT] + others


def _key_words(names: Sequence[str], all_names: set[str], records: Sequence[Record]) -> str:
    words = []
    if any(r.computes != "softmax" and r.variant in names for r in records):
        words.append(f"{OTHER} dotted: not softmax attention")
    if len(names) < len(all_names):
        words.append(f"{len(names)} of {len(all_names)} variants drawn, the fastest of either kind")
    return "; ".join(words)


def _panel(axes: Axes, records: Sequence[Record], names: Sequence[str], measure: Measure,
           colors: Sequence[Any]) -> list[End]:  # fmt: skip
    ends: list[End] = []
    lengths: set[int] = set()
    for number, name in enumerate(names):
        points = {}
        for record in records:
            if record.variant == name and (point := measure.read(record)) is not None:
                points[record.problem["kv_len"]] = point
        if not points:
            continue
        xs = sorted(points)
        lengths.update(xs)
        middle, low, high = zip(*(points[x] for x in xs), strict=True)
        color = colors[number % len(colors)]
        other = any(r.variant == name and r.computes != "softmax" for r in records)
        style = ":" if other else "-"
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(xs, middle, style, color=color, marker=marker, markersize=3, linewidth=1.1)
        axes.fill_between(xs, low, high, color=color, alpha=0.2, linewidth=0)
        ends.append(End(xs[-1], middle[-1], name + OTHER * other, color))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(lengths), [str(x) for x in sorted(lengths)], minor=False)
    axes.minorticks_off()
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelleft=True, color=GRID)
    return ends


def _at_least_a_decade(axes: Axes) -> None:
    """Widen a row's common limits, so that a tick falls within them."""
    bottom, top = axes.get_ylim()
    middle = (bottom * top) ** 0.5
    axes.set_ylim(min(bottom, middle / 5), max(top, middle * 5))


LABEL_SHARE = 0.052
"""Of a panel's height, what a name takes."""


def _label_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Names beside the ends of their lines, pushed apart where they would lie on each other."""
    if not ends:
        return
    low, high = (log10(y) for y in axes.get_ylim())
    ordered = sorted(ends, key=lambda end: end.y)
    at = [(log10(end.y) - low) / (high - low) for end in ordered]
    for i in range(1, len(at)):
        at[i] = max(at[i], at[i - 1] + LABEL_SHARE)
    ceiling = 1.0
    for i in reversed(range(len(at))):
        at[i] = min(at[i], ceiling)
        ceiling = at[i] - LABEL_SHARE
    for share, end in zip(at, ordered, strict=True):
        axes.annotate(
            end.name, (end.x, end.y), xytext=(1.06, share), textcoords="axes fraction",
            color=end.color, fontsize=7, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": end.color, "linewidth": 0.5, "alpha": 0.6,
                        "relpos": (0, 0.5)},
        )  # fmt: skip
