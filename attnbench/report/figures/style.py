"""How a figure looks: its colours, its key, its labels and its ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from attnbench.report.figures.sheet import (
    FAINT,
    FAMILIES,
    INK,
    OTHER,
    PAPER,
    clean,
    line,
    shorten,
    width,
    write,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MARKERS = "os^DvXP*<>"
"""Outlines that are unlike when they are small, as those with five and more sides are not."""
DASHES = (
    "-",
    (0, (4, 2)),
    (0, (1.2, 1.6)),
    (0, (7, 2, 1.2, 2)),
    (0, (4, 1.5, 1.2, 1.5, 1.2, 1.5)),
)
STAR = 1.5
"""What lies within its points is small."""
FILLS = {"softmax": "full", "its own operator": "none"}
HALF = "left"
FILLED = {
    "full": "exactly softmax",
    HALF: "near it, or on its own pattern",
    "none": "another operator",
}
"""What the filling of a marker says."""


@dataclass(frozen=True)
class Look:
    """One variant's."""

    number: int
    """Its place among all of the report; ``v7`` is its class in every figure."""
    variant: str
    family: str
    computes: str
    colour: str
    marker: str
    dash: str | tuple[int, tuple[float, ...]]
    fill: str

    @property
    def name(self) -> str:
        """Its class in every figure, and its name in the page's address."""
        return f"v{self.number}"

    @property
    def exact(self) -> bool:
        """Whether it computes softmax attention and nothing else."""
        return self.computes == "softmax"

    def gid(self, words: str = "") -> str:
        """What an artist of it is called, with the words to show where a pointer rests on it."""
        return f"{self.name}|{clean(words)}" if words else self.name

    def marks(self, size: float = 4.0) -> dict[str, Any]:
        """Its marker, as matplotlib's ``plot`` takes it; what is hollow is so on any ground."""
        return filled(self.fill, self.colour, self.marker, size)


Looks = Mapping[str, Look]


def filled(fill: str, colour: str, marker: str = "o", size: float = 4.0) -> dict[str, Any]:
    """A marker that is full, half full or hollow, as matplotlib's ``plot`` takes it."""
    half = fill == HALF
    return {
        "marker": marker,
        "markersize": size * (STAR if marker == "*" else 1.0),
        "markeredgewidth": 0.9,
        "color": colour,
        "markeredgecolor": colour,
        "fillstyle": HALF if half else "full",
        "markerfacecolor": PAPER if fill == "none" else colour,
        **({"markerfacecoloralt": PAPER} if half else {}),
    }


class OfAVariant(Protocol):
    """A record, or whatever else says whose it is."""

    @property
    def variant(self) -> str: ...  # noqa: D102
    @property
    def family(self) -> str: ...  # noqa: D102
    @property
    def computes(self) -> str: ...  # noqa: D102


def looks(records: Iterable[OfAVariant]) -> dict[str, Look]:
    """A look for each variant of these records, by families in their fixed order.

    Any fifty that follow each other differ in marker or dash, and neighbours in both.
    """
    seen: dict[str, tuple[str, str]] = {}
    for record in records:
        family, computes = seen.get(record.variant, ("", ""))
        seen[record.variant] = (family or record.family, computes or record.computes)
    known = list(FAMILIES)
    order = sorted(
        seen, key=lambda v: (known.index(seen[v][0]) if seen[v][0] in known else 99, seen[v][0])
    )
    made = {}
    for number, variant in enumerate(order):
        family, computes = seen[variant]
        made[variant] = Look(
            number,
            variant,
            family,
            computes,
            FAMILIES.get(family, OTHER),
            *_line(number),
            FILLS.get(computes, HALF),
        )
    return made


UNKNOWN = 1000
"""Numbers from here on are of variants that a page does not know otherwise."""


def on_a_page(some: Iterable[OfAVariant], known: Looks) -> dict[str, Look]:
    """A look for each; who is known on the page it lies on looks as it does there."""
    return {
        name: known.get(name) or replace(look, number=UNKNOWN * bool(known) + look.number)
        for name, look in looks(some).items()
    }


def _line(number: int) -> tuple[str, str | tuple[int, tuple[float, ...]]]:
    """A marker and a dash: all markers in turn, and each time with another dash."""
    turn, place = divmod(number, len(MARKERS))
    return MARKERS[place], DASHES[(place + 3 * turn) % len(DASHES)]


Item = tuple[str, dict[str, Any]]
"""A word of a key, and the marker it explains."""
SIZE, LINE = 7.5, 11.0


def lines(items: Sequence[Item], room: float) -> list[list[Item]]:
    """The items of a key, by lines that are no wider than the room."""
    made: list[list[Item]] = []
    used = room
    for item in items:
        wide = item_width(item)
        if used + wide > room:
            made.append([])
            used = 0.0
        made[-1].append(item)
        used += wide
    return made


def item_width(item: Item) -> float:
    """Of one item, with the gap behind it."""
    return 8 + width(item[0], SIZE) + 9


def put(figure: Figure, x: float, y: float, some: Sequence[Sequence[Item]]) -> None:
    """What colours and markers mean, the last line at a place of the figure."""
    for number, items in enumerate(reversed(some)):
        at, level = x, y + number * LINE
        for item in items:
            line(figure, [at + 3], [level + 2.6], linestyle="none", **item[1])
            write(figure, at + 8, level, item[0], SIZE, color=INK)
            at += item_width(item)


def of(looks: Iterable[Look]) -> list[Item]:
    """What the colours and, where they differ, the fillings of these mean."""
    some = list(looks)
    order = {family: number for number, family in enumerate(FAMILIES)}
    families = sorted({look.family for look in some}, key=lambda f: (order.get(f, 99), f))
    items: list[Item] = [
        (
            shorten(family or "other", 80, SIZE),
            filled("full", FAMILIES.get(family, OTHER), "s", 4.5),
        )
        for family in families
    ]
    fills = {look.fill for look in some}
    if fills - {"full"}:
        items += [(said, filled(fill, FAINT)) for fill, said in FILLED.items() if fill in fills]
    return items


HIGH = 0.17
"""Inches of a row."""
LEFT, RIGHT = 0.335, 0.845
"""Where bars begin and where the longest may end, as shares of a sheet of ``WIDTH`` inches."""
WIDTH = 4.6
ROOM = 88.0
"""Points for a name."""


def frame(axes: Axes, count: int) -> None:
    """Room for so many rows, the first one at the top, and lines upwards only."""
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", visible=False)


def name(axes: Axes, row: int, look: Look, amount: str) -> None:
    """A row's mark, name and amount."""
    sides = axes.get_yaxis_transform()
    axes.plot([-0.035], [row], transform=sides, clip_on=False, gid=look.name, **look.marks(4.2))
    axes.text(
        -0.065,
        row,
        shorten(look.variant, ROOM, 7.5),
        transform=sides,
        ha="right",
        va="center_baseline",
        fontsize=7.5,
        gid=look.name,
    )
    axes.text(1.02, row, amount, transform=sides, va="center_baseline", fontsize=7.5, gid=look.name)


def bar(
    axes: Axes, row: int, ends: tuple[float, float], look: Look, words: str, alpha: float = 1.0
) -> None:
    """A piece of a row's bar."""
    from matplotlib.patches import Rectangle

    if ends[1] > ends[0]:
        axes.add_artist(
            Rectangle(
                (ends[0], row - 0.36),
                ends[1] - ends[0],
                0.72,
                facecolor=look.colour,
                alpha=alpha,
                linewidth=0,
                gid=look.gid(words),
            )
        )


MOST = 6
"""Ticks on an axis."""


def limits(values: Iterable[float], least: float = 6.0, room: float = 0.06) -> tuple[float, float]:
    """Ends of an axis that hold the values and span so many times or more."""
    found = sorted(values)
    low, high = found[0], found[-1]
    wider = max(1.0, (least * low / high) ** 0.5)
    low, high = low / wider, high * wider
    edge = (high / low) ** room
    return low / edge, high * edge


def decimal(low: float, high: float) -> list[float]:
    """Ticks at 1, 2 and 5 times powers of ten, or at powers of ten alone where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    fine = [d * 10.0**k for k in range(first, last + 1) for d in (1, 2, 5)]
    inside = [tick for tick in fine if low <= tick <= high]
    if len(inside) <= MOST:
        return inside
    powers = [k for k in range(first, last + 1) if low <= 10.0**k <= high]
    if len(powers) < 2:
        return [tick for tick in inside if f"{tick:e}"[0] != "2"]
    step = math.ceil(len(powers) / MOST)
    return [10.0**k for k in powers if k % step == 0]


def binary(low: float, high: float) -> list[float]:
    """Ticks at powers of two, at every so many of them."""
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    step = next((s for s in (1, 2, 3, 5, 10, 20) if len(powers) <= s * MOST), 40)
    return [2.0**k for k in powers if k % step == 0]


def linear(top: float) -> list[float]:
    """Ticks from nought on, at 1, 2 or 5 times a power of ten; six at the most."""
    power = 10.0 ** math.floor(math.log10(top / 5))
    step = next(d * power for d in (1, 2, 5, 10) if top / (d * power) < MOST)
    return [k * step for k in range(int(top / step * (1 + 1e-9)) + 1)]


def fitting(
    words: Sequence[str], places: Sequence[float], size: float, end: float = math.inf
) -> list[str]:
    """The words of ticks; empty what would touch the next one's, or reach beyond the end."""
    kept = list(words)
    edge = end + 3
    for number in reversed(range(len(kept))):
        half = width(kept[number], size) / 2
        if places[number] + half > edge - 3:
            kept[number] = ""
        else:
            edge = places[number] - half
    return kept


def number(value: float) -> str:
    """For a table: six digits, or all of a whole number."""
    return f"{value:.0f}" if value.is_integer() else f"{value:.6g}"


def share(limits: tuple[float, float], value: float) -> float:
    """Where a value lies on an axis of logarithms, as a share of its span."""
    low, high = limits
    return math.log(value / low) / math.log(high / low)
