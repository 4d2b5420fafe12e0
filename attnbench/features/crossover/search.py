"""From which length one variant is faster than another."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from math import inf, log
from time import monotonic
from typing import Any

from attnbench.answer.search import GRACE_S, fresh_if_full, in_turn, refuse_several, sized
from attnbench.core.machine import Machine, why_not
from attnbench.core.record import Status
from attnbench.core.stats import Comparison, Verdict, holm
from attnbench.sweep.compare import START_AND_GATE_S, compare_cell
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.plan import Cell, problems
from attnbench.sweep.presets import Preset
from impls.asked import CantBeDone
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

RUNGS = 16
"""Lengths to an octave."""
LEAST_STEP = 16
"""Tokens; nothing changes by less than a tile."""
TRIES = 2
"""So many lengths between two looks may fail before no other is tried there."""
GROW = (Status.OUT_OF_MEMORY, Status.TIMED_OUT)
"""Failures that a longer sequence has too."""
CLIMB_SHARE = 1 / 3
"""An octave that takes more than this share of the time left waits until the gaps are closed."""
STEEPEST = 2.5
"""The time of a look grows with no higher power of the length."""
PAIRS_S = 8.0
"""Seconds of pairs a length: what they can't tell apart stays a tie."""
PAIRS_SHARE = 1 / 4
"""Of the time left, pairs get no more than this."""
LONGEST = 1 << 24
"""A longer one is a mistake at the keyboard."""
A, B, NEITHER = "a", "b", ""
"""Which one leads."""


def ladder(shortest: int, longest: int) -> list[int]:
    """Both ends, and the rungs between them."""
    rungs, at = [shortest], shortest
    while at < longest:
        step = max(LEAST_STEP, (1 << (at.bit_length() - 1)) // RUNGS)
        at = min((at // step + 1) * step, longest)
        rungs.append(at)
    return rungs


def octaves(rungs: Sequence[int]) -> list[int]:
    """The first rung of each octave, and the last of all."""
    firsts = [next(group) for _, group in groupby(rungs, int.bit_length)]
    return list(dict.fromkeys([*firsts, rungs[-1]]))


@dataclass(frozen=True)
class LengthRatio:
    """The result of one length: b's time over a's, or which one was stopped, and why; the medians
    of their calls, and the wall time of the look.
    """

    length: int
    comparison: Comparison | None
    status: Status = Status.MEASURED
    why: str = ""
    a_s: float = 0.0
    b_s: float = 0.0
    took_s: float = 0.0

    @property
    def leader(self) -> str:
        """The one that is faster by more than the margin."""
        leads = {Verdict.SLOWER: A, Verdict.FASTER: B}
        return leads.get(self.comparison.verdict, NEITHER) if self.comparison else NEITHER

    @property
    def decided(self) -> bool:
        """Whether the pairs came to a verdict."""
        return self.comparison is not None and self.comparison.verdict is not Verdict.INCONCLUSIVE


class CrossoverSearch:
    """Two variants over some lengths: octaves first, then the gaps between different leaders."""

    def __init__(self, rungs: Sequence[int]) -> None:
        self.rungs = list(rungs)
        self._looks: dict[int, LengthRatio] = {}
        self.cut: int | None = None
        """The length at which the wall clock was spent during the look."""

    @property
    def turn(self) -> int:
        """How often it was looked at."""
        return len(self._looks)

    def hear(self, look: LengthRatio) -> None:
        """Add the result of a length."""
        self._looks[look.length] = look

    @property
    def looks(self) -> list[LengthRatio]:
        """The results with a ratio, by length, after Holm's correction over all of them."""
        ratios = sorted((x for x in self._looks.values() if x.comparison), key=lambda x: x.length)
        corrected = holm([x.comparison for x in ratios if x.comparison])
        return [replace(look, comparison=c) for look, c in zip(ratios, corrected, strict=True)]

    @property
    def failed(self) -> list[LengthRatio]:
        """The results without a ratio, by length."""
        failed = (x for x in self._looks.values() if x.comparison is None)
        return sorted(failed, key=lambda x: x.length)

    @property
    def _longest(self) -> int:
        """The longest that has a ratio."""
        return max((x.length for x in self._looks.values() if x.comparison), default=0)

    @property
    def end(self) -> LengthRatio | None:
        """The first failure beyond all ratios: no longer length is tried."""
        longest = self._longest
        beyond = (x for x in self.failed if x.length > longest)
        return next((x for x in beyond if longest or x.status in GROW), None)

    def expect_s(self, size: int) -> float:
        """Seconds that a look will take, by the growth between the two longest that are no longer;
        0 before the first look.
        """
        known = sorted(self._looks.values(), key=lambda x: x.length)
        shorter = [x for x in known if x.length <= size][-2:] or known[:1]
        if not shorter:
            return 0.0
        first, last = shorter[0], shorter[-1]
        power = 1.0
        if first is not last and first.took_s > 0 and last.took_s > 0:
            power = log(last.took_s / first.took_s) / log(last.length / first.length)
        return last.took_s * max(1.0, size / last.length) ** min(max(power, 1.0), STEEPEST)

    def next(self, left_s: float = inf) -> int | None:
        """The length to look at: the next octave, or halfway to it where it failed, as long as that
        holds; but the middle of a gap where an octave would take more than its share of the time
        left. None where the search is over.
        """
        end, longest = self.end, self._longest
        gap = self._gap()
        todo = [n for n in octaves(self.rungs) if n not in self._looks]
        todo = [n for n in todo if end is None or n < end.length]
        if not todo and end is not None:
            between = self._unseen(longest, end.length)
            tried = sum(look.length > longest for look in self.failed)
            if longest and between and tried < TRIES:
                todo = [_middle(between)]
        if todo and not (gap and self.expect_s(todo[0]) > CLIMB_SHARE * left_s):
            return todo[0]
        return _middle(gap) if gap else None

    def _gap(self) -> tuple[int, ...]:
        """The rungs between two neighbouring looks with different leaders: of changes of leader
        first, rather than edges of ties; of them the widest, then the shortest. Empty if none.
        """
        found, looks = [], self.looks
        for n, (one, other) in enumerate(pairwise(looks)):
            if one.leader == other.leader:
                continue
            before = next((x.leader for x in reversed(looks[: n + 1]) if x.leader), NEITHER)
            after = next((x.leader for x in looks[n + 1 :] if x.leader), NEITHER)
            changes = NEITHER not in (before, after) and before != after
            rungs = self._unseen(one.length, other.length)
            if rungs and (changes or (one.decided and other.decided)):
                found.append((not changes, -len(rungs), rungs))
        return min(found)[-1] if found else ()

    def _unseen(self, low: int, high: int) -> tuple[int, ...]:
        """The rungs between that may still be looked at."""
        between = [n for n in self.rungs if low < n < high]
        unseen = tuple(n for n in between if n not in self._looks)
        return unseen if len(between) - len(unseen) < TRIES else ()


def _middle(rungs: Sequence[int]) -> int:
    return rungs[(len(rungs) - 1) // 2]


def seek(
    search: CrossoverSearch,
    ask: Callable[[int, float], LengthRatio | None],
    seconds: float,
    now: Callable[[], float] = monotonic,
) -> Iterator[tuple[LengthRatio, float]]:
    """Look after look, each with the seconds left, until all is found or the wall clock is spent.

    ``ask``: the result of a length, given the seconds left; None if only the wall clock ended it.
    """
    until = now() + seconds
    for _, length, left_s in in_turn([search], seconds, late_s=GRACE_S, now=now):
        began = now()
        found = ask(length, left_s)
        if found is None:
            search.cut = length
            return
        look = replace(found, took_s=now() - began)
        search.hear(look)
        yield look, max(0.0, until - now())


# ---- the two variants and their lengths ----------------------------------------------------------


@dataclass
class Duel:
    """Two variants, the problem at its shortest length, and the lengths that both take."""

    a: Variant
    b: Variant
    problem: Problem
    asked: tuple[int, int]
    rungs: list[int]
    refused: dict[str, list[int]] = field(default_factory=dict)
    """By reason, the lengths that were left out."""

    def at(self, length: int) -> Problem:
        """The problem at a length."""
        return sized(self.problem, "seq", length)

    def refusal(self, length: int) -> str:
        """Why one of the two does not take a length; empty where both do."""
        try:
            problem = self.at(length)
        except InvalidProblem:
            return f"the mask {self.problem.mask} does not fit them"
        whys = ((row.label, row.supports(problem)) for row in (self.a, self.b))
        return next((f"{label}: {why}" for label, why in whys if why is not None), "")

    def notes(self) -> list[str]:
        """What was left out, a sentence a reason."""
        notes = []
        for why, some in self.refused.items():
            where = f"{len(some)} lengths from {some[0]:,} to {some[-1]:,} are"
            where = where if len(some) > 1 else f"{some[0]:,} is"
            notes.append(f"{where} left out: {why}")
        return notes


def plan(a: Variant, b: Variant, grid: Preset, machine: Machine) -> Duel:
    """The two and the lengths that exist and that both take; raises :class:`CantBeDone`."""
    if a.label == b.label:
        raise CantBeDone(f"{a.label} can't overtake itself; name two variants")
    ends = _range(grid.seq)
    axes = ("batch", "heads", "kv_heads", "head_dim", "v_head_dim", "dtype", "mask", "phase")
    refuse_several(grid, "crossover", (*axes, "inputs", "level"), "the length alone")
    for row in (a, b):
        if row.ranks:
            raise CantBeDone(f"{row.label} runs over several processes: compare takes it")
        if (missing := why_not(row, machine)) is not None:
            raise CantBeDone("; ".join(filter(None, [missing.reason, missing.remedy])))
    duel = Duel(a, b, _shortest(grid, a, ends), ends, [])
    for length in ladder(*ends):
        if why := duel.refusal(length):
            duel.refused.setdefault(why, []).append(length)
        else:
            duel.rungs.append(length)
    if len(duel.rungs) < 2:
        raise CantBeDone(
            f"there is no range to search: of the lengths from {ends[0]:,} to {ends[1]:,}, "
            f"{'; '.join(duel.notes())}"
        )
    return duel


def _range(seq: Sequence[str]) -> tuple[int, int]:
    """Two lengths, the shorter first: ``128,16384``."""
    low, high = (int(n) if n.isascii() and n.isdigit() else 0 for n in (*seq, "", "")[:2])
    if len(seq) != 2 or not 1 <= low < high <= LONGEST:
        raise InvalidProblem(
            f"--seq {','.join(seq)} is no range: crossover looks between two lengths of 1 to "
            f"{LONGEST:,}, and the shorter comes first, as in --seq 128,16384"
        )
    return low, high


def _shortest(grid: Preset, row: Variant, ends: tuple[int, int]) -> Problem:
    """The problem at its shortest; if the mask fits no length there, at its longest."""
    wrong = ""
    for length in ends:
        try:
            return next(problems(grid.with_(seq=(str(length),)), grid.level or (row.level,)))
        except InvalidProblem as error:
            wrong = wrong or f"at {length:,}, {error}"
    raise InvalidProblem(f"no range of lengths can be searched: {wrong}")


@dataclass
class PairServer:
    """Pairs of the two at a length, by one worker."""

    duel: Duel
    engine: LocalEngine
    seed: int
    margin: float | None
    """None: the noise floor's. Where none is stored, the first look measures it."""
    floors: Sequence[Mapping[str, Any]] = ()

    def __call__(self, length: int, left_s: float) -> LengthRatio | None:
        """The result of a length; None where only the wall clock ended it."""
        problem, pairs_s = self.duel.at(length), min(PAIRS_S, PAIRS_SHARE * left_s)
        judged, against = (Cell(row, problem, None, 0.0) for row in (self.duel.b, self.duel.a))
        ask = partial(compare_cell, judged, against, self.engine, self.seed, self.margin)
        found = fresh_if_full(
            lambda: ask(self.floors, pairs_s, left_s + GRACE_S),
            lambda one: one.status is Status.OUT_OF_MEMORY,
            self.engine,
        )
        if found.status is Status.TIMED_OUT and left_s + GRACE_S < START_AND_GATE_S + 4 * pairs_s:
            return None
        if found.pairs is None:
            return LengthRatio(length, None, found.status, found.why)
        pairs = found.pairs
        if self.margin is None and not self.floors:
            self.margin = pairs.comparison.margin
        a_s, b_s = statistics.median(pairs.a_s), statistics.median(pairs.b_s)
        return LengthRatio(length, pairs.comparison, a_s=a_s, b_s=b_s)
