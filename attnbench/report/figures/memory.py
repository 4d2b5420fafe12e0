"""Memory taken apart: what stays for backward, what is needed besides, what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.answer.said import size
from attnbench.record import Record
from attnbench.report.figures import rows
from attnbench.report.figures.labels import heading
from attnbench.report.figures.looks import Look, Looks
from attnbench.report.figures.palette import FAINT, INK
from attnbench.report.figures.sheet import Drawn, finish, sheet
from attnbench.report.scenes import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REST = 1.13
"""Inches of all but rows."""
MOST = 24
WIDE = 40.0
"""Where the largest is so many times the least, lengths in proportion would be points."""
LIGHT = 0.38
TICKS = 5
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


@dataclass(frozen=True)
class Bar:
    """A variant's, in bytes."""

    variant: str
    peak: int
    saved: int
    expected: int | None


def draw(scene: Scene, looks: Looks) -> Drawn | None:
    """At the longest length that most reach; None where memory was not measured there."""
    length = scene.regime.longest()
    records = scene.regime.timed(length) if length else {}
    everyone = sorted(_bars(records.values()), key=lambda b: (b.peak, b.saved, b.variant))
    if not everyone or length is None:
        return None
    bars = _chosen(everyone, looks)
    height = rows.HIGH * len(bars) + REST
    left_out = len(everyone) - len(bars)
    title = f"Peak memory above the inputs: {scene.regime.phase}, {length:,} tokens"
    with sheet(rows.WIDTH, height) as figure:
        low, high = 0.42 / height, 1 - 0.63 / height
        axes = figure.add_axes((rows.LEFT, low, rows.RIGHT - rows.LEFT, high - low))
        _frame(axes, bars)
        for row, bar in enumerate(bars):
            _row(axes, row, bar, looks[bar.variant])
        under = _key(bars, axes.get_xscale()) or str(scene.regime)
        heading(figure, title, under, _finding(everyone, looks))
        below = ["logarithmic scale"] if axes.get_xscale() == "log" else []
        below += [f"{left_out} more in the CSV"] if left_out else []
        axes.set_xlabel("; ".join(below), fontsize=6.8, color=FAINT, labelpad=2)
        return finish(
            figure, "memory", f"memory-{scene.name}", f"{title} ({scene.regime})",
            _told(everyone, looks), _table(everyone, looks, length), regime=scene.number,
        )  # fmt: skip


def _bars(records: Sequence[Record] | Any) -> Iterator[Bar]:
    for record in records:
        memory = record.memory
        if memory and memory.peak_bytes and memory.peak_bytes > 0:
            saved = min(memory.saved_bytes or 0, memory.peak_bytes)
            yield Bar(record.variant, memory.peak_bytes, saved, memory.expected_bytes)


def _chosen(bars: Sequence[Bar], looks: Looks) -> list[Bar]:
    """All that are exact, so far as there is room, and of the others those that need least."""
    if len(bars) <= MOST:
        return list(bars)
    others = [b for b in bars if not looks[b.variant].exact]
    exact = [b for b in bars if looks[b.variant].exact][: MOST - min(len(others), MOST // 3)]
    others = others[: MOST - len(exact)]
    return sorted([*exact, *others], key=lambda b: (b.peak, b.saved, b.variant))


def _frame(axes: Axes, bars: Sequence[Bar]) -> None:
    top = max(max(b.peak, b.expected or 0) for b in bars)
    least = min(b.peak for b in bars)
    rows.frame(axes, len(bars))
    if top > WIDE * least:
        small = min([least, *(b.saved for b in bars if b.saved > least / 30)])
        axes.set(xscale="log", xlim=(small / 1.5, top * 1.25))
        axes.minorticks_off()
        every = [4.0**n for n in range(41) if small / 1.5 <= 4.0**n <= top]
        every = every[:: max(1, -(-len(every) // TICKS))]
    else:
        axes.set_xlim(0, top)
        every = _linear(top)
    axes.set_xticks(every, [size(x) if x else "0" for x in every])
    axes.tick_params(axis="x", labelsize=7)


def _linear(top: float) -> list[float]:
    """Round numbers of bytes: a power of 1024 times 1, 2 or 5 and tens; five at the most."""
    for unit in (1.0, 2.0**10, 2.0**20, 2.0**30, 2.0**40):
        for step in STEPS:
            if top / (step * unit) <= 4.5:
                return [k * step * unit for k in range(int(top / (step * unit)) + 1)]
    return [0.0, top]


def _row(axes: Axes, row: int, bar: Bar, look: Look) -> None:
    words = f"{bar.variant}: peak {size(bar.peak)}" + (
        f", {size(bar.saved)} of it saved for backward" * bool(bar.saved)
        + (f"; expected {size(bar.expected)}" if bar.expected else "")
    )
    if axes.get_xscale() == "log":
        _dot(axes, row, bar, look, words)
    else:
        rows.bar(axes, row, (0, bar.saved), look, words)
        rows.bar(axes, row, (bar.saved, bar.peak), look, words, LIGHT)
    if bar.expected and axes.get_xlim()[0] < bar.expected:
        axes.plot([bar.expected] * 2, [row - 0.46, row + 0.46], color=INK, linewidth=1.1,
                  clip_on=False, gid=look.name)  # fmt: skip
    rows.name(axes, row, look, size(bar.peak))


def _dot(axes: Axes, row: int, bar: Bar, look: Look, words: str) -> None:
    """The peak as a dot, with a line from what is saved: on logarithms no length is an amount."""
    start = axes.get_xlim()[0]
    if 0 < bar.saved < bar.peak:
        axes.plot([max(start, bar.saved), bar.peak], [row, row], color=look.colour, linewidth=2.4,
                  alpha=0.6, solid_capstyle="butt", gid=look.name)  # fmt: skip
        if bar.saved < start:  # it goes on
            axes.plot([start], [row], color=look.colour, marker="<", markersize=5,
                      linestyle="none", clip_on=False, gid=look.name)  # fmt: skip
    axes.plot([bar.peak], [row], color=look.colour, marker="o", markersize=5, linestyle="none",
              clip_on=False, gid=look.gid(words))  # fmt: skip


def _key(bars: Sequence[Bar], scale: str) -> str:
    """How the figure is read."""
    saved, expected = any(b.saved for b in bars), any(b.expected for b in bars)
    said = ["full: saved for backward, pale: needed besides"] * saved
    if scale == "log":
        said = ["dot: the peak" + ", line: from what is saved for backward" * saved]
    return "; ".join([*said, *["|: expected by its formula"] * expected])


def _finding(bars: Sequence[Bar], looks: Looks) -> str:
    """Who needs least and most, of what is exact if anything is."""
    exact = [b for b in bars if looks[b.variant].exact]
    some = exact or list(bars)
    least = [b.variant for b in some if b.peak == some[0].peak]
    who = " and ".join(least) if len(least) < 3 else f"{least[0]} and {len(least) - 1} more"
    said = f"{'Exact: least' if exact else 'Least'} {who}, {size(some[0].peak)}"
    most = f"; most {some[-1].variant}, {size(some[-1].peak)}"
    return said + most * (some[-1].peak > some[0].peak)


def _told(bars: Sequence[Bar], looks: Looks) -> str:
    exact = [b for b in bars if looks[b.variant].exact] or list(bars)
    least, most = exact[0], exact[-1]
    what = "Of what is exact, " if looks[least.variant].exact else ""
    return (
        f"{what}{least.variant} needs least, {size(least.peak)}, and {most.variant} most, "
        f"{size(most.peak)}"
    )


def _table(bars: Sequence[Bar], looks: Looks, length: int) -> Iterator[tuple[Any, ...]]:
    yield ("variant", "family", "computes", "length", "peak_bytes", "saved_bytes",
           "expected_bytes")  # fmt: skip
    for b in bars:
        look = looks[b.variant]
        yield b.variant, look.family, look.computes, length, b.peak, b.saved, b.expected
