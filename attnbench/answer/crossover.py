"""From which length one of two variants is faster: brackets and ties, never a point.

The lengths fall into stretches: neighbouring lengths with the same leader. A crossover lies between
the last length where the one led by more than the margin and the first where the other does;
lengths between, where they can't be told apart, are its ties.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from attnbench.answer.ranking import torch_rank
from attnbench.answer.search import GRACE_S, Look, SizeSearch, fresh_if_full, ladder, sized
from attnbench.core.format import counted, name_and_kind, percent
from attnbench.core.machine import this_machine
from attnbench.core.record import Status
from attnbench.core.stats import Comparison, Verdict
from attnbench.core.wire import plain
from attnbench.sweep.compare import (
    START_AND_GATE_S,
    Compared,
    compare_cell,
    corrected,
    pairs_guess_s,
)
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.plan import Cell
from impls.errors import CantBeDone
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

LEAST_STEP = 16
"""Tokens; nothing changes by less than a tile."""
GROW = (Status.OUT_OF_MEMORY, Status.TIMED_OUT)
"""Failures that a longer sequence has too."""
PAIRS_S, PAIRS_SHARE = 8.0, 1 / 4
"""Seconds of pairs a length, and their share of the time left at most: what they can't tell apart
stays a tie."""
FEW_PAIRS = 40
"""That most lengths take."""
BUDGET, STOPPED = "the budget was spent", "it was stopped"
"""Reasons for an early end."""
A, B, NEITHER = "a", "b", ""
"""The leader."""


class LeaderStretch(NamedTuple):
    """Neighbouring lengths with the same leader; an empty one where they can't be told apart."""

    leader: str
    first: int
    last: int
    decided: bool


class Crossover(NamedTuple):
    """``before`` leads up to the length ``low``, ``after`` from ``high`` on; from the first to the
    last of ``ties`` they can't be told apart.
    """

    before: str
    after: str
    low: int
    high: int
    ties: list[int] | None


class CrossoverSearch(SizeSearch[Compared]):
    """Two variants over the lengths that both take, and which of them leads where."""

    def __init__(self, a: Variant, b: Variant, problem: Problem, ends: tuple[int, int]) -> None:
        """``problem``: at any length. Raises CantBeDone where both take fewer than two lengths."""
        self.a, self.b, self.problem, self.ends = a, b, problem, ends
        self.stopped = False
        self.refused: dict[int, str] = {}
        """The lengths that were left out, and why."""
        rungs = []
        for length in ladder(*ends, LEAST_STEP):
            if why := self._refusal(length):
                self.refused[length] = why
            else:
                rungs.append(length)
        if len(rungs) < 2:
            raise CantBeDone(
                f"there is no range to search: of the lengths from {ends[0]:,} to {ends[1]:,}, "
                f"{'; '.join(self.left_out())}"
            )
        super().__init__(rungs)

    def at(self, length: int) -> Problem:
        """The problem at a length."""
        return sized(self.problem, "seq", length)

    def _refusal(self, length: int) -> str:
        """The reason that one of the two does not take a length; empty where both do."""
        try:
            problem = self.at(length)
        except InvalidProblem:
            return f"the mask {self.problem.mask} does not fit them"
        whys = ((row.label, row.supports(problem)) for row in (self.a, self.b))
        return next((f"{label}: {why}" for label, why in whys if why is not None), "")

    def left_out(self) -> list[str]:
        """How many lengths were left out, a sentence a reason."""
        total = len(ladder(*self.ends, LEAST_STEP))
        whys = Counter(self.refused.values())
        return [f"{n} of {total} lengths are left out: {why}" for why, n in whys.items()]

    def guess_s(self, size: int) -> float:
        """A guess at the seconds of a look: both are checked, and pairs taken."""
        judged, against = (Cell(row, self.at(size), None, 0.0) for row in (self.b, self.a))
        return pairs_guess_s(judged, against, this_machine(), PAIRS_S, FEW_PAIRS)

    def words(self, size: int) -> str:
        """A look in a few words."""
        return f"look {len(self.looks) + 1}, at {size:,} {self.unit}"

    # ---- the result ----------------------------------------------------------------------------

    def sides(self) -> list[Look[Compared]]:
        """The looks with pairs, by length, after Holm's correction over all of them."""
        looks = super().sides()
        results = corrected([look.result for look in looks])
        return [
            replace(look, result=result, side=leader(comparison_of(result)))
            for look, result in zip(looks, results, strict=True)
        ]

    def decided(self, look: Look[Compared]) -> bool:
        """Did the pairs come to a verdict?"""
        return comparison_of(look.result).verdict is not Verdict.INCONCLUSIVE

    @property
    def all_looks(self) -> list[Look[Compared]]:
        """All results, by length."""
        return sorted([*self.sides(), *self.failures], key=lambda look: look.size)

    @property
    def ended(self) -> str:
        """The reason for an early end; empty if there was none."""
        if self.stopped:
            return STOPPED
        return BUDGET if self.cut is not None or self.next() is not None else ""

    @property
    def unit(self) -> str:
        """The unit of a length."""
        return "keys" if self.problem.phase == "decode" else "tokens"

    def label_of(self, side: str | None) -> str:
        """The variant that leads."""
        return {A: self.a.label, B: self.b.label}.get(side or "", "")

    def name_of(self, label: str) -> str:
        """The name of one of the two, and what it computes where that is not softmax."""
        return name_and_kind(label, (self.a if label == self.a.label else self.b).computes)

    def stretches(self) -> list[LeaderStretch]:
        """All, by length."""
        stretches = []
        for side, group in groupby(self.sides(), lambda look: look.side):
            looks = [*group]
            ends, decided = (looks[0].size, looks[-1].size), all(map(self.decided, looks))
            stretches.append(LeaderStretch(self.label_of(side), *ends, decided))
        return stretches

    def crossovers(self) -> list[Crossover]:
        """Each change of leader, by length."""
        crossovers: list[Crossover] = []
        ahead: LeaderStretch | None = None
        ties: list[int] = []
        for stretch in self.stretches():
            if not stretch.leader:
                ties += [stretch.first, stretch.last]
                continue
            if ahead is not None and ahead.leader != stretch.leader:
                tied = [ties[0], ties[-1]] if ties else None
                ends = ahead.last, stretch.first
                crossovers.append(Crossover(ahead.leader, stretch.leader, *ends, tied))
            ahead, ties = stretch, []
        return crossovers

    def sentence(self) -> str:
        """Which one leads where, where that changes, and how many pairs it rests on."""
        looks, labels = self.sides(), (self.a.label, self.b.label)
        a, b = map(self.name_of, labels)
        if not looks:
            return f"{a} and {b} were compared at no length"
        comparisons = [comparison_of(look.result) for look in looks]
        places, stretches = list[str](), self.stretches()
        tied = f"they are tied, margin {percent(max(c.margin for c in comparisons))}"
        for one in stretches:
            where = f"from {one.first:,} to {one.last:,}" if one.first < one.last else ""
            where = where or f"at {one.first:,}"
            level = tied if one.decided else "the pairs did not decide"
            place = f"{self.name_of(one.leader)} is faster" if one.leader else level
            places.append(f"{where}{'' if places else f' {self.unit}'} {place}")
        texts = [f"{a} and {b}: {'; '.join(places)}"]
        for c in self.crossovers():
            after, before = self.name_of(c.after), self.name_of(c.before)
            texts.append(f"{after} overtakes {before} between {c.low:,} and {c.high:,}")
        first, other = sorted(labels, key=torch_rank)
        tie = any(not one.leader and one.decided for one in stretches)
        if tie and torch_rank(first) != torch_rank(other):
            texts.append(f"Where they tie, use {self.name_of(first)}: it is torch's own")
        pairs = sum(c.n for c in comparisons)
        return f"{'. '.join(texts)} ({pairs:,} pairs at {counted(len(looks), 'length')})"

    def notes(self) -> list[str]:
        """All else that must be known."""
        end, ended, notes = self.end, self.ended, self.left_out()
        for look in self.failures:
            where = f"from {look.size:,} on" if look is end else f"at {look.size:,}"
            status = look.result.status.replace("_", " ")
            notes.append(f"{where} they can't be compared: {status}: {look.result.why}")
        if self.cut is not None:
            notes.append(f"{BUDGET} while {self.cut:,} was looked at")
        elif ended and end is None and self.longest < self.rungs[-1]:
            notes.append(f"{ended} before {self.rungs[-1]:,} was looked at")
        if undecided := [f"{look.size:,}" for look in self.sides() if not self.decided(look)]:
            notes.append(f"at {', '.join(undecided)} the pairs did not decide")
        return notes

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        labels = a, b = self.a.label, self.b.label
        return {
            "a": a,
            "b": b,
            "computes": {row.label: row.computes for row in (self.a, self.b)},
            "range": list(self.ends),
            "stretches": [
                {"leader": x.leader, "from": x.first, "to": x.last} for x in self.stretches()
            ],
            "crossovers": [each._asdict() for each in self.crossovers()],
            "looks": [
                {
                    **plain(look.result),
                    "length": look.size,
                    "leader": None if look.side is None else self.label_of(look.side),
                    "median_s": (c := look.result.comparison)
                    and dict(zip(labels, c.medians, strict=True)),
                    "took_s": look.took_s,
                }
                for look in self.all_looks
            ],
            "ended": self.ended or "found",
            "notes": self.notes(),
            "sentence": self.sentence(),
            "problem": plain(self.problem),
        }


def comparison_of(result: Compared) -> Comparison:
    """The comparison of a look that succeeded."""
    assert result.comparison is not None
    return result.comparison


def leader(comparison: Comparison) -> str:
    """The one that is faster by more than the margin."""
    return {Verdict.SLOWER: A, Verdict.FASTER: B}.get(comparison.verdict, NEITHER)


def pairs_by(
    engine: LocalEngine, seed: int, margin: float | None, floors: Sequence[Mapping[str, Any]] = ()
) -> Callable[[CrossoverSearch, int, float], Look[Compared] | None]:
    """Pairs at a length, by one worker. Without a margin it is the noise floor's; where none is
    stored, the first look measures it.
    """

    def ask(search: CrossoverSearch, length: int, left_s: float) -> Look[Compared] | None:
        nonlocal margin
        problem, limit_s = search.at(length), left_s + GRACE_S
        pairs_s = min(PAIRS_S, PAIRS_SHARE * left_s)
        cells = [Cell(row, problem, None, 0.0) for row in (search.b, search.a)]
        how = engine, seed, margin, floors, pairs_s, limit_s
        result = fresh_if_full(
            lambda: compare_cell(cells[0], cells[1], *how),
            lambda one: one.status is Status.OUT_OF_MEMORY,
            engine,
        )
        if result.status is Status.TIMED_OUT and limit_s < START_AND_GATE_S + 4 * pairs_s:
            search.cut = length
            return None
        if result.comparison is None:
            return Look(length, result, None, grows=result.status in GROW)
        if margin is None and not floors:
            margin = result.comparison.margin
        return Look(length, result, leader(result.comparison))

    return ask
