"""How figures look: a look for each variant, the key, names beside lines, and axes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.report.figures import sheet as labels
from attnbench.report.figures.sheet import FAINT, HUES, INK, PAPER
from impls import own_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDE = 331.0
"""Points of width of most figures."""
MARKERS = "os^DvXP*<>"
"""Outlines that differ when they are small, as those with five and more sides don't."""
FIRST = (
    "sdpa", "sdpa.flash", "chunked", "baddbmm", "flex", "inplace", "online", "compiled",
)  # fmt: skip
"""What is compared most: each has a hue that no other of these has."""
SHIFT = 3
"""By so many hues the list is turned each time that the hues are used up."""
HALF = "left"
FILLS = {"softmax": "full", "its own operator": "none"}
DASHES: dict[str, str | tuple[int, tuple[float, ...]]] = {
    "full": "-",
    HALF: (0, (4, 2)),
    "none": (0, (1.2, 1.6)),
}
"""Of the lines of what is filled so."""
MEANINGS = {
    "full": "exactly softmax",
    HALF: "near it, or on its own pattern",
    "none": "another operator",
}


@dataclass(frozen=True)
class Look:
    """The look of a variant, the same in every report: its name alone decides it."""

    number: int
    """Its place among all variants of the report."""
    variant: str
    family: str
    computes: str
    place: int
    """In the list of variants built in; of any other a number that its name gives."""

    @property
    def exact(self) -> bool:
        """Whether it computes softmax attention and nothing else."""
        return self.computes == "softmax"

    @property
    def _turns(self) -> tuple[int, int]:
        """Which of the hues, and how often all of them were used up before."""
        turn, at = divmod(self.place, len(HUES))
        return (at + turn * SHIFT) % len(HUES), turn

    @property
    def hue(self) -> str:
        """The name of its colour; neighbours in the list differ."""
        return [*HUES][self._turns[0]]

    @property
    def colour(self) -> str:
        """Its colour on white paper."""
        return HUES[self.hue]

    @property
    def marker(self) -> str:
        """Its outline, as matplotlib calls it: those of one hue differ in it."""
        return MARKERS[sum(self._turns) % len(MARKERS)]

    @property
    def fill(self) -> str:
        """Full, half or hollow, by what it computes."""
        return FILLS.get(self.computes, HALF)

    @property
    def dash(self) -> str | tuple[int, tuple[float, ...]]:
        """Of its lines, by what it computes."""
        return DASHES[self.fill]

    def marks(self, size: float = 4.0) -> dict[str, Any]:
        """Its marker, as arguments of matplotlib's ``plot``."""
        return filled(self.fill, self.colour, self.marker, size)


Looks = Mapping[str, Look]


def filled(fill: str, colour: str, marker: str = "o", size: float = 4.0) -> dict[str, Any]:
    """A marker that is full, half full or hollow, as arguments of matplotlib's ``plot``."""
    half = fill == HALF
    return {
        "marker": marker,
        "markersize": size * (1.5 if marker == "*" else 1.0),
        "markeredgewidth": 0.9,
        "color": colour,
        "markeredgecolor": colour,
        "fillstyle": HALF if half else "full",
        "markerfacecolor": PAPER if fill == "none" else colour,
        **({"markerfacecoloralt": PAPER} if half else {}),
    }


def looks(records: Iterable[Any]) -> dict[str, Look]:
    """A look for each variant of these records, in their order."""
    known = {name: place for place, name in enumerate(dict.fromkeys((*FIRST, *own_rows())))}
    seen: dict[str, tuple[str, str]] = {}
    for record in records:
        family, computes = seen.get(record.variant, ("", ""))
        seen[record.variant] = (family or record.family, computes or record.computes)
    made = {}
    for number, (variant, both) in enumerate(seen.items()):
        other = zlib.crc32(variant.encode("utf-8", "replace")) % (len(HUES) * len(MARKERS))
        made[variant] = Look(number, variant, *both, known.get(variant, other))
    return made


Item = tuple[str, dict[str, Any]]
"""A word of a key, and the marker that it explains."""
SIZE, LINE = 7.5, 11.0


def of(looks: Iterable[Look]) -> list[Item]:
    """A key for the fillings of these, where they aren't all full."""
    fills = {look.fill for look in looks}
    known = MEANINGS.items() if fills - {"full"} else ()
    return [(text, filled(fill, FAINT)) for fill, text in known if fill in fills]


def _item_width(item: Item) -> float:
    """With the marker before it and the gap behind it."""
    return 8 + labels.width(item[0], SIZE) + 9


def lines(items: Sequence[Item], room: float) -> list[list[Item]]:
    """The items of a key, by lines that are no wider than the room."""
    made: list[list[Item]] = []
    used = room
    for item in items:
        if used + _item_width(item) > room:
            made.append([])
            used = 0.0
        made[-1].append(item)
        used += _item_width(item)
    return made


def put(figure: Figure, x: float, y: float, some: Sequence[Sequence[Item]]) -> None:
    """Draw a key, its last line at a place of the figure."""
    for number, items in enumerate(reversed(some)):
        at, level = x, y + number * LINE
        for item in items:
            labels.line(figure, [at + 3], [level + 2.6], linestyle="none", **item[1])
            labels.write(figure, at + 8, level, item[0], SIZE, color=INK)
            at += _item_width(item)


class End(NamedTuple):
    """The end of a line, in points, and what is written beside it."""

    look: Look | None
    """None for a line of reference."""
    at: tuple[float, float]
    name: str
    behind: str = ""


NAME_STEP = 11.0
NAME_PLACE = 25.0
"""Points from the axes to the names: between them is a piece of each line."""
REFERENCE: dict[str, Any] = {"color": FAINT, "linewidth": 1.6, "alpha": 0.55}


def name_ends(
    figure: Figure,
    ends: Sequence[End],
    right: float,
    low: float,
    high: float,
    *,
    lines: bool = True,
) -> None:
    """Names at the right of axes, each with a thread to the end of its line and a piece of it.

    Without lines the ends are points, and of each there is its mark.
    """
    edge = figure.get_figwidth() * 72
    places = labels.spread([end.at[1] for end in ends], NAME_STEP, low, high)
    for (look, (x, y), name, behind), at in zip(ends, places, strict=True):
        if look is None:
            labels.line(figure, [right + 2, right + 5, right + 22], [y, at, at], **REFERENCE)
            labels.write(figure, right + NAME_PLACE, at - 2.7, name, 8, color=FAINT)
            continue
        thread = {"color": look.colour, "linewidth": 0.5, "alpha": 0.7}
        labels.line(figure, [x + 3, right + 5], [y, at], **thread)
        dash = look.dash if lines else "none"
        piece = {"linestyle": dash, "linewidth": 1.1, "markevery": [1], **look.marks(3.7)}
        labels.line(figure, [right + 6, right + 14, right + 22], [at] * 3, **piece)
        taken = labels.width(behind, 7.5) + 5 if behind else 3
        text = labels.shorten(name, edge - right - NAME_PLACE - 2 - taken, 8)
        labels.write(figure, right + NAME_PLACE, at - 2.7, text, 8)
        if behind:
            labels.write(figure, edge - 3, at - 2.7, behind, 7.5, color=FAINT, ha="right")


def limits(values: Iterable[float], least: float = 6.0, room: float = 0.06) -> tuple[float, float]:
    """Ends of a logarithmic axis that hold the values, one at least ``least`` times the other."""
    some = list(values)
    low, high = min(some), max(some)
    wider = max(1.0, (least * low / high) ** 0.5)
    low, high = low / wider, high * wider
    edge = (high / low) ** room
    return low / edge, high * edge


def scale(
    axes: Axes,
    which: str,
    ends: tuple[float, float],
    say: Callable[[float], str],
    base: int = 10,
    most: int = 6,
) -> None:
    """Make the axis ``x`` or ``y`` logarithmic, with about ``most`` ticks at powers of the base.

    Where the axis is short, ticks are at twice and five times powers of ten too.
    """
    from matplotlib.ticker import LogLocator

    low, high = ends
    subs = (1.0, 2.0, 5.0) if base == 10 and high / low < 100 else (1.0,)
    ticks = LogLocator(base, subs, numticks=most + 1).tick_values(low, high)
    inside = [tick for tick in ticks if low <= tick <= high]
    axes.set(**{f"{which}scale": "log", f"{which}lim": ends})
    getattr(axes, f"{which}axis").set_ticks(inside, [say(tick) for tick in inside])
    axes.minorticks_off()


def fitting(words: Sequence[str], places: Sequence[float], size: float) -> list[str]:
    """The words of ticks, those empty that would touch the next one."""
    kept, edge = list(words), math.inf
    for number in reversed(range(len(kept))):
        half = labels.width(kept[number], size) / 2
        if places[number] + half > edge - 3:
            kept[number] = ""
        else:
            edge = places[number] - half
    return kept


def number(value: float) -> str:
    """A number for a table: six digits, or all of a whole number."""
    return f"{value:.0f}" if value.is_integer() else f"{value:.6g}"
