"""The roofline: how much of what the machine was seen to do each variant gets out of it.

The work is that of the mathematics and the bytes are those of the inputs and outputs, so a variant
that computes twice or writes its scores to memory lies lower, not further right. The roof is
measured: a matrix product in the problem's dtype, a copy from memory, and the fastest copy that a
cache holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.answer.regimes import time_of
from attnbench.core.format import first_few, percent, three, unit_of_rates
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, INK, Drawn, finish, sheet, shorten
from attnbench.report.figures.style import End, Looks
from attnbench.report.scenes import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes


HIGH = 277.0
BOX = (38.0, 64.0, 228.0, 233.0)
NAMED = {True: 5, False: 4}
"""How many are named, of the exact ones and of the others: those nearest to the roof."""
MOST = 60
FAR = 0.01
"""The share of the fastest's FLOP/s below which a variant would shrink all else."""


class Roof(NamedTuple):
    """What the machine was seen to do: all of it, where several processes take part."""

    flops: float
    """FLOP a second, by a matrix product."""
    memory: float
    """Bytes a second, by the largest copy."""
    cache: float
    """Bytes a second, by the fastest copy."""


class RooflinePoint(NamedTuple):
    """A variant at a length."""

    length: int
    intensity: float
    rate: float
    share: float


Paths = Mapping[str, list[RooflinePoint]]
"""Each variant's points by length, the shortest first."""


def roof(scene: Scene) -> Roof | None:
    """The ceilings of the kind of machine that measured a scene; None if they weren't measured."""
    header = scene.run.header
    node = (header.get("nodes") or {}).get(scene.regime.node) or {}
    ceilings = node.get("ceilings") or header.get("ceilings") or {}
    flops = (ceilings.get("flops") or {}).get(scene.regime.dtype)
    copies = {int(size): speed for size, speed in (ceilings.get("copy") or {}).items() if speed}
    if not flops or not copies:
        return None
    many = scene.regime.world or 1
    return Roof(flops * many, copies[max(copies)] * many, max(copies.values()) * many)


def draw(scene: Scene, looks: Looks) -> Drawn | None:
    """A regime's figure; None without ceilings or without anything whose work is known."""
    above = roof(scene)
    every: dict[str, list[RooflinePoint]] = {}
    for length in scene.regime.lengths if above else ():
        for variant, record in scene.regime.timed(length).items():
            time, cost = time_of(record), record.cost
            if above and time and cost and cost.flops > 0 and cost.bytes > 0:
                intensity, rate = cost.flops / cost.bytes, cost.flops / time.median_s
                share = rate / min(above.flops, above.cache * intensity)
                point = RooflinePoint(length, intensity, rate, share)
                every.setdefault(variant, []).append(point)
    return _figure(scene, looks, above, every) if above and every else None


def _figure(scene: Scene, looks: Looks, above: Roof, every: Paths) -> Drawn:
    least = FAR * max(points[-1].rate for points in every.values())
    paths = {v: points for v, points in every.items() if points[-1].rate >= least}
    unit, name = unit_of_rates(above.flops)
    ranked = sorted(paths, key=lambda v: (-paths[v][-1].share, v))
    exact, others = ([v for v in ranked if looks[v].exact is kind] for kind in NAMED)
    named = exact[: NAMED[True]] + others[: NAMED[False]]
    faint = [v for v in ranked if v not in named][: MOST - len(named)]
    title = f"Roofline, {scene.regime.phase}: {name} of the mathematics"
    best, of = (exact or ranked)[0], " of what is exact" if exact else ""
    share = percent(paths[best][-1].share)
    finding = f"Nearest to the ceilings{of}: {best}, {share} of what they allow"
    with sheet(style.WIDE / 72, HIGH / 72) as figure:
        axes = labels.add_axes(figure, BOX)
        _draw_roof(axes, above, paths, unit)
        ends = {}
        for variant in [*faint, *named]:
            look, points, bold = looks[variant], paths[variant], variant in named
            last = points[-1]
            axes.plot(
                [p.intensity for p in points],
                [p.rate / unit for p in points],
                linewidth=1.1 if bold else 0.6,
                alpha=1 if bold else 0.5,
                linestyle=look.dash if bold else "-",
                markevery=[len(points) - 1],
                **look.marks(4.8 if bold else 3.2),
            )
            place = labels.at(axes, last.intensity, last.rate / unit)
            ends[variant] = End(look, place, variant)
        style.name_ends(figure, [ends[v] for v in named], BOX[2], BOX[1], BOX[3])
        axes.set_xlabel("FLOP for each byte that goes in or comes out", labelpad=2)
        note = (
            f"roof: a product in {scene.regime.dtype}, {above.flops / unit:.3g} {name}; slope: a "
            f"copy from memory, {above.memory / 1e9:.3g} GB/s\n"
            f"(dashed: in cache, {above.cache / 1e9:.3g}); paths run over the lengths, to a "
            "marker at the longest"
        )
        away = [shorten(variant, 60, 6.8) for variant in every if variant not in paths]
        parts = [f"far below, and not drawn: {first_few(away, 3)}"] if away else []
        rest = len(ranked) - len(named) - len(faint)
        parts += [f"{rest} more in the CSV"] if rest else []
        note += "\n" * bool(parts) + "; ".join(parts)
        labels.write(figure, 6.6, 5.0, note, 6.8, color=FAINT, va="bottom", linespacing=1.3)
        labels.heading(figure, title, str(scene.regime), finding)
        rows: list[tuple[object, ...]] = [("variant", "family", "computes")]
        rows[0] += ("length", "flop_per_byte", "flop_per_s", "share_of_roof")
        rows += ((v, looks[v].family, looks[v].computes, *p) for v in every for p in every[v])
        name, title = f"roofline-{scene.name}", f"{title} ({scene.regime})"
        return finish(figure, "roofline", name, title, finding, rows)


def _draw_roof(axes: Axes, above: Roof, paths: Paths, unit: float) -> None:
    points = [point for some in paths.values() for point in some]
    xs, ys = [p.intensity for p in points], [p.rate / unit for p in points]
    ridge, corner, top = above.flops / above.memory, above.flops / above.cache, above.flops / unit
    left, right = min(*xs, corner) / 1.6, max(*xs, ridge * 4) * 1.6
    style.scale(axes, "x", (left, right), three)
    style.scale(axes, "y", (min(ys) / 2, max(*ys, top) * 2), three)
    line: dict[str, Any] = {"color": INK, "linewidth": 1.0}
    for speed, dash in ((above.memory, "-"), (above.cache, (0, (4, 2)))):
        xs = [left, above.flops / speed]
        axes.plot(xs, [speed * x / unit for x in xs], linestyle=dash, **line)
    axes.plot([corner, right], [top, top], **line)
