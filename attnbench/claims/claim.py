"""A claim that somebody made, as data: what is said, where, and what must hold for it to be so.

A claim has points. Each is one figure with a rule, and the rule gives a region in which the figure
must lie. Published figures stand here once, with their source; verdicts are never written down.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PATH = re.compile(r"[\w./-]+:\w+")


class InvalidClaim(ValueError):
    """A row that says what no claim may say: a mistake of whoever wrote it."""


class Rule(StrEnum):
    """How our figure must stand to the published one, given the tolerance."""

    NEAR = "near"
    """No further off than this share of it."""
    WITHIN = "within"
    """No further off than so much."""
    AT_MOST = "at most"
    """No larger; the tolerance is a share on top."""
    AT_LEAST = "at least"
    """No smaller; the tolerance is a share off."""


@dataclass(frozen=True)
class Source:
    """Where a claim was read."""

    title: str
    author: str
    where: str
    """An address, an arXiv number or a commit; or that the text gives none."""
    read: str
    """What of it was read."""

    def __str__(self) -> str:
        return f"{self.title} ({self.author}; {self.where}); read: {self.read}"


@dataclass(frozen=True)
class Needs:
    """What a claim can't be tried without."""

    gpu: str = ""
    """A word of the GPU's name: ``H200``."""
    requires: tuple[str, ...] = ()
    """Distributions, as a row of the table says them: ``torch>=2.9``."""
    variants: tuple[str, ...] = ()
    """Rows of the table that must be able to run."""
    embeddings: bool = False
    """A file of word vectors."""

    def __str__(self) -> str:
        said = [f"an NVIDIA {self.gpu}"] * bool(self.gpu)
        said += [*self.requires, *self.variants]
        return ", ".join([*said, *["--embeddings FILE"] * self.embeddings])


@dataclass(frozen=True)
class Point:
    """One figure of a claim, and the rule that it must keep."""

    name: str
    says: str
    rule: Rule
    published: float
    """Theirs; of a threshold that is ours, that."""
    tolerance: float = 0.0
    unit: str = ""
    ours: bool = False
    """Whether the limit is ours, since the source gives no figure."""
    cell: Mapping[str, Any] = field(default_factory=dict)
    """What is measured for it, where one function measures many: a variant and a problem."""

    def __post_init__(self) -> None:
        numbers = (self.published, self.tolerance)
        if not all(math.isfinite(number) for number in numbers) or self.tolerance < 0:
            raise InvalidClaim(f"{self.name}: {numbers} are no figure and no tolerance")
        object.__setattr__(self, "rule", Rule(self.rule))

    @property
    def region(self) -> tuple[float, float]:
        """Where our figure must lie, both ends included."""
        share = self.tolerance * abs(self.published)
        match self.rule:
            case Rule.NEAR:
                return self.published - share, self.published + share
            case Rule.WITHIN:
                return self.published - self.tolerance, self.published + self.tolerance
            case Rule.AT_MOST:
                return -math.inf, self.published + share
            case Rule.AT_LEAST:
                return self.published - share, math.inf

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "name": self.name, "says": self.says, "rule": str(self.rule), "unit": self.unit,
            "published": self.published, "tolerance": self.tolerance,
            "threshold_is_ours": self.ours, "cell": dict(self.cell),
        }  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """One row: what is claimed, by whom, and how it is put to the test."""

    name: str
    statement: str
    source: Source
    setting: str
    """What is done, on what; where a threshold is ours, that too."""
    points: tuple[Point, ...]
    how: str
    """Dotted path of ``measure(asked) -> found``: ``package.module:function``."""
    needs: Needs = Needs()
    minutes: float = 0.1
    """About how long it takes; of what is timed, what it is given if no budget is."""
    timed: bool = False
    """Whether it asks the ruler's workers for times, and so takes the time that it is given."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidClaim(f"the name {self.name!r} is not lower-case words joined by dashes")
        if not _PATH.fullmatch(self.how):
            raise InvalidClaim(f"{self.name}: how={self.how!r} is not 'package.module:function'")
        names = [point.name for point in self.points]
        if not names or len(set(names)) < len(names):
            raise InvalidClaim(f"{self.name}: a claim has points, each with a name of its own")
        if not 0 < self.minutes < 60:
            raise InvalidClaim(f"{self.name}: minutes={self.minutes} is no time to wait")

    def to_dict(self) -> dict[str, Any]:
        """What is known before anything is run."""
        source = self.source
        return {
            "name": self.name, "statement": self.statement, "setting": self.setting,
            "source": {"title": source.title, "author": source.author, "where": source.where,
                       "read": source.read},
            "needs": str(self.needs), "minutes": self.minutes, "timed": self.timed,
            "points": [point.to_dict() for point in self.points],
        }  # fmt: skip
