"""A claim's points in words: what they say must be, what we found. Of plain values, as kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.core.format import NONE, percent, three
from attnbench.features.claims.claim import ClaimRule

MARK = "*"
"""Beside a limit that is ours."""
FOOTNOTE = f"{MARK} the limit is ours: the source gives no figure for it"


@dataclass(frozen=True)
class PointWords:
    """One point, in words."""

    name: str
    says: str
    theirs: str
    """What was published, and the region that the rule makes of it."""
    ours: str
    interval: str
    held: str
    why: str
    """Of a point without a figure."""


def points(row: Mapping[str, Any]) -> Iterator[PointWords]:
    """Those of a claim as evidence keeps it."""
    for each in row["points"]:
        ours = each.get("ours") or {}
        yield PointWords(
            each["name"],
            each["says"],
            theirs(each),
            _value(ours.get("value"), each["unit"]),
            _interval(ours),
            each.get("held", ""),
            ours.get("why", ""),
        )


def theirs(point: Mapping[str, Any]) -> str:
    """``354 ± 10 % TFLOP/s``; ``0.00092, at most 0.0092``"""
    published, tolerance = point["published"], point["tolerance"]
    said, mark = number(published), MARK * point["threshold_is_ours"]
    share = abs(published) * tolerance
    match ClaimRule(point["rule"]):
        case ClaimRule.NEAR:
            words = f"{said} ± {percent(tolerance)}"
        case ClaimRule.WITHIN:
            words = (
                f"{said} ± {number(tolerance)}" if published else f"0, within {number(tolerance)}"
            )
        case ClaimRule.AT_MOST:
            words = _limit(said, "at most", published + share, exact=not share)
        case ClaimRule.AT_LEAST:
            words = _limit(said, "at least", published - share, exact=not share)
    return " ".join(filter(None, [words + mark, point["unit"] * (point["unit"] in SHORT)]))


SHORT = ("TFLOP/s",)
"""Units that stand beside each number; others are in what the point says."""


def number(value: float) -> str:
    """Three digits, below nought too."""
    return f"-{three(-value)}" if value < 0 else three(value)


def counts(rows: Sequence[Mapping[str, Any]]) -> str:
    """``12 reproduced, 1 not reproduced, 4 not run``"""
    verdicts = [row["verdict"] for row in rows]
    return ", ".join(
        f"{verdicts.count(v)} {v}" for v in dict.fromkeys(sorted(verdicts, key=_order))
    )


def alike(some: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str], list[str]]:
    """Of names with verdict and reason: those of which both are so, side by side."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, *said in some:
        found.setdefault((said[0], said[1]), []).append(name)
    return found


def _order(verdict: str) -> int:
    order = ("reproduced", "not reproduced", "not run", "needs other hardware")
    return order.index(verdict) if verdict in order else len(order)


def _limit(said: str, rule: str, limit: float, *, exact: bool) -> str:
    return f"{rule} {said}" if exact else f"{said}; {rule} {number(limit)}"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return NONE
    return " ".join(filter(None, [number(value), unit * (unit in SHORT)]))


def _interval(ours: Mapping[str, Any]) -> str:
    low, high = ours.get("low"), ours.get("high")
    if low is None or high is None:
        return ""
    return f"{number(low)} to {number(high)}"
