"""How a variant looks, everywhere: its family's colour, and a marker and dash that no other has.

What it computes shows in how the marker is filled: full is exactly softmax, half is near it or
exact on a pattern of its own, hollow is another operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from attnbench.report.figures.palette import FAMILIES, OTHER, PAPER
from attnbench.report.figures.sheet import clean

MARKERS = "os^DvXP*<>"
"""Outlines that are unlike when they are small, as those with five and more sides are not."""
DASHES = (
    "-", (0, (4, 2)), (0, (1.2, 1.6)), (0, (7, 2, 1.2, 2)), (0, (4, 1.5, 1.2, 1.5, 1.2, 1.5)),
)  # fmt: skip
STAR = 1.5
"""What lies within its points is small."""
FILLS = {"softmax": "full", "its own operator": "none"}
HALF = "left"
FILLED = {"full": "exactly softmax", HALF: "near it, or on its own pattern",
          "none": "another operator"}  # fmt: skip
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
        "marker": marker, "markersize": size * (STAR if marker == "*" else 1.0),
        "markeredgewidth": 0.9, "color": colour, "markeredgecolor": colour,
        "fillstyle": HALF if half else "full",
        "markerfacecolor": PAPER if fill == "none" else colour,
        **({"markerfacecoloralt": PAPER} if half else {}),
    }  # fmt: skip


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
    order = sorted(seen, key=lambda v: (known.index(seen[v][0]) if seen[v][0] in known else 99,
                                        seen[v][0]))  # fmt: skip
    made = {}
    for number, variant in enumerate(order):
        family, computes = seen[variant]
        made[variant] = Look(
            number, variant, family, computes, FAMILIES.get(family, OTHER),
            *_line(number), FILLS.get(computes, HALF),
        )  # fmt: skip
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
