"""Published claims about attention: what each says, and the verdict that our figures give it.

A claim is data. It names the function that measures it by dotted path, so that reading all claims
imports no torch. Each source of claims is a module with a list ``ROWS`` and those functions.
"""

from __future__ import annotations

import difflib
import importlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

import impls
from attnbench.core.machine import Machine, why_not
from impls.asked import CantBeDone

SOURCES = ("biases", "one_head", "layers", "efficient", "word_vectors", "gpu_rates")
"""The modules that hold claims, in the order in which they are shown."""


class ClaimRule(StrEnum):
    """How our figure must stand to the published one, given the tolerance."""

    NEAR = "near"
    """Off by no more than this share of it."""
    WITHIN = "within"
    """Off by no more than this."""
    AT_MOST = "at most"
    """No larger; the tolerance is a share on top."""
    AT_LEAST = "at least"
    """No smaller; the tolerance is a share off."""


NEAR, WITHIN, AT_MOST, AT_LEAST = ClaimRule


class ClaimSource(Struct, frozen=True):
    """Where a claim was read."""

    title: str
    author: str
    where: str
    """An address, an arXiv number or a commit; or that the text gives none."""
    read: str
    """Which part was read."""


class Needs(Struct, frozen=True):
    """What a claim can't be tried without."""

    gpu: str = ""
    """A word of the GPU's name: ``H200``."""
    requires: tuple[str, ...] = ()
    """Distributions, as in a row of the table: ``torch>=2.9``."""
    variants: tuple[str, ...] = ()
    """Rows of the table that must be able to run."""
    embeddings: bool = False
    """A file of word vectors."""

    def __str__(self) -> str:
        gpu = [f"an NVIDIA {self.gpu}"] if self.gpu else []
        file = ["--embeddings FILE"] if self.embeddings else []
        return ", ".join([*gpu, *self.requires, *self.variants, *file])


class ClaimPoint(Struct, frozen=True):
    """One figure of a claim, and the rule that it must keep."""

    name: str
    says: str
    rule: ClaimRule
    published: float
    """The source's figure, or our limit where the source gives none."""
    tolerance: float = 0.0
    unit: str = ""
    ours: bool = msgspec.field(default=False, name="threshold_is_ours")
    cell: Mapping[str, Any] = {}
    """What to measure, where one function measures many points: variants and a problem."""

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
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values


class Claim(Struct, frozen=True):
    """What is claimed, by whom, and how it is tested."""

    name: str
    statement: str
    source: ClaimSource
    setting: str
    """What is done, on what; and which thresholds are ours."""
    points: tuple[ClaimPoint, ...]
    how: str
    """Dotted path of ``measure(request) -> findings``: ``package.module:function``."""
    needs: Needs = Needs()
    minutes: float = 0.1
    """About how long it takes; of a timed claim, the time that it gets by default."""
    timed: bool = False
    """Whether its figures are times, measured by workers in as much time as it is given."""

    def to_dict(self) -> dict[str, Any]:
        """What is known before anything is run."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        del values["how"]
        return {**values, "needs": str(self.needs)}


def claims() -> list[Claim]:
    """All claims."""
    modules = (importlib.import_module(f"attnbench.features.claims.{name}") for name in SOURCES)
    return [row for module in modules for row in module.ROWS]


class UnknownClaim(CantBeDone, LookupError):
    """No claim has this name."""


def find(names: list[str]) -> list[Claim]:
    """The claims of some names, in that order; all claims for no name."""
    known = {claim.name: claim for claim in claims()}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
            near = near or [each for each in known if name in each][:3]
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise UnknownClaim(
                f"there is no claim {name!r}; {hint}'attnbench reproduce --list' shows all "
                f"{len(known)}"
            )
    return [known[name] for name in dict.fromkeys(names)] or list(known.values())


class ClaimRequest(Struct, frozen=True):
    """What a measuring function is given."""

    cells: Mapping[str, Mapping[str, Any]] = {}
    """By the point's name."""
    seed: int = 0
    threads: int = 1
    seconds: float = 30.0
    """For all that is timed."""
    embeddings: str | None = None


class ClaimFigure(Struct, frozen=True):
    """Our figure of a point, with its interval where it has one; or why there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""

    @classmethod
    def median(cls, values: Sequence[float]) -> ClaimFigure:
        """The median of some draws, with its 95 % interval."""
        from attnbench.core.stats import summary

        found = summary(values)
        return cls(found.median, found.low, found.high)

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends; of a figure without an interval, the figure itself."""
        value = math.nan if self.value is None else self.value
        return (value if self.low is None else self.low), (
            value if self.high is None else self.high
        )


class ClaimTable(Struct, frozen=True):
    """The figures behind the points."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float | None]]


Cells = list[str | int | float | None]
"""A row of a :class:`ClaimTable`."""


class Map(Struct, frozen=True):
    """An attention table of a sentence, to be drawn."""

    name: str
    """Of its file: lower-case words joined by dashes."""
    title: str
    words: Sequence[str]
    weights: Sequence[Sequence[float]]


class ClaimFindings(Struct, frozen=True):
    """What a measuring function returns."""

    figures: Mapping[str, ClaimFigure] = {}
    """By the point's name."""
    notes: Sequence[str] = ()
    tables: Sequence[ClaimTable] = ()
    maps: Sequence[Map] = ()


class PointStanding(StrEnum):
    """Whether a point holds."""

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


class ClaimVerdict(StrEnum):
    """The verdict on a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NEEDS_OTHER_HARDWARE = "needs other hardware"
    NOT_RUN = "not run"


AGAIN = "give it more time with --budget, or see why by its name: 'attnbench reproduce NAME'"
NOT_FINITE = "it is no finite number"


class ClaimOutcome(Struct, frozen=True):
    """A claim, the verdict on it, and what was found."""

    claim: Claim
    verdict: ClaimVerdict
    reason: str = ""
    """Why it is not reproduced, or was not run."""
    remedy: str = ""
    findings: ClaimFindings = ClaimFindings()
    took_s: float = 0.0

    @classmethod
    def of(cls, claim: Claim, findings: ClaimFindings, took_s: float = 0.0) -> ClaimOutcome:
        """The outcome of a claim that was run: its points decide the verdict."""
        figures = findings.figures
        states = {point.name: held(point, figures.get(point.name)) for point in claim.points}
        verdict, reason, remedy = ClaimVerdict.REPRODUCED, "", ""
        for state in (PointStanding.FAILS, PointStanding.NO_FIGURE, PointStanding.CANT_TELL):
            if state in states.values():
                verdict, reason = ClaimVerdict.NOT_REPRODUCED, _points_in(state, states)
                break
        if verdict is ClaimVerdict.NOT_REPRODUCED and state is PointStanding.NO_FIGURE:
            verdict, remedy = ClaimVerdict.NOT_RUN, AGAIN
            whys = dict.fromkeys(f.why for f in figures.values() if f.value is None and f.why)
            reason = "; ".join([reason, *whys])
        return cls(claim, verdict, reason, remedy, findings, took_s)

    def figure(self, point: str) -> ClaimFigure | None:
        """Our figure of a point."""
        return self.findings.figures.get(point)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, those of the claim among them; no number is infinite or NaN."""
        points = [
            {
                **point.to_dict(),
                "held": str(held(point, self.figure(point.name))),
                "ours": _finite_figure(self.figure(point.name)),
            }
            for point in self.claim.points
        ]
        found = msgspec.to_builtins(self.findings)
        for table in found["tables"]:
            table["rows"] = [[_finite(value) for value in row] for row in table["rows"]]
        return {
            **self.claim.to_dict(),
            "verdict": str(self.verdict),
            "reason": self.reason,
            "remedy": self.remedy,
            "took_s": round(self.took_s, 2),
            "points": points,
            "notes": list(found["notes"]),
            "tables": list(found["tables"]),
            "maps": list(found["maps"]),
        }


def _points_in(state: PointStanding, states: Mapping[str, PointStanding]) -> str:
    """``2 of 5 points do not hold: query, value``"""
    names = [name for name, each in states.items() if each is state]
    one = len(names) == 1
    verb = {
        PointStanding.FAILS: "does not hold" if one else "do not hold",
        PointStanding.CANT_TELL: "can't be told, for the interval holds the limit",
        PointStanding.NO_FIGURE: "has no figure" if one else "have no figure",
    }[state]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    points = "point" if len(states) == 1 else "points"
    return f"{len(names)} of {len(states)} {points} {verb}: {', '.join(names[:3])}{more}"


def _finite_figure(figure: ClaimFigure | None) -> dict[str, Any] | None:
    if figure is None:
        return None
    values: dict[str, Any] = msgspec.to_builtins(figure)
    if any(_finite(value) != value for value in values.values()):
        return {"value": None, "low": None, "high": None, "why": figure.why or NOT_FINITE}
    return values


def _finite(value: Any) -> Any:
    """The value, or None for a float that is infinite or NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lacking(
    claim: Claim, machine: Machine, table: impls.Table, embeddings: str | None
) -> ClaimOutcome | None:
    """The outcome of a claim that can't be tried here; None for one that can."""
    needs = claim.needs
    if needs.gpu and not any(re.search(rf"\b{needs.gpu}\b", gpu.name) for gpu in machine.gpus):
        there = ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus)) or "no NVIDIA GPU"
        return ClaimOutcome(
            claim,
            ClaimVerdict.NEEDS_OTHER_HARDWARE,
            f"the figures are of an NVIDIA {needs.gpu}, and this machine has {there}",
            "run it on one",
        )
    reason = remedy = ""
    if needs.gpu and not machine.torch_cuda:
        reason, remedy = "the torch installed here has no CUDA", "install a CUDA build of it"
    elif missing := _missing_variant(needs, machine, table):
        reason, remedy = missing
    elif needs.embeddings and embeddings is None:
        reason = "its figures are of GloVe's word vectors, and no file of them was given"
        remedy = (
            f"get glove.6B.50d.txt and run 'attnbench reproduce {claim.name} --embeddings "
            "glove.6B.50d.txt'"
        )
    return ClaimOutcome(claim, ClaimVerdict.NOT_RUN, reason, remedy) if reason else None


def _missing_variant(needs: Needs, machine: Machine, table: impls.Table) -> tuple[str, str] | None:
    for name in needs.variants:
        row = table.find(name)
        missing = why_not(replace(row, requires=(*row.requires, *needs.requires)), machine)
        if missing is not None:
            return missing.reason, missing.remedy
    return None
