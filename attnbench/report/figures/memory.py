"""Memory taken apart: what stays for backward, what is needed besides, what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attnbench.core.format import size
from attnbench.core.record import Memory
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, INK, Drawn, finish, sheet
from attnbench.report.figures.style import Look, Looks
from attnbench.report.scenes import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ROW, ABOVE, BELOW = 12.24, 45.4, 30.2
LEFT, RIGHT = 111.0, 280.0
MOST = 24
Bars = Mapping[str, Memory]
"""The memory of each variant, the least first."""


def draw(scene: Scene, looks: Looks) -> Drawn | None:
    """The figure at the longest length that most reach; None where no memory was measured there."""
    length = scene.regime.longest()
    records = scene.regime.timed(length).values() if length else ()
    found = {r.variant: r.memory for r in records if r.memory and (r.memory.peak_bytes or 0) > 0}
    every = {
        v: m.with_(saved_bytes=min(m.saved_bytes or 0, m.peak_bytes)) for v, m in found.items()
    }
    every = dict(sorted(every.items(), key=lambda b: (b[1].peak_bytes, b[1].saved_bytes, b[0])))
    if not every or length is None:
        return None
    exact, others = ([v for v in every if looks[v].exact is kind] for kind in (True, False))
    kept = exact[: MOST - min(len(others), MOST // 3)]  # of the others those that need least
    kept += others[: MOST - len(kept)]
    bars = {v: m for v, m in every.items() if v in kept}
    title = f"Peak memory above the inputs: {scene.regime.phase}, {length:,} tokens"
    with sheet(style.WIDE / 72, (ROW * len(bars) + ABOVE + BELOW) / 72) as figure:
        axes = labels.add_axes(figure, (LEFT, BELOW, RIGHT, BELOW + ROW * len(bars)))
        axes.set(ylim=(len(bars) - 0.4, -0.6), yticks=[])
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="x", labelsize=7)
        top = max(max(m.peak_bytes, m.expected_bytes or 0) for m in bars.values())
        low = min(m.peak_bytes for m in bars.values())
        small = min([low, *(s for m in bars.values() if (s := m.saved_bytes or 0) > low / 30)])
        style.scale(axes, "x", (small / 1.5, max(top, 2 * small) * 1.15), size, base=2, most=4)
        for row, (variant, memory) in enumerate(bars.items()):
            _draw_row(axes, row, memory, looks[variant])
        finding = _finding({v: every[v] for v in exact or every})
        finding = f"Exact: least {finding}" if exact else f"Least {finding}"
        key = "dot: the peak"
        key += ", line: from what is saved for backward" * any(m.saved_bytes for m in bars.values())
        key += "; |: expected by its formula" * any(m.expected_bytes for m in bars.values())
        labels.heading(figure, title, key, finding)
        more = f"; {len(every) - len(bars)} more in the CSV" * (len(every) > len(bars))
        axes.set_xlabel(f"logarithmic scale{more}", fontsize=6.8, color=FAINT, labelpad=2)
        name, title = f"memory-{scene.name}", f"{title} ({scene.regime})"
        rows = _rows(every, looks, length)
        return finish(figure, "memory", name, title, finding, rows)


def _draw_row(axes: Axes, row: int, memory: Memory, look: Look) -> None:
    """The peak as a dot, with a line from what is saved: a log scale has no zero to begin at."""
    peak, saved, expected = memory.peak_bytes, memory.saved_bytes or 0, memory.expected_bytes
    start = axes.get_xlim()[0]
    mark: dict[str, Any] = {"color": look.colour, "markersize": 5, "clip_on": False}
    if 0 < saved < peak:
        line: dict[str, Any] = {"linewidth": 2.4, "alpha": 0.6, "solid_capstyle": "butt"}
        axes.plot([max(start, saved), peak], [row, row], color=look.colour, **line)
        if saved < start:  # the line goes on beyond the axis
            axes.plot([start], [row], marker="<", **mark)
    axes.plot([peak], [row], marker="o", **mark)
    if expected and start < expected:
        tick: dict[str, Any] = {"color": INK, "linewidth": 1.1, "clip_on": False}
        axes.plot([expected] * 2, [row - 0.46, row + 0.46], **tick)
    sides: dict[str, Any] = {"transform": axes.get_yaxis_transform()}
    text = {"va": "center_baseline", "fontsize": 7.5, **sides}
    axes.plot([-0.035], [row], clip_on=False, **sides, **look.marks(4.2))
    axes.text(-0.065, row, labels.shorten(look.variant, 88, 7.5), ha="right", **text)
    axes.text(1.02, row, size(peak), **text)


def _finding(bars: Bars) -> str:
    """Which needs least and which most."""
    variants = list(bars)
    low, high = bars[variants[0]].peak_bytes, bars[variants[-1]].peak_bytes
    least = [v for v in variants if bars[v].peak_bytes == low]
    names = " and ".join(least) if len(least) < 3 else f"{least[0]} and {len(least) - 1} more"
    most = f"; most {variants[-1]}, {size(high)}" if high > low else ""
    return f"{names}, {size(low)}{most}"


def _rows(bars: Bars, looks: Looks, length: int) -> Iterator[tuple[Any, ...]]:
    yield ("variant", "family", "computes", "length", "peak_bytes", "saved_bytes", "expected_bytes")
    for variant, m in bars.items():
        look, numbers = looks[variant], (m.peak_bytes, m.saved_bytes, m.expected_bytes)
        yield variant, look.family, look.computes, length, *numbers
