"""The roofline: how much of what the machine was seen to do each variant gets out of it.

The work is that of the mathematics and the bytes are those of the ends, so a variant that computes
twice or writes its scores to memory lies lower, not further right. The roof is measured: a matrix
product in the problem's dtype, a copy from memory, and the fastest copy that a cache holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.answer.regimes import time_of
from attnbench.core.format import percent, three
from attnbench.report.figures import style
from attnbench.report.figures.sheet import (
    FAINT,
    INK,
    Drawn,
    finish,
    heading,
    sheet,
    shorten,
    spread,
)
from attnbench.report.figures.style import Look, Looks, decimal
from attnbench.report.scenes import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PALE = 0.6
"""Of what is not exact."""
REST = 1.28
"""Inches of all but rows."""
CEILINGS_MOST = 20
EXACT = 12
"""Of these, so many that are exact where there are others too."""


@contextmanager
def drawn(
    shares: Mapping[str, float],
    looks: Looks,
    words: Mapping[str, str],
    said: tuple[str, str, str],
    note: str,
) -> Iterator[Figure]:
    """A bar each, what is exact first and the highest of its kind first.

    ``said``: what is drawn, of what, and what it shows.
    """
    shown = chosen(shares, looks)
    left_out = len(shares) - len(shown)
    height = style.HIGH * len(shown) + REST
    with sheet(style.WIDTH, height) as figure:
        low, high = 0.57 / height, 1 - 0.63 / height
        axes = figure.add_axes((style.LEFT, low, style.RIGHT - style.LEFT, high - low))
        style.frame(axes, len(shown))
        top = max(shares[variant] for variant in shown)
        axes.set_xlim(0, top)
        axes.set_xticks(every := style.linear(top), [percent(x) if x else "0" for x in every])
        axes.tick_params(axis="x", labelsize=7)
        for row, variant in enumerate(shown):
            look = looks[variant]
            style.bar(
                axes, row, (0, shares[variant]), look, words[variant], 1.0 if look.exact else PALE
            )
            style.name(axes, row, look, percent(shares[variant]))
        exact = sum(looks[variant].exact for variant in shown)
        if 0 < exact < len(shown):
            axes.axhline(exact - 0.5, color=FAINT, linewidth=0.8)
        heading(figure, *said)
        more = f"; {left_out} more in the CSV" * bool(left_out)
        figure.text(
            0.02,
            0.05 / height,
            note + more,
            fontsize=6.8,
            color=FAINT,
            va="bottom",
            linespacing=1.3,
        )
        yield figure


def chosen(shares: Mapping[str, float], looks: Looks) -> list[str]:
    """As many as there is room for, what is exact first, the highest of its kind first."""
    ranked = sorted(shares, key=lambda v: (-shares[v], v))
    exact = [v for v in ranked if looks[v].exact]
    others = [v for v in ranked if not looks[v].exact]
    exact = exact[: max(EXACT, CEILINGS_MOST - len(others))]
    return [*exact, *others[: CEILINGS_MOST - len(exact)]]


WIDTH, HEIGHT = 4.6, 3.85
PLACE = (0.115, 0.23, 0.575, 0.61)
ROOM = 74.0
"""Points for a name."""
NAMED = {True: 5, False: 4}
"""How many are named, of those that are exact and of the others: those nearest to the roof."""
MOST = 60
"""Paths that are drawn."""
ALIKE = 1.5
"""Where eight in ten intensities span less than so many times, points would lie on each other."""
FAR = 0.01
"""Of the fastest's FLOP/s: what does less next to no work, and would shrink all else."""


@dataclass(frozen=True)
class Roof:
    """What the machine was seen to do: all of it, where several processes take part."""

    flops: float
    """A second, by a matrix product."""
    memory: float
    """Bytes a second, by the largest copy."""
    cache: float
    """By the fastest."""

    def over(self, intensity: float) -> float:
        """FLOP a second at so many FLOP a byte, at the most."""
        return min(self.flops, self.cache * intensity)


@dataclass(frozen=True)
class RooflinePoint:
    """A variant at a length."""

    length: int
    intensity: float
    rate: float


def roof(scene: Scene) -> Roof | None:
    """Of the kind of machine that measured it; None where its ceilings were not measured."""
    header = scene.run.header
    node = (header.get("nodes") or {}).get(scene.regime.node) or {}
    found = node.get("ceilings") or header.get("ceilings") or {}
    flops = (found.get("flops") or {}).get(scene.regime.dtype)
    copies = {int(size): speed for size, speed in (found.get("copy") or {}).items() if speed}
    if not flops or not copies:
        return None
    many = scene.regime.world or 1
    return Roof(flops * many, copies[max(copies)] * many, max(copies.values()) * many)


def draw(scene: Scene, looks: Looks) -> Drawn | None:
    """A regime's; None without ceilings or without anything whose work is known."""
    above, known = roof(scene), _paths(scene)
    if above is None or not known:
        return None
    return _list(scene, looks, above, known) or _roofline(scene, looks, above, known)


def _list(
    scene: Scene, looks: Looks, above: Roof, known: Mapping[str, list[RooflinePoint]]
) -> Drawn | None:
    """A bar each at the longest length that most reach; None where intensities differ."""
    length = scene.regime.longest()
    at = {v: p for v, points in known.items() for p in points if p.length == length}
    every = sorted(p.intensity for points in known.values() for p in points)
    tenth = len(every) // 10
    if not at or length is None or every[-1 - tenth] >= ALIKE * every[tenth]:
        return None
    middle = every[len(every) // 2]
    words = {v: _said(looks[v], p, above) for v, p in at.items()}
    shares = {v: _share(p, above) for v, p in at.items()}
    title = f"Share of what the ceilings allow: {scene.regime.phase}, {length:,} tokens"
    best = {v: [p] for v, p in at.items()}
    said = (title, str(scene.regime), _finding(best, looks, above))
    note = (
        f"about {middle:.2g} FLOP for each byte that goes in or comes out: the copies and the\n"
        f"product measured here allow {above.over(middle) / 1e9:.3g} GFLOP/s at the most"
    )
    with drawn(shares, looks, words, said, note) as figure:
        return finish(
            figure,
            "roofline",
            f"roofline-{scene.name}",
            f"{title} ({scene.regime})",
            _told(best, looks, above),
            _rows(known, looks, above),
            regime=scene.number,
        )


def _roofline(
    scene: Scene, looks: Looks, above: Roof, known: Mapping[str, list[RooflinePoint]]
) -> Drawn:
    least = FAR * max(points[-1].rate for points in known.values())
    paths = {variant: points for variant, points in known.items() if points[-1].rate >= least}
    unit, name = (1e12, "TFLOP/s") if above.flops >= 1e12 else (1e9, "GFLOP/s")
    named = _named(paths, looks, above)
    faint = [v for v in _ranked(paths, above) if v not in named][: MOST - len(named)]
    dtype, phase = scene.regime.dtype, scene.regime.phase
    title = f"Roofline, {phase}: {name} of the mathematics"
    with sheet(WIDTH, HEIGHT) as figure:
        axes = figure.add_axes(PLACE)
        _frame(axes, above, paths, unit)
        for variant in faint:
            _path(axes, looks[variant], paths[variant], above, unit, bold=False)
        for variant in named:
            _path(axes, looks[variant], paths[variant], above, unit, bold=True)
        _labels(axes, named, paths, looks, unit)
        heading(figure, title, str(scene.regime), _finding(paths, looks, above))
        axes.set_xlabel("FLOP for each byte that goes in or comes out", labelpad=2)
        figure.text(
            0.02,
            0.018,
            f"roof: a product in {dtype}, {above.flops / unit:.3g} {name}; slope: a "
            f"copy from memory, {above.memory / 1e9:.3g} GB/s\n"
            f"(dashed: in cache, {above.cache / 1e9:.3g}); paths run over the lengths, to a "
            f"marker at the longest{_left_out(known, paths, len(named) + len(faint))}",
            fontsize=6.8,
            color=FAINT,
            va="bottom",
            linespacing=1.3,
        )
        return finish(
            figure,
            "roofline",
            f"roofline-{scene.name}",
            f"{title} ({scene.regime})",
            _told(paths, looks, above),
            _rows(known, looks, above),
            regime=scene.number,
        )


def _paths(scene: Scene) -> dict[str, list[RooflinePoint]]:
    found: dict[str, list[RooflinePoint]] = {}
    for length in scene.regime.lengths:
        for variant, record in scene.regime.timed(length).items():
            time, cost = time_of(record), record.cost
            if time and cost and cost.flops > 0 and cost.bytes > 0:
                point = RooflinePoint(length, cost.flops / cost.bytes, cost.flops / time.median_s)
                found.setdefault(variant, []).append(point)
    return found


def _left_out(known: Mapping[str, Any], shown: Mapping[str, Any], drawn: int) -> str:
    away = [shorten(variant, 60, 6.8) for variant in known if variant not in shown]
    some = ", ".join(away[:3]) + f" and {len(away) - 3} more" * (len(away) > 3)
    said = [f"far below, and not drawn: {some}"] * bool(away)
    said += [f"{len(shown) - drawn} more in the CSV"] * (len(shown) > drawn)
    return "\n" * bool(said) + "; ".join(said)


def _share(point: RooflinePoint, above: Roof) -> float:
    return point.rate / above.over(point.intensity)


def _ranked(paths: Mapping[str, list[RooflinePoint]], above: Roof) -> list[str]:
    """By how near they come to the roof where they are longest."""
    return sorted(paths, key=lambda v: (-_share(paths[v][-1], above), v))


def _named(paths: Mapping[str, list[RooflinePoint]], looks: Looks, above: Roof) -> list[str]:
    """Of those that are exact and of the others, those that come nearest."""
    ranked = _ranked(paths, above)
    kinds = (True, False)
    return [
        v for kind in kinds for v in [v for v in ranked if looks[v].exact is kind][: NAMED[kind]]
    ]


def _frame(axes: Axes, above: Roof, paths: Mapping[str, list[RooflinePoint]], unit: float) -> None:
    points = [point for some in paths.values() for point in some]
    xs, ys = [p.intensity for p in points], [p.rate / unit for p in points]
    ridge = above.flops / above.memory
    corner = above.flops / above.cache
    left, right = min(*xs, corner) / 1.6, max(*xs, ridge * 4) * 1.6
    low, high = min(ys) / 2, max(*ys, above.flops / unit) * 2
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, high))
    axes.minorticks_off()
    axes.set_xticks(every := decimal(left, right), [three(x) for x in every])
    axes.set_yticks(every := decimal(low, high), [three(y) for y in every])
    for speed, dash in ((above.memory, "-"), (above.cache, (0, (4, 2)))):
        corner = above.flops / speed
        slope = [(x, speed * x / unit) for x in (left, corner)]
        axes.plot(*zip(*slope, strict=True), color=INK, linewidth=1.0, linestyle=dash)
    top = above.flops / unit
    axes.plot([above.flops / above.cache, right], [top, top], color=INK, linewidth=1.0)


def _path(
    axes: Axes, look: Look, points: list[RooflinePoint], above: Roof, unit: float, *, bold: bool
) -> None:
    xs, ys = [p.intensity for p in points], [p.rate / unit for p in points]
    axes.plot(
        xs,
        ys,
        linewidth=1.1 if bold else 0.6,
        alpha=1 if bold else 0.5,
        linestyle=look.dash if bold else "-",
        markevery=[len(xs) - 1],
        gid=look.gid(_said(look, points[-1], above)),
        **look.marks(4.8 if bold else 3.2),
    )


def _said(look: Look, point: RooflinePoint, above: Roof) -> str:
    """For where a pointer rests."""
    return (
        f"{look.variant}: {point.length} tokens, {point.rate / 1e9:.3g} GFLOP/s, "
        f"{_share(point, above):.0%} of the roof"
    )


def _labels(
    axes: Axes,
    named: list[str],
    paths: Mapping[str, list[RooflinePoint]],
    looks: Looks,
    unit: float,
) -> None:
    """Names at the right, a thin line from each to its marker."""
    if not named:
        return
    across = {v: _part(paths[v][-1].intensity, axes.get_xlim()) for v in named}
    heights = {v: _part(paths[v][-1].rate / unit, axes.get_ylim()) for v in named}
    places = spread(list(heights.values()), 0.062, 0.02, 0.98)
    for variant, height in zip(named, places, strict=True):
        look = looks[variant]
        axes.plot(
            [across[variant], 1.03],
            [heights[variant], height],
            transform=axes.transAxes,
            clip_on=False,
            color=FAINT,
            linewidth=0.4,
            zorder=1.5,
            gid=look.name,
        )
        axes.plot(
            [1.04, 1.075, 1.11],
            [height] * 3,
            transform=axes.transAxes,
            clip_on=False,
            linestyle=look.dash,
            linewidth=1.1,
            markevery=[1],
            gid=look.name,
            **look.marks(4.2),
        )
        axes.text(
            1.13,
            height,
            shorten(variant, ROOM, 7.5),
            transform=axes.transAxes,
            fontsize=7.5,
            va="center_baseline",
            gid=look.name,
        )


def _part(value: float, ends: tuple[float, float]) -> float:
    """Where on a logarithmic axis a value lies, from 0 to 1."""
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def _nearest(
    paths: Mapping[str, list[RooflinePoint]], looks: Looks, above: Roof
) -> tuple[str, float, str]:
    """Who comes nearest to the roof, its share, and of what: of what is exact if anything is."""
    exact = {v: _share(points[-1], above) for v, points in paths.items() if looks[v].exact}
    known = exact or {v: _share(points[-1], above) for v, points in paths.items()}
    best = max(known, key=lambda v: (known[v], v))
    return best, known[best], " of what is exact" * bool(exact)


def _finding(paths: Mapping[str, list[RooflinePoint]], looks: Looks, above: Roof) -> str:
    best, share, which = _nearest(paths, looks, above)
    return f"Nearest to the ceilings{which}: {best}, {share:.0%} of what they allow"


def _told(paths: Mapping[str, list[RooflinePoint]], looks: Looks, above: Roof) -> str:
    best, share, which = _nearest(paths, looks, above)
    return (
        f"{best} comes nearest to the roof{which}: it does "
        f"{share:.0%} of what the product and the fastest copy measured here allow"
    )


def _rows(
    paths: Mapping[str, list[RooflinePoint]], looks: Looks, above: Roof
) -> Iterator[tuple[Any, ...]]:
    yield "variant", "family", "computes", "length", "flop_per_byte", "flop_per_s", "share_of_roof"
    for variant, points in paths.items():
        look = looks[variant]
        for p in points:
            yield (
                variant,
                look.family,
                look.computes,
                p.length,
                p.intensity,
                p.rate,
                _share(p, above),
            )
