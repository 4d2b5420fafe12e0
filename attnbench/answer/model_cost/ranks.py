"""Approximations in an order, and which of them can't be told apart.

The same texts are given to all, so two are compared text by text: where the 99 % interval of the
median difference holds nought, they share a rank. What computes another operator is in no order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.answer.model_cost.told import long_texts
from attnbench.comparison import CONFIDENCE
from attnbench.statistics import median_interval

Row = Mapping[str, Any]
RANKED = ("approximates softmax", "softmax on its own pattern")


def with_ranks(rows: Sequence[Row], original: Row) -> list[dict[str, Any]]:
    """The rows with their ranks; None of whom is not ranked."""
    found = ranks(rows, long_texts(original))
    return [{**row, "rank": found.get(row["variant"])} for row in rows]


def ranks(rows: Sequence[Row], places: Sequence[int]) -> dict[str, int]:
    """By variant: 1 for the nearest to the original and whoever can't be told from it, and so on.

    Whoever refused one of these texts was not given what the others were, and is in no order.
    """
    some = [row for row in rows if _ranked(row, places)]
    order = sorted(some, key=lambda row: -_middle([row["cosines"][n] for n in places]))
    made: dict[str, int] = {}
    leader: Row | None = None
    for place, row in enumerate(order, 1):
        if leader is None or nearer(leader, row, places):
            leader, rank = row, place
        made[row["variant"]] = rank
    return made


def nearer(a: Row, b: Row, places: Sequence[int]) -> bool:
    """Whether one is nearer to the original than the other, text by text, beyond doubt."""
    differences = [a["cosines"][n] - b["cosines"][n] for n in places]
    return median_interval(differences, CONFIDENCE)[0] > 0


def _ranked(row: Row, places: Sequence[int]) -> bool:
    cosines = row.get("cosines")
    return bool(
        row["status"] == "measured" and row["computes"] in RANKED and cosines
        and all(cosines[n] is not None for n in places)
    )  # fmt: skip


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
