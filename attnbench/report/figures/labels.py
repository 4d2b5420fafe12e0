"""Words in a figure: how wide they are, made short, and put where they lie on nothing else.

All is in points. Widths are those of a wide font, so that words fit in the reader's own too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attnbench.report.figures.palette import FAINT
from attnbench.report.figures.sheet import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ELLIPSIS = "…"
Box = tuple[float, float, float, float]
"""Left, bottom, right, top."""


@lru_cache(maxsize=8192)
def width(text: str, size: float, weight: str = "normal") -> float:
    """How wide a text is in DejaVu Sans, which is wider than what most systems show."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # it is as wide as a box
        return float(text_to_path.get_text_width_height_descent(text, font, False)[0])


@lru_cache(maxsize=8192)
def shorten(text: str, room: float, size: float, weight: str = "normal") -> str:
    """The text, or as much of its beginning as there is room for, and an ellipsis."""
    text = " ".join(clean(text[:400]).split())
    if width(text, size, weight) <= room:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if width(text[:middle] + ELLIPSIS, size, weight) <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip(" ,.") + ELLIPSIS


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near the wanted ones as can be, a gap or more apart and within the limits.

    Where there is no room for all gaps, they shrink alike. What wants the same place keeps its
    order.
    """
    if not wanted:
        return []
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[list[float]] = []  # of each: how many, and the sum of what their first one wants
    for rank, i in enumerate(order):
        groups.append([1, min(max(wanted[i], low), high) - rank * gap])
        while len(groups) > 1 and groups[-2][1] / groups[-2][0] > groups[-1][1] / groups[-1][0]:
            count, total = groups.pop()
            groups[-1][0] += count
            groups[-1][1] += total
    firsts = [total / count for count, total in groups for _ in range(int(count))]
    top = high - (len(order) - 1) * gap
    placed = [0.0] * len(wanted)
    for rank, (i, first) in enumerate(zip(order, firsts, strict=True)):
        placed[i] = min(max(first, low), top) + rank * gap
    return placed


@dataclass(frozen=True)
class Spot:
    """A point that wants a name."""

    x: float
    y: float
    text: str


SIDES = (
    (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (0.5, 1), (0.5, -1),
    (-0.5, 1), (-0.5, -1),
)  # fmt: skip
"""Of a point, to the right and up, where its name may stand: the best first."""
HEIGHT = 1.2
"""Of a line of words, in sizes of its letters."""


THREAD = 6.0
"""A name that is further from its point has a line to it."""
CLEAR = 1.5
"""Another's point is further from a name without a line than its own, by this and more."""


def place(spots: Sequence[Spot], taken: Iterable[Box], frame: Box, size: float, far: float = 30.0,
          points: Sequence[tuple[float, float]] = ()) -> list[Box | None]:  # fmt: skip
    """Where each name goes; None where it would lie on something wherever it stood nearby.

    The first in the list choose first. ``taken``: what no name may lie on, the points' marks among
    them. No name lies on the way from another to its point. ``points``: all that a name could be
    taken for; where another is as near as its own, a name stands further off, on a thread that
    crosses none of them.
    """
    full, names, ways = list(taken), list[Box](), list[Box]()
    found: list[Box | None] = []
    for spot in spots:
        wide, high = width(spot.text, size), HEIGHT * size
        free = (
            (box, way) for box, way in _around(spot, wide, high, far)
            if _inside(box, frame) and not any(over(box, other) for other in (*full, *ways))
            and not any(over(step, name) for step in way for name in names)
            and _is_its_own(spot, box, way, points)
        )  # fmt: skip
        box, way = next(free, (None, []))
        found.append(box)
        if box:
            full.append(margin(box))
            names.append(box)
            ways += way
    return found


def _around(spot: Spot, wide: float, high: float, far: float) -> Iterator[tuple[Box, list[Box]]]:
    """Places near a point, and the way there: beside it, above, below, then further off."""
    for distance in (5.0, 9.0, 15.0, 22.0, 30.0, 40.0):
        if distance > far:
            return
        for right, up in SIDES:
            step = distance if 0 in (right, up) else distance * 0.6
            x = spot.x + right * step - wide * (1 - right) / 2
            y = spot.y + up * step - high * (1 - up) / 2
            box = (x, y, x + wide, y + high)
            yield box, way(spot.x, spot.y, *nearest(spot, box))


def nearest(spot: Spot, box: Box) -> tuple[float, float]:
    """The place of a box that is nearest to a point."""
    return min(max(spot.x, box[0]), box[2]), min(max(spot.y, box[1]), box[3])


def margin(box: Box) -> Box:
    """A name's place, with as much around it as keeps the next one apart."""
    return (box[0] - 3, box[1] - 1, box[2] + 3, box[3] + 1)


def threaded(spot: Spot, box: Box) -> bool:
    """Whether a name is so far from its point that a line leads there."""
    return away(spot.x, spot.y, box) > THREAD


def away(x: float, y: float, box: Box) -> float:
    """How far a point is from a place."""
    near_x, near_y = nearest(Spot(x, y, ""), box)
    return math.hypot(near_x - x, near_y - y)


def _is_its_own(spot: Spot, box: Box, way: Sequence[Box],
                points: Sequence[tuple[float, float]]) -> bool:  # fmt: skip
    """Whether nobody could take a name there for another point's."""
    others = [at for at in points if at != (spot.x, spot.y)]
    twins = len(points) - len(others) > 1
    if threaded(spot, box):
        apart = [(x, y) for x, y in others if math.hypot(x - spot.x, y - spot.y) > THREAD]
        return not any(over(step, (x - 2, y - 2, x + 2, y + 2)) for step in way for x, y in apart)
    own = away(spot.x, spot.y, box)
    return not twins and all(away(x, y, box) > own + CLEAR for x, y in others)


def way(x: float, y: float, to_x: float, to_y: float, step: float = 3.0) -> list[Box]:
    """A line, as a row of small boxes."""
    count = max(1, math.ceil(math.hypot(to_x - x, to_y - y) / step))
    along = [(x + (to_x - x) * n / count, y + (to_y - y) * n / count) for n in range(count + 1)]
    return [(a - 0.6, b - 0.6, a + 0.6, b + 0.6) for a, b in along]


def _inside(box: Box, frame: Box) -> bool:
    return (
        box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]
    )  # fmt: skip


def over(one: Box, other: Box) -> bool:
    """Whether two places share any of the paper."""
    return (
        one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
    )  # fmt: skip


def write(figure: Figure, x: float, y: float, text: str, size: float = 8.0, **more: Any) -> None:
    """Words at a place of the figure, in points from its lower left."""
    wide, high = figure.get_size_inches() * 72
    figure.text(x / wide, y / high, text, fontsize=size, **more)


def line(figure: Figure, xs: Sequence[float], ys: Sequence[float], **more: Any) -> None:
    """A line, or a marker, at places of the figure, in points from its lower left."""
    from matplotlib.lines import Line2D

    wide, high = figure.get_size_inches() * 72
    figure.add_artist(Line2D([x / wide for x in xs], [y / high for y in ys], **more))


FINDING = 11.5
"""What a finding takes of a figure's height."""
FITS = 0.97
"""Of the room for it, as much as a text may take that is drawn in pixels."""


def heading(figure: Figure, title: str, under: str, finding: str = "",
            left: float = 6.0) -> None:  # fmt: skip
    """What is drawn, what it shows, and in lesser words of what; as wide as there is room."""
    wide, high = figure.get_size_inches() * 72
    room = wide - left - 4
    write(figure, left, high - 13, shorten(title, room, 9.5, "bold"), 9.5, weight="bold")
    if finding:
        write(figure, left, high - 24.5, shorten(finding, FITS * room, 8), 8)
    below = 24.5 + FINDING * bool(finding)
    write(figure, left, high - below, shorten(under, room, 8), 8, color=FAINT)


LISTED = 12
"""There is never room for more names."""


def listed(names: Sequence[str], room: float, size: float) -> str:
    """As many whole names as there is room for, and how many more there are: ``a, b +3``."""
    for count in range(min(len(names), LISTED), 0, -1):
        more = f" +{len(names) - count}" * (count < len(names))
        text = ", ".join(names[:count]) + more
        if width(text, size) <= room:
            return text
    more = f" +{len(names) - 1}" * (len(names) > 1)
    return shorten(names[0], room - width(more, size), size) + more if names else ""
