"""The look of each variant, a legend, and the ends of logarithmic axes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from attnbench.report.figures.sheet import FAINT, HUES, PAPER, shorten
from impls import own_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MARKERS = "os^DvXP*<>"
"""Outlines that differ when they are small, as those with five and more sides don't."""
FIRST = ["sdpa", "sdpa.flash", "chunked", "baddbmm", "flex", "inplace", "online", "compiled"]
"""The variants that are compared most: each has a hue that no other of these has."""
SHIFT = 3
"""The list of hues is turned by so many each time that it is used up."""
HALF = "left"
FILLS = {"softmax": "full", "its own operator": "none"}
MEANINGS = {
    "full": "exactly softmax",
    HALF: "near it, or\non its own pattern",
    "none": "another operator",
}


@dataclass(frozen=True)
class VariantLook:
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
        """True where it computes softmax attention and nothing else."""
        return self.computes == "softmax"

    @property
    def hue(self) -> str:
        """The name of its colour; neighbours in the list differ."""
        turn, at = divmod(self.place, len(HUES))
        return [*HUES][(at + turn * SHIFT) % len(HUES)]

    @property
    def colour(self) -> str:
        """Its colour on white paper."""
        return HUES[self.hue]

    @property
    def marker(self) -> str:
        """Its outline, as matplotlib calls it: those of one hue differ in it."""
        turn = self.place // len(HUES)
        return MARKERS[([*HUES].index(self.hue) + turn) % len(MARKERS)]

    @property
    def fill(self) -> str:
        """Full, half or hollow, by what it computes."""
        return FILLS.get(self.computes, HALF)

    @property
    def marking(self) -> tuple[str, str, str]:
        """All that its mark is."""
        return self.hue, self.marker, self.fill

    def marks(self, size: float = 4.0) -> dict[str, Any]:
        """Its marker, as arguments of matplotlib's ``plot``."""
        return filled(self.fill, self.colour, self.marker, size)


def filled(fill: str, colour: str, marker: str = "o", size: float = 4.0) -> dict[str, Any]:
    """A marker that is full, half full or hollow, as arguments of matplotlib's ``plot``."""
    return {
        "marker": marker,
        "markersize": size * (1.5 if marker == "*" else 1.0),
        "markeredgewidth": 0.9,
        "color": colour,
        "markeredgecolor": colour,
        "fillstyle": HALF if fill == HALF else "full",
        "markerfacecolor": PAPER if fill == "none" else colour,
        **({"markerfacecoloralt": PAPER} if fill == HALF else {}),
    }


@cache
def _places() -> dict[str, int]:
    """The places of variants built in: no two have a hue, an outline and a filling in common."""
    places: dict[str, int] = {}
    taken, place = set[tuple[str, str, str]](), 0
    for name in dict.fromkeys((*FIRST, *own_rows())):
        computes = own_rows()[name].computes
        while (look := VariantLook(0, name, "", computes, place)).marking in taken:
            place += 1
        taken.add(look.marking)
        places[name], place = place, place + 1
    return places


def looks(records: Iterable[Any]) -> dict[str, VariantLook]:
    """A look for each variant of these records, in their order."""
    variants: dict[str, tuple[str, str]] = {}
    for record in records:
        family, computes = variants.get(record.variant, ("", ""))
        variants[record.variant] = (family or record.family, computes or record.computes)
    looks = {}
    for number, (variant, both) in enumerate(variants.items()):
        other = zlib.crc32(variant.encode("utf-8", "replace")) % (len(HUES) * len(MARKERS))
        looks[variant] = VariantLook(number, variant, *both, _places().get(variant, other))
    return looks


NAMES = 112.0
"""Points beside axes that a legend has, names included."""


def legend(figure: Figure, looks: Iterable[VariantLook]) -> None:
    """The marks of variants, in this order at the right, and what their fillings mean."""
    from matplotlib.lines import Line2D

    looks = list(looks)
    marks = {shorten(look.variant, NAMES - 36, 8): look.marks() for look in looks}
    fills = {look.fill for look in looks}
    if fills - {"full"}:
        marks |= {words: filled(x, FAINT) for x, words in MEANINGS.items() if x in fills}
    handles = [Line2D([], [], label=x, linestyle="none", **mark) for x, mark in marks.items()]
    wide, high = figure.get_size_inches() * 72
    at: dict[str, Any] = {"loc": "upper left", "borderaxespad": 0, "frameon": False}
    at["bbox_to_anchor"] = (1 - NAMES / wide, 1 - 44 / high)
    figure.legend(handles=handles, fontsize=8, handlelength=2.4, handletextpad=0.5, **at)


def limits(values: Iterable[float], least: float) -> tuple[float, float]:
    """Ends of a logarithmic axis that hold the values, one at least ``least`` times the other."""
    some = list(values)
    low, high = min(some), max(some)
    wider = max(1.0, (least * low / high) ** 0.5)
    low, high = low / wider, high * wider
    edge = (high / low) ** 0.06  # free at either end
    return low / edge, high * edge
