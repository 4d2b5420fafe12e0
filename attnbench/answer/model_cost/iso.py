"""Who is fastest at the same quality: the frontier of step time and likeness to the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.answer.pareto import frontier
from attnbench.comparison import Verdict
from attnbench.pairs import Pairs

LEVELS = (0.999, 0.99, 0.95, 0.9)
"""Of the median cosine to the original's embeddings."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """A variant with both: its cosine over long texts, and its step over the original's."""

    variant: str
    family: str
    computes: str
    cosine: tuple[float, float, float]
    """The median and its interval."""
    ratio: tuple[float, float, float]
    """Of the step's time, and its interval."""
    step_s: float
    faster: bool
    """Than the original: the verdict of its pairs, which survived Holm's correction over all."""


@dataclass(frozen=True)
class Level:
    """Who is fastest of those that keep so much."""

    cosine: float
    fastest: Point | None
    tied: tuple[Point, ...]
    """Whose interval of time reaches the fastest's."""
    doubtful: tuple[Point, ...]
    """Whose interval of the cosine holds the level: more texts would tell."""
    keep: int
    """How many there are that keep it."""

    @property
    def gains(self) -> bool:
        """Whether the fastest is faster than the original beyond doubt."""
        return self.fastest is not None and self.fastest.faster


def points(rows: Sequence[Row], seq: int) -> list[Point]:
    """The variants that have both at a length."""
    found = []
    for row in rows:
        cosine = (row.get("cosine") or {}).get("long")
        step = next((s for s in row.get("steps") or () if s["seq"] == seq and "why" not in s), None)
        if row["status"] != "measured" or cosine is None or step is None:
            continue
        said, times = step["comparison"], sorted(Pairs.from_dict(step).b_s)
        found.append(Point(
            row["variant"], row["family"], row["computes"],
            (cosine["value"], cosine["low"], cosine["high"]),
            (said["ratio"], said["low"], said["high"]), times[len(times) // 2],
            said["verdict"] == Verdict.FASTER,
        ))  # fmt: skip
    return found


def levels(found: Sequence[Point], wanted: Sequence[float] = LEVELS) -> list[Level]:
    """At each level: the fastest of those whose whole interval is above it, and who ties."""
    return [_level(found, level) for level in wanted]


def _level(found: Sequence[Point], level: float) -> Level:
    keep = [p for p in found if p.cosine[1] >= level]
    doubtful = tuple(p for p in found if p.cosine[1] < level <= p.cosine[2])
    fastest = min(keep, key=lambda p: (p.ratio[0], p.variant), default=None)
    tied = tuple(
        p for p in keep
        if fastest is not None and p is not fastest and p.ratio[1] <= fastest.ratio[2]
    )  # fmt: skip
    return Level(level, fastest, tied, doubtful, len(keep))


def best(found: Sequence[Point]) -> list[str]:
    """The names that no other beats in time without being further from the original."""
    return frontier({p.variant: (p.ratio[0], 1 - p.cosine[0]) for p in found})


def lengths(rows: Sequence[Row]) -> list[int]:
    """The lengths at which any step was timed."""
    return sorted({s["seq"] for row in rows for s in row.get("steps") or () if "why" not in s})
