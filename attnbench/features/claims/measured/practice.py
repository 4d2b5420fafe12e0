"""Do mechanisms of low rank or inferred sparsity improve on exact attention, at equal performance?

A mechanism improves at a length where, by its cells, it is faster than torch's own attention by
more than the margin of unpaired times and keeps half or more of what softmax does beyond the mean
of the values (its skill), on one of three kinds of inputs. Where it overtakes is searched by
pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.features.claims.measured.crossing import bracket, said
from attnbench.features.claims.measured.ruler import engine, record, row
from attnbench.sweep.engine import Engine, LocalEngine
from impls.asked import CantBeDone
from impls.problem import Problem
from impls.spec import Variant

EXACT = "sdpa"
MECHANISMS = ("linformer", "nystrom", "performer", "rfa", "skyformer", "lsh", "routing")
"""Five of low rank; two that infer which pairs matter."""
LENGTHS = (512, 2048, 8192)
JUDGED_AT = 1024
"""Where the skill on other inputs than the timed ones is judged."""
INPUTS = ("normal", "peaky", "equal_keys")
BETWEEN = (256, 8192)
LEAST_LEAD, LEAST_SKILL = 0.05, 0.5
CELLS_SHARE, CROSSING_SHARE = 0.15, 0.5
"""Of the time that is given; the rest is for starting and for the gate."""


@dataclass
class Mechanism:
    """What was found of one."""

    variant: Variant
    times: dict[int, float] = field(default_factory=dict)
    skills: dict[str, float] = field(default_factory=dict)
    whys: list[str] = field(default_factory=list)
    overtakes: str = ""

    @property
    def skill(self) -> float:
        """The best of all kinds of inputs."""
        return max(self.skills.values(), default=0.0)

    def improves(self, length: int, exact_s: float, *, equal: bool) -> bool:
        """``equal``: for an equivalent level of performance, or else in speed alone."""
        quick = length in self.times and self.times[length] < exact_s * (1 - LEAST_LEAD)
        return quick and (self.skill >= LEAST_SKILL or not equal)


def measure(asked: ClaimRequest) -> ClaimFindings:
    """At each length, the share of mechanisms that improve."""
    all_of = [Mechanism(row(name)) for name in MECHANISMS]
    exact = Mechanism(row(EXACT))
    cells = len(LENGTHS) * (len(all_of) + 1)
    with engine(asked) as opened:
        for one in (exact, *all_of):
            _timed(opened, one, asked, CELLS_SHARE * asked.seconds / cells)
        for one in all_of:
            _skill(opened, one, asked)
            _overtakes(opened, one, exact, asked, CROSSING_SHARE * asked.seconds / len(all_of))
    figures = {str(n): _share(all_of, exact, n, equal=True) for n in LENGTHS}
    shares: list[list[str | float | None]] = [
        [n, figures[str(n)].value, _share(all_of, exact, n, equal=False).value] for n in LENGTHS
    ]
    columns = ["tokens", "as good and faster", "faster"]
    summed = ClaimTable("share of the mechanisms that are", columns, shares)
    return ClaimFindings(figures, _notes([exact, *all_of]), [_table(all_of, exact), summed])


def _problem(length: int, inputs: str = "normal") -> Problem:
    return Problem(heads=1, kv_heads=1, q_len=length, kv_len=length, inputs=inputs)


def _timed(opened: Engine, one: Mechanism, asked: ClaimRequest, each_s: float) -> None:
    for n in LENGTHS:
        said = record(opened, one.variant, _problem(n), asked, each_s)
        if said.time is None:
            one.whys.append(f"{n:,}: {said.status}: {said.reason}")
            continue
        one.times[n] = said.time.median_s


def _skill(opened: Engine, one: Mechanism, asked: ClaimRequest) -> None:
    for inputs in INPUTS:
        said = record(opened, one.variant, _problem(JUDGED_AT, inputs), asked, 0.0, timed=False)
        if said.distance is not None and said.distance.skill is not None:
            one.skills[inputs] = said.distance.skill
        else:
            one.whys.append(f"{inputs}: {said.status}: {said.reason or 'its skill is not known'}")


def _overtakes(
    opened: LocalEngine, one: Mechanism, exact: Mechanism, asked: ClaimRequest, seconds: float
) -> None:
    first = _problem(BETWEEN[0])
    try:
        found = bracket(opened, exact.variant, one.variant, first, BETWEEN, asked, seconds)
        one.overtakes = said(found)
    except CantBeDone as error:
        one.whys.append(str(error))


def _share(all_of: list[Mechanism], exact: Mechanism, length: int, *, equal: bool) -> ClaimFigure:
    if length not in exact.times:
        return ClaimFigure(None, why=f"{EXACT} has no time at {length:,}")
    count = sum(one.improves(length, exact.times[length], equal=equal) for one in all_of)
    return ClaimFigure(count / len(all_of))


def _notes(all_of: list[Mechanism]) -> list[str]:
    return [f"{one.variant.label}: {why}" for one in all_of for why in one.whys]


def _table(all_of: list[Mechanism], exact: Mechanism) -> ClaimTable:
    columns = [
        "mechanism",
        *(f"time at {n:,} over {EXACT}'s" for n in LENGTHS),
        *(f"skill, {kind}" for kind in INPUTS),
        "faster, by pairs",
    ]
    rows: list[list[str | float | None]] = []
    for one in all_of:
        ratios = [
            one.times[n] / exact.times[n] if n in one.times and n in exact.times else None
            for n in LENGTHS
        ]
        rows.append(
            [one.variant.label, *ratios, *(one.skills.get(kind) for kind in INPUTS), one.overtakes]
        )
    return ClaimTable("mechanisms of low rank and inferred sparsity", columns, rows)
