"""The limit of each variant: the longest length, or the largest batch, within a budget.

The sizes to try come from the row's own formula, and from how the time and the memory grew so far.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from attnbench.answer.search import (
    GRACE_S,
    LEAP,
    By,
    Look,
    SizeSearch,
    fresh_if_full,
    growth,
    ladder,
    refuse_several,
    sized,
)
from attnbench.core import format
from attnbench.core.machine import Machine, pace
from attnbench.core.record import FINDINGS, NOT_TRIED, InvalidRecord, Probed, Record, Status
from attnbench.core.wire import convert, plain
from attnbench.sweep.engine import CELL_LIMIT_S, Engine, WorkerLost, lost_status, measure
from attnbench.sweep.plan import Cell, make_plan
from attnbench.sweep.presets import Preset
from impls import Table
from impls.loading import load_function
from impls.problem import InvalidProblem

MEMORY, TIME, HOLDS = "memory", "time", "holds"
AIM = 0.92
"""The share of the time that is aimed at: a size that holds tells more than one that does not."""
GATE_SEQ = "256"
"""The length at which the whole gate is passed, if the sequence is what is searched."""
BATCH_SEQ = "1024"
"""The length of each sequence, if the batch is what is searched."""
SIZES: Mapping[By, tuple[list[int], int, float]] = {
    "seq": (ladder(64, 1 << 22, 64), 1024, 2.0),
    "batch": (ladder(1, 1 << 20, 1), 1, 1.0),
}
"""The sizes that may be tried; the first; and the power of the size with which a cost should grow,
as long as one size alone is known."""
AXES = ("batch", "heads", "kv_heads", "head_dim", "v_head_dim", "dtype", "inputs", "seq")
RANKS = "it runs over several processes, and limits looks at one"
USUAL_LOOKS, CALLS, USUAL_SHARE, BESIDE_S = 7, 4.5, 0.5, 0.25
"""A search usually takes so many looks, each of so many calls that take this share of what one may,
and so many seconds besides."""
PATIENCE_S, PATIENCE_CALLS = 20.0, 20.0
"""A look may take so long: for building and checking, and in calls as long as one may take."""


@dataclass(frozen=True)
class CallBudget:
    """The most that a call may take."""

    peak_bytes: int
    seconds: float


class LimitSearch(SizeSearch[Probed]):
    """The limit of one variant in one phase."""

    def __init__(self, gate: Cell, by: By, budget: CallBudget) -> None:
        """``gate``: the variant, and the problem at which the whole gate is passed."""
        rungs, start, self.power = SIZES[by]
        super().__init__(rungs, start=start, tries=len(rungs))
        self.variant, self.problem, self.gate = gate.variant, gate.problem, gate
        self.by, self.budget, self.usual = by, budget, USUAL_LOOKS
        self.formula = cache(self._formula)
        self.gated: Record | None = None
        self.refusal: tuple[Status, str] | None = None
        """The reason not to search it: it can't run here, or it did not pass the gate."""
        if gate.left_out is not None:
            self.refuse(gate.left_out.status, gate.left_out.reason)
        elif gate.variant.ranks:
            self.refuse(Status.UNSUPPORTED, RANKS)

    def refuse(self, status: Status, reason: str) -> None:
        """End the search before its first look."""
        self.refusal, self.cut = (status, f"{status.words}: {reason}"), self.start

    @property
    def possible(self) -> bool:
        """Can it be searched here at all?"""
        return self.refusal is None or self.refusal[0] not in NOT_TRIED

    def _formula(self, size: int) -> int | None:
        """Bytes by the row's own formula; None if unknown."""
        if self.variant.cost is None:
            return None
        try:
            problem = sized(self.problem, self.by, size)
            cost = load_function(self.variant.cost)(problem, **self.variant.chosen)
        except Exception:  # a formula may refuse what its variant does
            return None
        peak: int | None = cost.peak_bytes
        return peak

    def look(self, size: int, result: Probed) -> Look[Probed]:
        """The look at a size, by the worker's result."""
        return Look(size, result, None if self.why(result) else HOLDS)

    def why(self, result: Probed) -> str:
        """The reason that a size does not hold: memory, time or a status; empty if it holds."""
        if result.status is not Status.MEASURED:
            return TIME if result.status is Status.TIMED_OUT else str(result.status)
        if result.time_s is not None and result.time_s > self.budget.seconds:
            return TIME
        peak = result.peak_bytes
        return MEMORY if peak is not None and peak > self.budget.peak_bytes else ""

    @property
    def best(self) -> Look[Probed] | None:
        """The longest that ran and held."""
        return next((x for x in self.looks if x.size == self.longest), None)

    def _ratios(self) -> list[float]:
        """Measured peaks over those of the formula."""
        peaks = [(look.result.peak_bytes, self.formula(look.size)) for look in self.looks]
        return [peak / formula for peak, formula in peaks if peak and formula]

    def aim(self) -> float | None:
        """The size that both budgets should hold."""
        sizes = [self.reach(MEMORY), self.reach(TIME, AIM)]
        return min((size for size in sizes if size is not None), default=None)

    def reach(self, what: str, share: float = 1.0) -> float | None:
        """The size that one budget alone should hold, below the shortest 0; None if unknown.

        A formula may cost as much as its size, so it is computed no further than the next look.
        """
        if what == TIME:
            times = growth([(x.size, x.result.time_s) for x in self.looks], self.power)
            return times and times.reach(share * self.budget.seconds)
        peaks, ratios = [(x.size, x.result.peak_bytes) for x in self.looks], self._ratios()
        if not ratios and (by_growth := growth(peaks, self.power)):
            return by_growth.reach(self.budget.peak_bytes)
        if self.formula(self.rungs[0]) is None:
            return None
        top = LEAP * max((x.size for x in self.looks), default=self.start)
        most, scale = bisect_right(self.rungs, top), ratios[-1] if ratios else 1.0

        def bytes_of(size: int) -> float:
            peak = self.formula(size)
            return float("inf") if peak is None else scale * peak

        fits = bisect_right(self.rungs, float(self.budget.peak_bytes), hi=most, key=bytes_of)
        return self.rungs[fits - 1] if fits else 0

    def guess_s(self, size: int) -> float:
        """A guess at the seconds of a look; the first is the whole gate's."""
        if self.gated is None:
            return self.gate.guess_s
        return CALLS * USUAL_SHARE * self.budget.seconds + BESIDE_S * pace()

    def words(self, size: int) -> str:
        """A look in a few words."""
        return f"{self.variant.label} {self.problem.phase}, {self.by} {size:,}"

    def row(self, *, stopped: bool) -> dict[str, Any]:
        """As plain values."""
        best, end = self.best, self.end
        why = f"not looked at: {'it was stopped' if stopped else 'the wall clock was spent'} first"
        if end is not None:
            why = f"nothing held that was run, down to {self.by} {end.size:,}"
        if self.refusal is not None:
            why = self.refusal[1]
        return {
            "variant": self.variant.label,
            "computes": self.variant.computes,
            "family": self.variant.family,
            "phase": self.problem.phase,
            "mask": str(self.problem.mask),
            "by": self.by,
            "held": best and self._plain(best),
            "fails": end and self._plain(end),
            "limited_by": self.why(end.result) if end else "",
            "gate": str(self.gated.status) if self.gated else None,
            "why": "" if best else why,
            "looks": [self._plain(look) for look in self.looks],
            "problem": plain(self.problem),
        }

    def _plain(self, look: Look[Probed]) -> dict[str, Any]:
        return {"size": look.size, "why": self.why(look.result), **plain(look.result)}


def plan(
    table: Table, names: Sequence[str], grid: Preset, by: By, budget: CallBudget, machine: Machine
) -> list[LimitSearch]:
    """A search for each variant and phase; of all variants those that can run here. Raises
    InvalidProblem for a grid, or a mask, in which the size can't be searched.
    """
    searched = f"the {by} alone, and only --phase and --mask may have several values"
    refuse_several(grid, "limits", AXES, searched)
    cells = make_plan(table, names, grid.with_(budget=0.0), machine)
    some = cells.cells if names else [cell for cell in cells.to_run if not cell.variant.ranks]
    for problem in dict.fromkeys(cell.problem for cell in some):
        for size in SIZES[by][0][by == "batch" : 2]:
            try:
                sized(problem, by, size)
            except InvalidProblem as wrong:  # a mask of one length, or of one batch
                raise InvalidProblem(
                    f"limits can't search the {by} under this mask: at {size}, {wrong}; use --by "
                    f"{'batch' if by == 'seq' else 'seq'}, or a mask that fits any size"
                ) from None
    return [LimitSearch(cell, by, budget) for cell in some]


def rows_of(searches: Sequence[LimitSearch], *, stopped: bool = False) -> list[dict[str, Any]]:
    """A row for each variant in each phase, the longest first within a phase and a mask."""
    groups = list(dict.fromkeys((x.problem.phase, str(x.problem.mask)) for x in searches))
    rows = [search.row(stopped=stopped) for search in searches]
    rows.sort(key=lambda row: -(row["held"] or {"size": 0})["size"])
    return sorted(rows, key=lambda row: groups.index((row["phase"], row["mask"])))


def finding(searches: Sequence[LimitSearch]) -> bool:
    """Is a variant not what it claims to be: in its gate, or at a size that it took?"""
    refused = any(x.refusal is not None and x.refusal[0] in FINDINGS for x in searches)
    return refused or any(
        look.result.status is Status.WRONG for search in searches for look in search.looks
    )


def probes_by(
    engine: Engine, seed: int
) -> Callable[[LimitSearch, int, float], Look[Probed] | None]:
    """A worker's result of a size; the whole gate first, before any."""

    def ask(search: LimitSearch, size: int, left_s: float) -> Look[Probed] | None:
        if search.gated is None:
            _gate(search, engine, seed, left_s + GRACE_S)
            return None
        result = fresh_if_full(
            lambda: _probe(search, size, engine, seed, left_s + GRACE_S),
            lambda one: one is not None and one.status is Status.OUT_OF_MEMORY,
            engine,
        )
        if result is None:
            search.cut = size
            return None
        return search.look(size, result)

    return ask


def _gate(search: LimitSearch, engine: Engine, seed: int, left_s: float) -> None:
    """Pass the whole gate at its problem; else the search ends."""
    header, limit_s = {"seed": seed, "budget_s": 0.0}, min(CELL_LIMIT_S, left_s)
    record = measure(search.gate, header, engine, timed=False, limit_s=limit_s)
    if record.status is Status.TIMED_OUT and limit_s < CELL_LIMIT_S:
        search.cut = search.start
        return
    search.gated = record
    if record.status is not Status.MEASURED:
        size = search.problem.batch if search.by == "batch" else search.problem.kv_len
        where = f"{search.by} {size:,}, in its correctness check"
        search.refuse(record.status, f"{where}: {record.reason}")


def _probe(
    search: LimitSearch, size: int, engine: Engine, seed: int, left_s: float
) -> Probed | None:
    """The worker's result of a size; None where only the wall clock ended it."""
    question = {
        "probe": {
            "variant": plain(search.variant),
            "problem": plain(sized(search.problem, search.by, size)),
            "seed": seed,
            "timed": False,
        },
        "max_time_s": search.budget.seconds,
        "expected": search.formula(size),
    }
    patience_s = PATIENCE_S + PATIENCE_CALLS * search.budget.seconds
    limit_s = min(patience_s, left_s)
    try:
        return convert(engine.ask(question, limit_s)["probe"], Probed)
    except (InvalidRecord, KeyError, TypeError, ValueError) as error:
        engine.close()
        reason = f"the worker's answer is no probe: {error}"
        return Probed(status=Status.CRASHED, reason=reason)
    except WorkerLost as lost:
        if not lost.timed_out:
            return Probed(status=lost_status(lost), reason=lost.reason, detail=lost.output)
        reason = f"given up after {format.roughly(limit_s)}"
        return None if limit_s < patience_s else Probed(status=Status.TIMED_OUT, reason=reason)
