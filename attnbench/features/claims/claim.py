"""Published claims about attention: what each says, and the verdict that our figures give it.

``claims.toml`` holds them all, with the name of the function that measures each.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

import impls
from attnbench.core.format import counted, first_few
from attnbench.core.machine import Machine, why_not
from attnbench.core.stats import summary
from attnbench.core.wire import plain
from impls.errors import CantBeDone

DATA = Path(__file__).with_name("claims.toml")


class ClaimRule(StrEnum):
    """The relation that our figure must have to the published one, with a tolerance."""

    NEAR = "near"
    """Off by no more than this share of it."""
    WITHIN = "within"
    """Off by no more than this."""
    AT_MOST = "at most"
    """No larger; the tolerance is a share on top."""
    AT_LEAST = "at least"
    """No smaller; the tolerance is a share off."""


class Needs(Struct, frozen=True):
    """All that a claim can't be tried without."""

    gpu: str = ""
    """A word of the GPU's name: ``H200``, or several: ``H100 or H200``."""
    requires: tuple[str, ...] = ()
    """Distributions, as in a row of the table: ``torch>=2.9``."""
    variants: tuple[str, ...] = ()

    def __str__(self) -> str:
        gpu = [f"an NVIDIA {self.gpu}"] if self.gpu else []
        return ", ".join([*gpu, *self.requires, *self.variants])


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
    """Variants and a problem, where one function measures many points."""

    @property
    def region(self) -> tuple[float, float]:
        """The ends between which our figure must lie, both included."""
        room = self.tolerance * (1 if self.rule is ClaimRule.WITHIN else abs(self.published))
        least, most = self.published - room, self.published + room
        return (
            -math.inf if self.rule is ClaimRule.AT_MOST else least,
            math.inf if self.rule is ClaimRule.AT_LEAST else most,
        )


class Claim(Struct, frozen=True):
    """A published statement and its source, and the points that test it."""

    name: str
    statement: str
    source: Mapping[str, str]
    """Its title, author, where it was read (an address, a commit, or none), and which part."""
    setting: str
    """The test in words, and which thresholds are ours."""
    points: tuple[ClaimPoint, ...]
    measure: str
    """Dotted path of ``measure(request) -> findings``; with draws, of ``draw(seed, dtype) ->
    figures by name``: ``package.module:function``."""
    needs: Needs = Needs()
    minutes: float = 0.04
    """About how long it takes; of a timed claim, the time that it gets by default."""
    timed: bool = False
    """Its figures are times, measured by workers in as much time as there is."""
    draws: int = 0
    """The draws whose median counts, in float32 and in float64."""

    def of_points(self, most: int) -> Claim:
        """The claim by so many of its points, spread over all; as it is where it has no more, or
        where one function measures all of them at once.
        """
        count = len(self.points)
        if count <= most or not all(point.cell for point in self.points):
            return self
        points = tuple(self.points[n * count // most] for n in range(most))
        setting = f"{self.setting} Tried at {most} of its {count} points."
        minutes = self.minutes * most / count
        return msgspec.structs.replace(self, points=points, setting=setting, minutes=minutes)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, before anything is run."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        del values["measure"]
        return {**values, "needs": str(self.needs)}


def claims() -> list[Claim]:
    """All claims, in the order in which they are shown."""
    data, fields = tomllib.loads(DATA.read_text()), ClaimPoint.__struct_encode_fields__
    rows = [*data["claim"], *(row for group in data["rates"] for row in rates_of(group))]
    for row in rows:
        row["points"] = [dict(zip(fields, point, strict=False)) for point in row["points"]]
        row["measure"] = f"{__package__}.{row['measure']}"
        row["source"] = data["source"][row["source"]]
    return msgspec.convert(rows, list[Claim])


TOLERANCE = 0.1
"""The tolerance of a published rate: clocks, drivers and versions differ."""
RULES = (
    "FLOPs by the source's convention: 4 b h n^2 d forward, half of it under a causal mask, 5/2 of "
    "that backward, 7/2 both. Our times are of cold caches and of the clocks as they stand, so 10 "
    "% either way is allowed; that is ours"
)


def rates_of(group: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The claims of one source about rates on a kind of GPU, as any other of ``claims.toml``."""
    of = group["of"]
    for row in group["claim"]:
        variant, points = row["variant"], []
        for mask, phase, d, rates in row["rates"]:
            for batch, n, published in rates:
                heads = of["width"] // d
                problem = {"batch": batch, "heads": heads, "kv_heads": of.get("kv_heads", heads)}
                problem |= {"q_len": n, "kv_len": n, "head_dim": d, "v_head_dim": d}
                problem |= {"dtype": of["dtype"], "mask": mask, "phase": phase, "device": "cuda"}
                name = f"{mask} {phase} b{batch} h{heads} n{n} d{d}"
                says = f"{variant}, {mask}, {phase}, batch {batch}, {n:,} tokens, heads of {d}"
                words = [name, says, ClaimRule.NEAR, published, TOLERANCE, False, "TFLOP/s"]
                points.append([*words, {"variant": variant, "problem": problem}])
        yield {
            **{key: row[key] for key in ("name", "statement", "minutes")},
            "source": group["source"],
            "setting": f"{group['setting']}{row.get('setting', '')}. {RULES}.",
            "points": points,
            "measure": "timing:measure_rates",
            "needs": {"gpu": group["gpu"], "requires": ("torch>=2.9",), "variants": (variant,)},
            "timed": True,
        }


def find(names: list[str]) -> list[Claim]:
    """The claims of some names; all for no name. Raises CantBeDone for a name of none."""
    by_name = {claim.name: claim for claim in claims()}
    for name in names:
        if name not in by_name:
            near = difflib.get_close_matches(name.lower(), by_name, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise CantBeDone(
                f"there is no claim {name!r}; {hint}'attnbench reproduce --list' shows all"
            )
    return [by_name[name] for name in dict.fromkeys(names)] or list(by_name.values())


class ClaimRequest(Struct, frozen=True):
    """The argument of a measuring function."""

    cells: Mapping[str, Mapping[str, Any]] = {}
    seed: int = 0
    threads: int = 1
    seconds: float = 30.0


class ClaimFigure(Struct, frozen=True):
    """Our figure of a point, with its interval where it has one; or why there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends; of a figure without an interval, the figure itself."""
        value = math.nan if self.value is None else self.value
        low, high = (value if end is None else end for end in (self.low, self.high))
        return low, high


Cells = Sequence[str | int | float | None]


class ClaimTable(Struct, frozen=True):
    """The figures behind the points."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Cells]


class ClaimFindings(Struct, frozen=True):
    """The result of a measuring function."""

    figures: Mapping[str, ClaimFigure] = {}
    notes: Sequence[str] = ()
    tables: Sequence[ClaimTable] = ()


def medians_of(draws: Mapping[str, Sequence[Mapping[str, float]]]) -> ClaimFindings:
    """The median of each figure over its draws, with its 95 % interval; its name is put into the
    key of its draws, such as ``{} float64``.
    """
    figures, rows = dict[str, ClaimFigure](), list[Cells]()
    for key, some in draws.items():
        for name in some[0]:
            s = summary([draw[name] for draw in some])
            figures[key.format(name)] = ClaimFigure(s.median, s.low, s.high)
            rows.append([key.format(name), len(some), s.median, s.low, s.high])
    columns = ["figure", "draws", "median", "from", "to"]
    return ClaimFindings(figures, (), [ClaimTable("medians of draws", columns, rows)])


class PointStanding(StrEnum):
    """The standing of a point."""

    HOLDS = "holds"
    FAILS = "does not hold"
    CANT_TELL = "can't tell"
    NO_FIGURE = "no figure"


def standing(point: ClaimPoint, figure: ClaimFigure | None) -> PointStanding:
    """The standing of a point, by its rule and our figure."""
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


GRAVE = (PointStanding.FAILS, PointStanding.NO_FIGURE, PointStanding.CANT_TELL)
"""The gravest first."""
AGAIN = "give it more time with --budget, or see why by its name: 'attnbench reproduce NAME'"


class ClaimOutcome(Struct, frozen=True):
    """A claim, the verdict on it, and what was found."""

    claim: Claim
    verdict: ClaimVerdict
    reason: str = ""
    remedy: str = ""
    findings: ClaimFindings = ClaimFindings()
    took_s: float = 0.0

    @classmethod
    def of(cls, claim: Claim, findings: ClaimFindings, took_s: float = 0.0) -> ClaimOutcome:
        """The outcome of a claim that was run: its points decide the verdict."""
        figures = findings.figures
        states = {point.name: standing(point, figures.get(point.name)) for point in claim.points}
        verdict, reason, remedy = ClaimVerdict.REPRODUCED, "", ""
        if gravest := next((state for state in GRAVE if state in states.values()), None):
            names = [name for name, state in states.items() if state is gravest]
            of = f"{len(names)} of {counted(len(states), 'point')}"
            reason = f"{gravest} ({of}): {first_few(names, 3)}"
            verdict = ClaimVerdict.NOT_REPRODUCED
            if gravest is PointStanding.NO_FIGURE:
                whys = dict.fromkeys(f.why for f in figures.values() if f.value is None and f.why)
                verdict, reason, remedy = ClaimVerdict.NOT_RUN, "; ".join([reason, *whys]), AGAIN
        return cls(claim, verdict, reason, remedy, findings, took_s)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, those of the claim among them; no number is infinite or NaN."""
        figures = self.findings.figures
        points = [
            {
                **msgspec.to_builtins(point),
                "held": str(standing(point, figures.get(point.name))),
                "ours": plain(figures.get(point.name)),
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
            "notes": list(self.findings.notes),
            "tables": plain(msgspec.to_builtins(self.findings.tables)),
        }


def lacking(claim: Claim, machine: Machine, table: impls.Table) -> ClaimOutcome | None:
    """The outcome of a claim that can't be tried here; None for one that can."""
    needs, verdict, reason, remedy = claim.needs, ClaimVerdict.NOT_RUN, "", ""
    rows = [table.find(name) for name in needs.variants]
    wholes = (row.with_(requires=(*row.requires, *needs.requires)) for row in rows)
    kinds = rf"\b({needs.gpu.replace(' or ', '|')})\b"
    if needs.gpu and not any(re.search(kinds, gpu.name) for gpu in machine.gpus):
        there = ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus)) or "no NVIDIA GPU"
        reason = f"the figures are of an NVIDIA {needs.gpu}, and this machine has {there}"
        verdict, remedy = ClaimVerdict.NEEDS_OTHER_HARDWARE, "run it on one"
    elif needs.gpu and not machine.torch_cuda:
        reason, remedy = "the torch installed here has no CUDA", "install a CUDA build of it"
    elif missing := next(filter(None, (why_not(row, machine) for row in wholes)), None):
        reason, remedy = missing.reason, missing.remedy
    return ClaimOutcome(claim, verdict, reason, remedy) if reason else None
