"""Memory taken apart: what stays for backward, what is needed besides, what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.answer.said import size
from attnbench.record import Record
from attnbench.report.figures.labels import heading, shorten
from attnbench.report.figures.looks import Look, Looks
from attnbench.report.figures.palette import FAINT, INK, PAPER
from attnbench.report.figures.sheet import Drawn, finish, sheet
from attnbench.report.scenes import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, ROW, REST = 4.6, 0.17, 0.97
"""Inches: of the figure, of a bar, and of all but bars."""
LEFT, RIGHT = 0.335, 0.845
ROOM = 88.0
"""Points for a name."""
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
    height = ROW * len(bars) + REST
    left_out = len(everyone) - len(bars)
    title = f"Peak memory above the inputs: {scene.regime.phase}, {length:,} tokens"
    with sheet(WIDTH, height) as figure:
        low, high = 0.42 / height, 1 - 0.47 / height
        axes = figure.add_axes((LEFT, low, RIGHT - LEFT, high - low))
        _frame(axes, bars)
        for row, bar in enumerate(bars):
            _bar(axes, row, bar, looks[bar.variant])
        heading(figure, title, _key(bars) or str(scene.regime))
        below = ["logarithmic scale"] if axes.get_xscale() == "log" else []
        below += [f"{left_out} more in the CSV"] if left_out else []
        axes.set_xlabel("; ".join(below), fontsize=6.8, color=FAINT, labelpad=2)
        return finish(
            figure, "memory", f"memory-{scene.name}", f"{title} ({scene.regime})",
            _told(everyone, looks), _rows(everyone, looks, length), regime=scene.number,
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
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)
    if top > WIDE * least:
        small = min([least, *(b.saved for b in bars if b.saved > least / 30)])
        axes.set(xscale="log", xlim=(small / 2, top))
        axes.minorticks_off()
        every = [4.0**n for n in range(41) if small / 2 <= 4.0**n <= top]
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


def _bar(axes: Axes, row: int, bar: Bar, look: Look) -> None:
    from matplotlib.patches import Rectangle

    words = f"{bar.variant}: peak {size(bar.peak)}" + (
        f", {size(bar.saved)} of it saved for backward" * bool(bar.saved)
        + (f"; expected {size(bar.expected)}" if bar.expected else "")
    )
    start = axes.get_xlim()[0]
    for left, right, alpha in ((start, bar.saved, 1.0), (max(start, bar.saved), bar.peak, LIGHT)):
        if right > left:
            axes.add_artist(Rectangle(
                (left, row - 0.36), right - left, 0.72, facecolor=look.colour, alpha=alpha,
                linewidth=0, gid=f"{look.name}|{words}",
            ))  # fmt: skip
    if bar.expected and start < bar.expected:
        axes.plot([bar.expected] * 2, [row - 0.46, row + 0.46], color=INK, linewidth=1.1,
                  clip_on=False, gid=look.name)  # fmt: skip
    sides = axes.get_yaxis_transform()
    axes.plot(
        [-0.035], [row], transform=sides, clip_on=False, color=look.colour, marker=look.marker,
        markersize=4.2, fillstyle=look.fill, markerfacecoloralt=PAPER, markeredgewidth=0.8,
        gid=look.name,
    )  # fmt: skip
    axes.text(-0.065, row, shorten(bar.variant, ROOM, 7.5), transform=sides, ha="right",
              va="center_baseline", fontsize=7.5, gid=look.name)  # fmt: skip
    axes.text(1.02, row, size(bar.peak), transform=sides, va="center_baseline", fontsize=7.5,
              gid=look.name)  # fmt: skip


def _key(bars: Sequence[Bar]) -> str:
    words = ["full: saved for backward, pale: needed besides"] * any(b.saved for b in bars)
    return "; ".join([*words, *["|: by its formula"] * any(b.expected for b in bars)])


def _told(bars: Sequence[Bar], looks: Looks) -> str:
    exact = [b for b in bars if looks[b.variant].exact] or list(bars)
    least, most = exact[0], exact[-1]
    what = "Of what is exact, " if looks[least.variant].exact else ""
    return (
        f"{what}{least.variant} needs least, {size(least.peak)}, and {most.variant} most, "
        f"{size(most.peak)}"
    )


def _rows(bars: Sequence[Bar], looks: Looks, length: int) -> Iterator[tuple[Any, ...]]:
    yield ("variant", "family", "computes", "length", "peak_bytes", "saved_bytes",
           "expected_bytes")  # fmt: skip
    for b in bars:
        look = looks[b.variant]
        yield b.variant, look.family, look.computes, length, b.peak, b.saved, b.expected
