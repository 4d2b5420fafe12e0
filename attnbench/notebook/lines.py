"""Lines over the length for a notebook: what the variants of one regime take, with intervals."""

from __future__ import annotations

from typing import Any

from attnbench.core import format
from attnbench.core.record import Record
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import Plot, finish, sheet
from attnbench.report.figures.style import Looks
from attnbench.report.scenes import Scene

MEASURES = {
    "time": ("median time", format.duration),
    "memory": ("peak memory above the inputs", format.size),
    "energy": ("energy a call", format.joules),
}
WIDE, HIGH = 440.0, 270.0
BOX = (46.0, 30.0, WIDE - style.NAMES - 8, HIGH - 44)
EXACT, OTHERS = 6, 4
"""Lines of what is exactly softmax, and of the rest."""


def _point(record: Record, name: str) -> tuple[float, ...] | None:
    """The value and the ends of its interval; None where there is no number above zero."""
    if name == "time":
        time = record.time
        values = (time.median_s, time.low_s, time.high_s) if time else (None,)
    elif name == "memory":
        values = (record.memory.peak_bytes if record.memory else None,) * 3
    else:
        values = (record.energy.joules if record.energy else None,) * 3
    numbers = [number for value in values if (number := format.positive(value))]
    return tuple(numbers) if len(numbers) == 3 else None


def draw(scene: Scene, looks: Looks, name: str) -> Plot | None:
    """The figure of a measure in a regime; None where it was not measured."""
    hidden = {variant for same in scene.one_kernel.values() for variant in same}
    lines: dict[str, dict[int, tuple[float, ...]]] = {}
    for length in sorted(scene.regime.lengths):
        for variant, record in scene.regime.timed(length).items():
            if variant not in hidden and (point := _point(record, name)):
                lines.setdefault(variant, {})[length] = point
    if not lines:
        return None
    from matplotlib.ticker import FuncFormatter

    words, unit = MEASURES[name]
    title = f"{scene.regime.phase.capitalize()}: {words}"
    ranked = sorted(lines, key=lambda v: (-max(lines[v]), lines[v][max(lines[v])]))
    leading = dict.fromkeys(s.answer.winner for s in scene.standings if s.answer)
    exact = [v for v in dict.fromkeys((*leading, *ranked)) if v in lines and looks[v].exact]
    drawn = exact[:EXACT] + [v for v in ranked if not looks[v].exact][:OTHERS]
    drawn.sort(key=lambda v: -lines[v][max(lines[v])][0])  # as they end from the top down
    with sheet(WIDE / 72, HIGH / 72) as figure:
        labels.heading(figure, title, ", ".join([*scene.regime.words()[1:], scene.run.machine]))
        axes = labels.add_axes(figure, BOX)
        lengths = sorted({n for variant in drawn for n in lines[variant]})
        values = [x for variant in drawn for point in lines[variant].values() for x in point]
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2 if name == "memory" else 10)
        axes.set(xlim=style.limits(lengths, least=2.0, room=0.04), ylim=style.limits(values))
        axes.set_xlabel("keys kept" if scene.regime.phase == "decode" else "length, tokens")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: format.tokens(round(n))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: unit(value)))
        axes.minorticks_off()
        for variant in drawn:
            look, line = looks[variant], lines[variant]
            middle, low, high = zip(*line.values(), strict=True)
            axes.fill_between([*line], low, high, color=look.colour, alpha=0.13, linewidth=0)
            marks: dict[str, Any] = {"linestyle": look.dash, "linewidth": 1.1, **look.marks(3.7)}
            axes.plot([*line], middle, clip_on=False, **marks)
        style.legend(figure, (looks[variant] for variant in drawn))
        return finish(figure, f"r{scene.number}-{name}", title, str(scene.regime))
