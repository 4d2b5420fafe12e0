"""What a measuring function is asked, and what it gives back: plain values that cross a pipe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Asked:
    """What the function is told."""

    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By the point's name."""
    seed: int = 0
    threads: int = 1
    seconds: float = 30.0
    """For all that is timed."""
    embeddings: str | None = None


@dataclass(frozen=True)
class Figure:
    """Our figure of a point, with its interval where it has one; or why there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends; of a figure without one, the figure itself."""
        value = math.nan if self.value is None else self.value
        return (value if self.low is None else self.low), (
            value if self.high is None else self.high
        )


@dataclass(frozen=True)
class Table:
    """Figures behind the points, for whoever wants to take them to pieces."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | None]]


@dataclass(frozen=True)
class Map:
    """An attention table of a sentence, to be drawn."""

    name: str
    """Of its file: lower-case words joined by dashes."""
    title: str
    words: Sequence[str]
    weights: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Found:
    """What came of a claim."""

    figures: Mapping[str, Figure]
    """By the point's name."""
    notes: Sequence[str] = ()
    tables: Sequence[Table] = ()
    maps: Sequence[Map] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, sent: Mapping[str, Any]) -> Found:
        """As it was sent."""
        return cls(
            {name: Figure(**each) for name, each in sent["figures"].items()}, tuple(sent["notes"]),
            tuple(Table(**each) for each in sent["tables"]),
            tuple(Map(**each) for each in sent["maps"]),
        )  # fmt: skip
