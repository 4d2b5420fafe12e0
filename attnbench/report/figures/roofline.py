"""The roofline: how much of what the machine was seen to do each variant gets out of it.

The work is that of the mathematics and the bytes are those of the inputs and outputs, so a variant
that computes twice or writes its scores to memory lies lower, not further right. The roof is
measured: a matrix product in the problem's dtype, a copy from memory, and the fastest copy that a
cache holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.answer.regimes import time_of
from attnbench.core.format import three
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, INK, Drawn, finish, sheet, shorten, write
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

    def over(self, intensity: float) -> float:
        """The most FLOP a second at so many FLOP a byte."""
        return min(self.flops, self.cache * intensity)


class RooflinePoint(NamedTuple):
    """A variant at a length."""

    length: int
    intensity: float
    rate: float
    share: float


Paths = Mapping[str, list[RooflinePoint]]
"""Each variant's points by length, the shortest first."""


@dataclass(frozen=True)
class Roofline:
    """The data of one figure."""

    scene: Scene
    looks: Looks
    roof: Roof
    paths: Paths

    def ranked(self, paths: Paths) -> list[str]:
        """The variants by how near they come to the roof where they are longest."""
        return sorted(paths, key=lambda v: (-paths[v][-1].share, v))

    def gid(self, variant: str, p: RooflinePoint) -> str:
        """The id of a variant's artist, with what is shown where a pointer rests on it."""
        words = f"{p.length} tokens, {p.rate / 1e9:.3g} GFLOP/s, {p.share:.0%} of the roof"
        return self.looks[variant].gid(f"{variant}: {words}")

    def finish(self, figure: Any, title: str, paths: Paths) -> Drawn:
        """The figure with its heading, as files; what it shows is who comes nearest to the roof."""
        ranked = self.ranked(paths)
        exact = [v for v in ranked if self.looks[v].exact]
        best, of = (exact or ranked)[0], " of what is exact" if exact else ""
        share, regime = f"{paths[best][-1].share:.0%}", str(self.scene.regime)
        finding = f"Nearest to the ceilings{of}: {best}, {share} of what they allow"
        labels.heading(figure, title, regime, finding)
        name, title = f"roofline-{self.scene.name}", f"{title} ({regime})"
        return finish(
            figure, "roofline", name, title, finding, self.rows(), regime=self.scene.number
        )

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """All points."""
        columns = ("length", "flop_per_byte", "flop_per_s", "share_of_roof")
        yield "variant", "family", "computes", *columns
        for variant, points in self.paths.items():
            look = self.looks[variant]
            for point in points:
                yield variant, look.family, look.computes, *point


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
    paths: dict[str, list[RooflinePoint]] = {}
    for length in scene.regime.lengths if above else ():
        for variant, record in scene.regime.timed(length).items():
            time, cost = time_of(record), record.cost
            if above and time and cost and cost.flops > 0 and cost.bytes > 0:
                intensity, rate = cost.flops / cost.bytes, cost.flops / time.median_s
                point = RooflinePoint(length, intensity, rate, rate / above.over(intensity))
                paths.setdefault(variant, []).append(point)
    if above is None or not paths:
        return None
    data = Roofline(scene, looks, above, paths)
    return _draw_roofline(data)


def _draw_roofline(data: Roofline) -> Drawn:
    above, looks, regime = data.roof, data.looks, data.scene.regime
    least = FAR * max(points[-1].rate for points in data.paths.values())
    paths = {v: points for v, points in data.paths.items() if points[-1].rate >= least}
    unit, name = (1e12, "TFLOP/s") if above.flops >= 1e12 else (1e9, "GFLOP/s")
    ranked = data.ranked(paths)
    named = [
        v for kind in NAMED for v in [v for v in ranked if looks[v].exact is kind][: NAMED[kind]]
    ]
    faint = [v for v in ranked if v not in named][: MOST - len(named)]
    title = f"Roofline, {regime.phase}: {name} of the mathematics"
    with sheet(style.WIDE / 72, HIGH / 72) as figure:
        axes = labels.add_axes(figure, BOX)
        _draw_roof(axes, above, paths, unit)
        for variant in [*faint, *named]:
            look, points, bold = looks[variant], paths[variant], variant in named
            axes.plot(
                [p.intensity for p in points],
                [p.rate / unit for p in points],
                linewidth=1.1 if bold else 0.6,
                alpha=1 if bold else 0.5,
                linestyle=look.dash if bold else "-",
                markevery=[len(points) - 1],
                gid=data.gid(variant, points[-1]),
                **look.marks(4.8 if bold else 3.2),
            )
        last = {v: paths[v][-1] for v in named}
        ends = [
            End(looks[v], labels.at(axes, p.intensity, p.rate / unit), v) for v, p in last.items()
        ]
        style.name_ends(figure, ends, BOX[2], BOX[1], BOX[3])
        axes.set_xlabel("FLOP for each byte that goes in or comes out", labelpad=2)
        note = (
            f"roof: a product in {regime.dtype}, {above.flops / unit:.3g} {name}; slope: a "
            f"copy from memory, {above.memory / 1e9:.3g} GB/s\n"
            f"(dashed: in cache, {above.cache / 1e9:.3g}); paths run over the lengths, to a "
            f"marker at the longest{_left_out(data.paths, paths, len(named) + len(faint))}"
        )
        write(figure, 6.6, 5.0, note, 6.8, color=FAINT, va="bottom", linespacing=1.3)
        return data.finish(figure, title, paths)


def _left_out(known: Paths, shown: Paths, drawn: int) -> str:
    away = [shorten(variant, 60, 6.8) for variant in known if variant not in shown]
    parts = []
    if away:
        more = f" and {len(away) - 3} more" if len(away) > 3 else ""
        parts.append(f"far below, and not drawn: {', '.join(away[:3])}{more}")
    if len(shown) > drawn:
        parts.append(f"{len(shown) - drawn} more in the CSV")
    return "\n" + "; ".join(parts) if parts else ""


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
