"""A figure's key: what its colours mean, and how its markers are filled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.report.figures.labels import line, shorten, width, write
from attnbench.report.figures.looks import FILLED, Look, filled
from attnbench.report.figures.palette import FAINT, FAMILIES, INK, OTHER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        (shorten(family or "other", 80, SIZE),
         filled("full", FAMILIES.get(family, OTHER), "s", 4.5))
        for family in families
    ]  # fmt: skip
    fills = {look.fill for look in some}
    if fills - {"full"}:
        items += [(said, filled(fill, FAINT)) for fill, said in FILLED.items() if fill in fills]
    return items
