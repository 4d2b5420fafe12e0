"""Memory taken apart: what stays for backward, what is needed besides, what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.core.format import size
from attnbench.core.record import Record
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, INK, Drawn, finish, heading, sheet
from attnbench.report.figures.style import Look, Looks
from attnbench.report.scenes import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ABOVE, BELOW = 45.4, 30.2
"""Points above and below the bars."""
MOST = 24
WIDE = 40.0
"""If the largest is so many times the least, lengths in proportion would be points."""
LIGHT = 0.38


@dataclass(frozen=True)
class Bar:
    """The memory of a variant, in bytes."""

    variant: str
    peak: int
    saved: int
    expected: int | None


def draw(scene: Scene, looks: Looks) -> Drawn | None:
    """The figure at the longest length that most reach; None where no memory was measured there."""
    length = scene.regime.longest()
    records = scene.regime.timed(length) if length else {}
    every = sorted(_bars(records.values()), key=lambda b: (b.peak, b.saved, b.variant))
    if not every or length is None:
        return None
    bars = _choose(every, looks)
    high = style.ROW * len(bars) + ABOVE + BELOW
    title = f"Peak memory above the inputs: {scene.regime.phase}, {length:,} tokens"
    with sheet(style.WIDE / 72, high / 72) as figure:
        axes = style.bar_axes(figure, len(bars), BELOW)
        log = _scale(axes, bars)
        for row, bar in enumerate(bars):
            _draw_row(axes, row, bar, looks[bar.variant], log)
        heading(figure, title, _key(bars, log) or str(scene.regime), _finding(every, looks))
        below = ["logarithmic scale"] if log else []
        if len(every) > len(bars):
            below.append(f"{len(every) - len(bars)} more in the CSV")
        axes.set_xlabel("; ".join(below), fontsize=6.8, color=FAINT, labelpad=2)
        return finish(
            figure,
            "memory",
            f"memory-{scene.name}",
            f"{title} ({scene.regime})",
            _describe(every, looks),
            _rows(every, looks, length),
            regime=scene.number,
        )


def _bars(records: Iterable[Record]) -> Iterator[Bar]:
    for record in records:
        memory = record.memory
        if memory and memory.peak_bytes and memory.peak_bytes > 0:
            saved = min(memory.saved_bytes or 0, memory.peak_bytes)
            yield Bar(record.variant, memory.peak_bytes, saved, memory.expected_bytes)


def _choose(bars: Sequence[Bar], looks: Looks) -> list[Bar]:
    """The exact ones as far as there is room, and of the others those that need least."""
    if len(bars) <= MOST:
        return list(bars)
    others = [b for b in bars if not looks[b.variant].exact]
    exact = [b for b in bars if looks[b.variant].exact][: MOST - min(len(others), MOST // 3)]
    others = others[: MOST - len(exact)]
    return sorted([*exact, *others], key=lambda b: (b.peak, b.saved, b.variant))


def _scale(axes: Axes, bars: Sequence[Bar]) -> bool:
    """Set the axis of bytes; returns whether it is logarithmic."""
    from matplotlib.ticker import MaxNLocator

    top = max(max(b.peak, b.expected or 0) for b in bars)
    least = min(b.peak for b in bars)
    if top > WIDE * least:
        small = min([least, *(b.saved for b in bars if b.saved > least / 30)])
        style.scale(axes, "x", (small / 1.5, top * 1.15), size, base=2, most=4)
        return True
    unit = next(unit for unit in (2**40, 2**30, 2**20, 2**10, 1) if unit <= top or unit == 1)
    ticks = MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(0, top / unit)
    axes.set_xlim(0, top)
    axes.set_xticks(
        inside := [x * unit for x in ticks if x * unit <= top],
        [size(x) if x else "0" for x in inside],
    )
    return False


def _draw_row(axes: Axes, row: int, bar: Bar, look: Look, log: bool) -> None:
    words = f"{bar.variant}: peak {size(bar.peak)}"
    if bar.saved:
        words += f", {size(bar.saved)} of it saved for backward"
    if bar.expected:
        words += f"; expected {size(bar.expected)}"
    if log:
        _draw_dot(axes, row, bar, look, words)
    else:
        style.bar(axes, row, (0, bar.saved), look, words)
        style.bar(axes, row, (bar.saved, bar.peak), look, words, LIGHT)
    if bar.expected and axes.get_xlim()[0] < bar.expected:
        ends = [row - 0.46, row + 0.46]
        tick: dict[str, Any] = {"color": INK, "linewidth": 1.1, "clip_on": False, "gid": look.name}
        axes.plot([bar.expected] * 2, ends, **tick)
    style.name(axes, row, look, size(bar.peak))


def _draw_dot(axes: Axes, row: int, bar: Bar, look: Look, words: str) -> None:
    """The peak as a dot, with a line from what is saved: a log scale has no zero to begin at."""
    start = axes.get_xlim()[0]
    mark: dict[str, Any] = {
        "color": look.colour,
        "markersize": 5,
        "linestyle": "none",
        "clip_on": False,
    }
    if 0 < bar.saved < bar.peak:
        line: dict[str, Any] = {"linewidth": 2.4, "alpha": 0.6, "solid_capstyle": "butt"}
        ends = [max(start, bar.saved), bar.peak]
        axes.plot(ends, [row, row], color=look.colour, gid=look.name, **line)
        if bar.saved < start:  # the line goes on beyond the axis
            axes.plot([start], [row], marker="<", gid=look.name, **mark)
    axes.plot([bar.peak], [row], marker="o", gid=look.gid(words), **mark)


def _key(bars: Sequence[Bar], log: bool) -> str:
    """How the figure is read."""
    saved, expected = any(b.saved for b in bars), any(b.expected for b in bars)
    parts = []
    if log:
        parts.append("dot: the peak" + (", line: from what is saved for backward" if saved else ""))
    elif saved:
        parts.append("full: saved for backward, pale: needed besides")
    if expected:
        parts.append("|: expected by its formula")
    return "; ".join(parts)


def _exact(bars: Sequence[Bar], looks: Looks) -> list[Bar]:
    return [b for b in bars if looks[b.variant].exact]


def _finding(bars: Sequence[Bar], looks: Looks) -> str:
    """Which needs least and which most, of the exact ones if there are any."""
    exact = _exact(bars, looks)
    some = exact or bars
    least = [b.variant for b in some if b.peak == some[0].peak]
    names = " and ".join(least) if len(least) < 3 else f"{least[0]} and {len(least) - 1} more"
    text = f"{'Exact: least' if exact else 'Least'} {names}, {size(some[0].peak)}"
    if some[-1].peak > some[0].peak:
        text += f"; most {some[-1].variant}, {size(some[-1].peak)}"
    return text


def _describe(bars: Sequence[Bar], looks: Looks) -> str:
    exact = _exact(bars, looks)
    least, most = (exact or bars)[0], (exact or bars)[-1]
    of_which = "Of what is exact, " if exact else ""
    return (
        f"{of_which}{least.variant} needs least, {size(least.peak)}, and {most.variant} most, "
        f"{size(most.peak)}"
    )


def _rows(bars: Sequence[Bar], looks: Looks, length: int) -> Iterator[tuple[Any, ...]]:
    yield ("variant", "family", "computes", "length", "peak_bytes", "saved_bytes", "expected_bytes")
    for b in bars:
        look = looks[b.variant]
        yield b.variant, look.family, look.computes, length, b.peak, b.saved, b.expected
