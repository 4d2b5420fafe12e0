"""Claims that others made of attention, put to the test: rows of data, and the verdicts on them.

A row is data and names its measuring function by dotted path, as the table of variants does, so
that reading the rows imports no torch.
"""

from __future__ import annotations

import importlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import impls
from attnbench.core.machine import Machine, why_not
from impls.asked import CantBeDone

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PATH = re.compile(r"[\w./-]+:\w+")


class InvalidClaim(ValueError):
    """A row that says what no claim may say: a mistake of whoever wrote it."""


class ClaimRule(StrEnum):
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
class ClaimSource:
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
class ClaimPoint:
    """One figure of a claim, and the rule that it must keep."""

    name: str
    says: str
    rule: ClaimRule
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
        object.__setattr__(self, "rule", ClaimRule(self.rule))

    @property
    def region(self) -> tuple[float, float]:
        """Where our figure must lie, both ends included."""
        share = self.tolerance * abs(self.published)
        match self.rule:
            case ClaimRule.NEAR:
                return self.published - share, self.published + share
            case ClaimRule.WITHIN:
                return self.published - self.tolerance, self.published + self.tolerance
            case ClaimRule.AT_MOST:
                return -math.inf, self.published + share
            case ClaimRule.AT_LEAST:
                return self.published - share, math.inf

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "name": self.name,
            "says": self.says,
            "rule": str(self.rule),
            "unit": self.unit,
            "published": self.published,
            "tolerance": self.tolerance,
            "threshold_is_ours": self.ours,
            "cell": dict(self.cell),
        }


@dataclass(frozen=True)
class Claim:
    """One row: what is claimed, by whom, and how it is put to the test."""

    name: str
    statement: str
    source: ClaimSource
    setting: str
    """What is done, on what; where a threshold is ours, that too."""
    points: tuple[ClaimPoint, ...]
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
            "name": self.name,
            "statement": self.statement,
            "setting": self.setting,
            "source": {
                "title": source.title,
                "author": source.author,
                "where": source.where,
                "read": source.read,
            },
            "needs": str(self.needs),
            "minutes": self.minutes,
            "timed": self.timed,
            "points": [point.to_dict() for point in self.points],
        }


SOURCES = (
    "biases", "one_head", "from_scratch", "transformers", "efficient", "words", "sdpa_h200",
    "llama_h200", "flash3_paper", "flash2_h100", "single",
)  # fmt: skip
"""The files of rows, in the order in which they are shown."""


class UnknownClaim(CantBeDone, LookupError):
    """No claim has this name; a sentence."""


def claims() -> list[Claim]:
    """All of them."""
    return [
        row
        for source in SOURCES
        for row in importlib.import_module(f"attnbench.features.claims.rows.{source}").ROWS
    ]


def find(names: list[str]) -> list[Claim]:
    """Those of some names, in the order of the names; all if there is none."""
    known = {claim.name: claim for claim in claims()}
    for name in names:
        if name not in known:
            raise UnknownClaim(_unknown(name, list(known)))
    return [known[name] for name in dict.fromkeys(names)] or list(known.values())


def _unknown(name: str, known: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    near = near or [each for each in known if name in each][:3]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"there is no claim {name!r}; {hint}'attnbench reproduce --list' shows all {len(known)}"


@dataclass(frozen=True)
class ClaimRequest:
    """What the function is told."""

    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By the point's name."""
    seed: int = 0
    threads: int = 1
    seconds: float = 30.0
    """For all that is timed."""
    embeddings: str | None = None


@dataclass(frozen=True)
class ClaimFigure:
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
class ClaimTable:
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
class ClaimFindings:
    """What came of a claim."""

    figures: Mapping[str, ClaimFigure]
    """By the point's name."""
    notes: Sequence[str] = ()
    tables: Sequence[ClaimTable] = ()
    maps: Sequence[Map] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, sent: Mapping[str, Any]) -> ClaimFindings:
        """As it was sent."""
        return cls(
            {name: ClaimFigure(**each) for name, each in sent["figures"].items()},
            tuple(sent["notes"]),
            tuple(ClaimTable(**each) for each in sent["tables"]),
            tuple(Map(**each) for each in sent["maps"]),
        )


class ClaimVerdict(StrEnum):
    """Of a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NEEDS_OTHER_HARDWARE = "needs other hardware"
    NOT_RUN = "not run"


class PointStanding(StrEnum):
    """Of a point."""

    HOLDS = "holds"
    FAILS = "does not hold"
    CANT_TELL = "can't tell"
    NO_FIGURE = "no figure"


def held(point: ClaimPoint, figure: ClaimFigure | None) -> PointStanding:
    """Whether a point holds, by its rule and our figure."""
    if figure is None or figure.value is None:
        return PointStanding.NO_FIGURE
    low, high = figure.interval
    if any(math.isnan(x) for x in (figure.value, low, high)):
        return PointStanding.FAILS
    least, most = point.region
    if least <= low and high <= most:
        return PointStanding.HOLDS
    return PointStanding.FAILS if high < least or low > most else PointStanding.CANT_TELL


def judged(claim: Claim, figures: Mapping[str, ClaimFigure]) -> tuple[ClaimVerdict, str]:
    """The verdict on a claim that was run, and why where it is not reproduced."""
    states = {point.name: held(point, figures.get(point.name)) for point in claim.points}
    count = Counter(states.values())
    if count[PointStanding.FAILS]:
        return ClaimVerdict.NOT_REPRODUCED, _said(states, PointStanding.FAILS)
    if count[PointStanding.NO_FIGURE]:
        whys = dict.fromkeys(f.why for f in figures.values() if f.value is None and f.why)
        return ClaimVerdict.NOT_RUN, "; ".join([_said(states, PointStanding.NO_FIGURE), *whys])
    if count[PointStanding.CANT_TELL]:
        return ClaimVerdict.NOT_REPRODUCED, _said(states, PointStanding.CANT_TELL)
    return ClaimVerdict.REPRODUCED, ""


def _said(states: Mapping[str, PointStanding], state: PointStanding) -> str:
    """``2 of 5 points do not hold: query, value``"""
    some = [name for name, each in states.items() if each is state]
    one = len(some) == 1
    what = {
        PointStanding.FAILS: "does not hold" if one else "do not hold",
        PointStanding.CANT_TELL: "can't be told, for the interval holds the limit",
        PointStanding.NO_FIGURE: "has no figure" if one else "have no figure",
    }[state]
    more = f" and {len(some) - 3} more" * (len(some) > 3)
    points = f"point{'s' * (len(states) != 1)}"
    return f"{len(some)} of {len(states)} {points} {what}: {', '.join(some[:3])}{more}"


NOT_FINITE = "it is no finite number"


@dataclass(frozen=True)
class ClaimOutcome:
    """A claim and its verdict."""

    claim: Claim
    verdict: ClaimVerdict
    reason: str = ""
    """Why it is not reproduced, or was not run."""
    remedy: str = ""
    found: ClaimFindings = ClaimFindings({})
    took_s: float = 0.0

    @classmethod
    def of(cls, claim: Claim, found: ClaimFindings, took_s: float = 0.0) -> ClaimOutcome:
        """Of a claim that was run: the verdict is what its points say."""
        verdict, reason = judged(claim, found.figures)
        remedy = AGAIN if verdict is ClaimVerdict.NOT_RUN else ""
        return cls(claim, verdict, reason, remedy, found, took_s)

    def figure(self, point: str) -> ClaimFigure | None:
        """Ours."""
        return self.found.figures.get(point)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, with the claim's own."""
        points = [
            {
                **point.to_dict(),
                "held": str(held(point, self.figure(point.name))),
                "ours": _plain(self.figure(point.name)),
            }
            for point in self.claim.points
        ]
        found = self.found.to_dict()
        return {
            **self.claim.to_dict(),
            "verdict": str(self.verdict),
            "reason": self.reason,
            "remedy": self.remedy,
            "took_s": round(self.took_s, 2),
            "points": points,
            "notes": list(found["notes"]),
            "tables": [_finite(t) for t in found["tables"]],
            "maps": list(found["maps"]),
        }


AGAIN = "give it more time with --budget, or see why by its name: 'attnbench reproduce NAME'"


def _plain(figure: ClaimFigure | None) -> Mapping[str, Any] | None:
    if figure is None:
        return None
    numbers = (figure.value, figure.low, figure.high)
    if any(x is not None and not math.isfinite(x) for x in numbers):
        figure = replace(figure, value=None, low=None, high=None, why=figure.why or NOT_FINITE)
    return asdict(figure)


def _finite(table: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        [None if isinstance(x, float) and not math.isfinite(x) else x for x in row]
        for row in table["rows"]
    ]
    return {**table, "rows": rows}


def lacking(
    claim: Claim, machine: Machine, table: impls.Table, embeddings: str | None
) -> ClaimOutcome | None:
    """The outcome of a claim that can't be tried here; None of one that can."""
    needs = claim.needs
    if needs.gpu and not any(re.search(rf"\b{needs.gpu}\b", gpu.name) for gpu in machine.gpus):
        there = ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus)) or "no NVIDIA GPU"
        return ClaimOutcome(
            claim,
            ClaimVerdict.NEEDS_OTHER_HARDWARE,
            f"the figures are of an NVIDIA {needs.gpu}, and this machine has {there}",
            "run it on one",
        )
    if needs.gpu and not machine.torch_cuda:
        return _not_run(claim, "the torch installed here has no CUDA", "install a CUDA build of it")
    for name in needs.variants:
        row = table.find(name)
        wanted = replace(row, requires=(*row.requires, *needs.requires))
        if (missing := why_not(wanted, machine)) is not None:
            return _not_run(claim, missing.reason, missing.remedy)
    if needs.embeddings and embeddings is None:
        return _not_run(
            claim,
            "its figures are of GloVe's word vectors, and no file of them was given",
            f"get glove.6B.50d.txt and run 'attnbench reproduce {claim.name} --embeddings "
            "glove.6B.50d.txt'",
        )
    return None


def _not_run(claim: Claim, reason: str, remedy: str) -> ClaimOutcome:
    return ClaimOutcome(claim, ClaimVerdict.NOT_RUN, reason, remedy)
