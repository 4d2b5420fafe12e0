"""Published claims about attention: what each says, and the verdict that our figures give it.

A claim is data: ``claims.toml`` holds them all, with the name of the function that measures each,
so that reading them imports no torch.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

import impls
from attnbench.core.machine import Machine, why_not
from impls.asked import CantBeDone

DATA = Path(__file__).with_name("claims.toml")


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
    ours: bool = msgspec.field(default=False, name="threshold_is_ours")
    unit: str = ""
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
    """All claims, in the order in which they are shown."""
    from attnbench.features.claims import gpu_rates

    said = tomllib.loads(DATA.read_text())
    found = []
    for row in said["claim"]:
        if "rates" in row:
            row = gpu_rates.claim_of(row)
        fields = ClaimPoint.__struct_encode_fields__
        points = [dict(zip(fields, point, strict=False)) for point in row["points"]]
        how, source = f"{__package__}.{row['how']}", said["source"][row["source"]]
        row |= {"points": points, "how": how, "source": source}
        found.append(msgspec.convert(row, Claim))
    return found


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
    def median(cls, values: Iterable[float]) -> ClaimFigure:
        """The median of some draws, with its 95 % interval."""
        from attnbench.core.stats import summary

        found = summary(list(values))
        return cls(found.median, found.low, found.high)

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends; of a figure without an interval, the figure itself."""
        value = math.nan if self.value is None else self.value
        low, high = (value if end is None else end for end in (self.low, self.high))
        return low, high


def medians(draws: Sequence[Mapping[str, float]]) -> dict[str, ClaimFigure]:
    """By name, the median of what some draws gave."""
    return {name: ClaimFigure.median(draw[name] for draw in draws) for name in draws[0]}


Cells = list[str | int | float | None]
"""A row of a :class:`ClaimTable`."""


class ClaimTable(Struct, frozen=True):
    """The figures behind the points."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float | None]]


class ClaimMap(Struct, frozen=True):
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
    maps: Sequence[ClaimMap] = ()


# ---- verdicts ------------------------------------------------------------------------------------


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
    NOT_RUN = "not run"
    NEEDS_OTHER_HARDWARE = "needs other hardware"


SAID = {
    PointStanding.FAILS: ("does not hold", "do not hold"),
    PointStanding.NO_FIGURE: ("has no figure", "have no figure"),
    PointStanding.CANT_TELL: ("can't be told, for the interval holds the limit",) * 2,
}
"""Of one point and of several, the gravest first."""
AGAIN = "give it more time with --budget, or see why by its name: 'attnbench reproduce NAME'"


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
        for state, words in SAID.items():
            names = [name for name, each in states.items() if each is state]
            if not names:
                continue
            points = f"point{'s' * (len(states) > 1)} {words[len(names) > 1]}"
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            reason = f"{len(names)} of {len(states)} {points}: {', '.join(names[:3])}{more}"
            if state is not PointStanding.NO_FIGURE:
                verdict = ClaimVerdict.NOT_REPRODUCED
                return cls(claim, verdict, reason, "", findings, took_s)
            whys = dict.fromkeys(f.why for f in figures.values() if f.value is None and f.why)
            reason = "; ".join([reason, *whys])
            return cls(claim, ClaimVerdict.NOT_RUN, reason, AGAIN, findings, took_s)
        return cls(claim, ClaimVerdict.REPRODUCED, "", "", findings, took_s)

    def figure(self, point: str) -> ClaimFigure | None:
        """Our figure of a point."""
        return self.findings.figures.get(point)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, those of the claim among them; no number is infinite or NaN."""
        found: dict[str, Any] = msgspec.to_builtins(self.findings)
        figures = {name: _finite_figure(figure) for name, figure in found.pop("figures").items()}
        for table in found["tables"]:
            table["rows"] = [[_finite(value) for value in row] for row in table["rows"]]
        points = [
            {
                **msgspec.to_builtins(point),
                "held": str(held(point, self.figure(point.name))),
                "ours": figures.get(point.name),
            }
            for point in self.claim.points
        ]
        return {
            **self.claim.to_dict(),
            "verdict": str(self.verdict),
            "reason": self.reason,
            "remedy": self.remedy,
            "took_s": round(self.took_s, 2),
            "points": points,
            **{name: list(values) for name, values in found.items()},
        }


def _finite_figure(figure: dict[str, Any]) -> dict[str, Any]:
    if any(_finite(value) != value for value in figure.values()):
        why = figure["why"] or "it is no finite number"
        return {"value": None, "low": None, "high": None, "why": why}
    return figure


def _finite(value: Any) -> Any:
    """The value, or None for a float that is infinite or NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lacking(
    claim: Claim, machine: Machine, table: impls.Table, embeddings: str | None
) -> ClaimOutcome | None:
    """The outcome of a claim that can't be tried here; None for one that can."""
    needs, verdict, reason, remedy = claim.needs, ClaimVerdict.NOT_RUN, "", ""
    rows = [table.find(name) for name in needs.variants]
    asked = (replace(row, requires=(*row.requires, *needs.requires)) for row in rows)
    if needs.gpu and not any(re.search(rf"\b{needs.gpu}\b", gpu.name) for gpu in machine.gpus):
        there = ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus)) or "no NVIDIA GPU"
        reason = f"the figures are of an NVIDIA {needs.gpu}, and this machine has {there}"
        verdict, remedy = ClaimVerdict.NEEDS_OTHER_HARDWARE, "run it on one"
    elif needs.gpu and not machine.torch_cuda:
        reason, remedy = "the torch installed here has no CUDA", "install a CUDA build of it"
    elif missing := next(filter(None, (why_not(row, machine) for row in asked)), None):
        reason, remedy = missing.reason, missing.remedy
    elif needs.embeddings and embeddings is None:
        reason = "its figures are of GloVe's word vectors, and no file of them was given"
        remedy = (
            f"get glove.6B.50d.txt and run 'attnbench reproduce {claim.name} --embeddings "
            "glove.6B.50d.txt'"
        )
    return ClaimOutcome(claim, verdict, reason, remedy) if reason else None
