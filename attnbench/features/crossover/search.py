"""From which length one of two variants is faster: brackets and ties, never a point.

The lengths fall into stretches: neighbouring lengths with the same leader. A crossover lies between
the last length where the one led by more than the margin and the first where the other does;
lengths between, where they can't be told apart, are its ties.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from math import inf, log
from time import monotonic
from typing import Any, NamedTuple

from attnbench.answer.ranking import torch_rank
from attnbench.answer.search import GRACE_S, fresh_if_full, in_turn, refuse_several, sized
from attnbench.core.format import counted, name_and_kind, percent
from attnbench.core.machine import Machine, pace, why_not
from attnbench.core.record import Status
from attnbench.core.stats import Comparison, Verdict, holm
from attnbench.sweep.compare import LEAST_PAIRS, START_AND_GATE_S, compare_cell, pairs_guess_s
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.plan import Cell, problems
from attnbench.sweep.presets import Preset
from impls.errors import CantBeDone
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
CHANGES = 3
"""Octaves for which a look between two of them is thought to come."""
NEAR_SHARE = 0.4
"""Of these a length between two octaves is thought to take, besides."""
BESIDE_S = 0.6
"""A look takes, besides."""
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

    def ahead(self) -> list[int]:
        """The lengths that are looked at yet, as things stand; until a leader has changed,
        a change may come, the likelier the more octaves are left.
        """
        end, gap = self.end, self._gap()
        todo = [n for n in octaves(self.rungs) if n not in self._looks]
        todo = [n for n in todo if end is None or n < end.length]
        looks = 1 + len(gap).bit_length()
        if not gap and todo and len({x.leader for x in self.looks}) < 2:
            firsts = octaves(self.rungs)
            low = firsts[(len(firsts) - 1) // 2]
            gap, looks = tuple(n for n in self.rungs if low < n < 2 * low), len(todo) // CHANGES
        return [*todo, *[_middle(gap)] * looks] if gap else todo

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
    watch: Callable[[int, float], None] = lambda length, left_s: None,
) -> Iterator[tuple[LengthRatio, float]]:
    """Look after look, each with the seconds left, until all is found or the wall clock is spent.

    ``ask``: the result of a length, given the seconds left; None if only the wall clock ended it.
    ``watch`` is told each length before it is looked at.
    """
    until = now() + seconds
    for _, length, left_s in in_turn([search], seconds, late_s=GRACE_S, now=now):
        watch(length, left_s)
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

    def guess_s(self, length: int, machine: Machine, *, floor: bool = False) -> float:
        """Of a look at a length: both are checked, and pairs taken; more between two octaves, since
        there the two are near each other.
        """
        judged, against = (Cell(row, self.at(length), None, 0.0) for row in (self.b, self.a))
        near_s = NEAR_SHARE * PAIRS_S * pace() * (length not in octaves(self.rungs))
        guess_s = pairs_guess_s(judged, against, machine, PAIRS_S, floor=floor, pairs=LEAST_PAIRS)
        return BESIDE_S * pace() + guess_s + near_s

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
    low, high = (int(n) if re.fullmatch(r"[0-9]{1,9}", n) else 0 for n in (*seq, "", "")[:2])
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


# ---- the answer ----------------------------------------------------------------------------------

BUDGET, STOPPED = "the budget was spent", "it was stopped"
"""Why a search ended before it was over."""


class CrossoverStretch(NamedTuple):
    """Neighbouring lengths with the same leader; an empty one where they can't be told apart."""

    leader: str
    first: int
    last: int
    looks: Sequence[LengthRatio]

    @property
    def decided(self) -> bool:
        """Whether the pairs came to a verdict at each of these lengths."""
        return all(look.decided for look in self.looks)


class Crossover(NamedTuple):
    """``before`` leads up to the length ``low``, ``after`` from ``high`` on; from the first to the
    last of ``ties`` they can't be told apart. It is tight where no length is left to narrow it.
    """

    before: str
    after: str
    low: int
    high: int
    ties: tuple[int, int] | None
    tight: bool


@dataclass(frozen=True)
class CrossoverAnswer:
    """The result of a search. ``what`` a length counts: tokens, or keys; ``ended``: why it ended
    before it was over; ``left_out``: sentences about lengths that were left out; ``computes``: what
    each of the two computes.
    """

    a: str
    b: str
    what: str
    asked: tuple[int, int]
    search: CrossoverSearch
    ended: str = ""
    left_out: tuple[str, ...] = ()
    computes: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_looks(self) -> list[LengthRatio]:
        """All results, by length."""
        return sorted([*self.search.looks, *self.search.failed], key=lambda look: look.length)

    def stretches(self) -> list[CrossoverStretch]:
        """All, by length."""
        found = []
        for leader, group in groupby(self.search.looks, key=lambda look: look.leader):
            looks = tuple(group)
            ends = looks[0].length, looks[-1].length
            found.append(CrossoverStretch(self._label(leader), *ends, looks))
        return found

    def crossovers(self) -> list[Crossover]:
        """Each change of leader, by length."""
        found: list[Crossover] = []
        ahead: CrossoverStretch | None = None
        ties: list[CrossoverStretch] = []
        for stretch in self.stretches():
            if not stretch.leader:
                ties.append(stretch)
                continue
            if ahead is not None and ahead.leader != stretch.leader:
                tied = (ties[0].first, ties[-1].last) if ties else None
                tight = not any(
                    one.last < length < other.first
                    for one, other in pairwise([ahead, *ties, stretch])
                    for length in self.search.rungs
                )
                ends = ahead.last, stretch.first
                found.append(Crossover(ahead.leader, stretch.leader, *ends, tied, tight))
            ahead, ties = stretch, []
        return found

    def _label(self, leader: str) -> str:
        return {A: self.a, B: self.b}.get(leader, "")

    # ---- words ---------------------------------------------------------------------------------

    def name_of(self, label: str) -> str:
        """The name of one of the two, and what it computes where that is not softmax."""
        return name_and_kind(label, self.computes.get(label, ""))

    def sentence(self) -> str:
        """Which one leads where, where that changes, and how many pairs it rests on."""
        looks, a, b = self.search.looks, self.name_of(self.a), self.name_of(self.b)
        if not looks:
            return f"{a} and {b} were compared at no length"
        pairs = sum(look.comparison.n for look in looks if look.comparison)
        loose = f", and no tighter, for {self.ended or 'lengths between could not be compared'}"
        texts = [self._course()]
        for c in self.crossovers():
            after, before = self.name_of(c.after), self.name_of(c.before)
            between = f"{after} overtakes {before} between {c.low:,} and {c.high:,}"
            texts.append(between if c.tight else between + loose)
        first, other = sorted((self.a, self.b), key=torch_rank)
        tie = any(not one.leader and one.decided for one in self.stretches())
        if tie and torch_rank(first) != torch_rank(other):
            texts.append(f"Where they tie, use {self.name_of(first)}: it is torch's own")
        return f"{'. '.join(texts)} ({pairs:,} pairs at {counted(len(looks), 'length')})"

    def _course(self) -> str:
        """Which one leads where."""

        def margin(looks: Sequence[LengthRatio]) -> str:
            """``1 %``, or ``1 % to 3 %``."""
            margins = sorted(x.comparison.margin for x in looks if x.comparison)
            return " to ".join(dict.fromkeys(map(percent, (margins[0], margins[-1]))))

        a, b = self.name_of(self.a), self.name_of(self.b)
        places: list[str] = []
        for one in self.stretches():
            where = f"from {one.first:,} to {one.last:,}"
            where = where if one.first < one.last else f"at {one.first:,}"
            where += "" if places else f" {self.what}"
            level = "the pairs did not decide"
            if one.decided:
                level = f"they are tied, margin {margin(one.looks)}"
            leads = f"{self.name_of(one.leader)} is faster"
            places.append(f"{where} {leads if one.leader else level}")
        if len(places) > 1:
            return "; ".join(places)
        if not one.leader and not one.decided:
            return f"the pairs did not decide between {a} and {b}, {where}"
        if not one.leader:
            return f"{a} and {b} are tied, margin {margin(one.looks)}, {where}"
        shares = []
        for look in dict.fromkeys((one.looks[0], one.looks[-1])):  # the leader's of the other's
            if (c := look.comparison) is not None:
                ends = (c.ratio, c.low, c.high)
                if look.leader == A:
                    ends = (1 / c.ratio, 1 / c.high, 1 / c.low)
                ratio, low, high = (f"{x:.3g}" for x in ends)
                shares.append(f"{ratio} [{low}, {high}] at {look.length:,}")
        throughout = "throughout, " if one.first < one.last else ""
        taken, other = " and ".join(shares), b if one.leader == self.a else a
        leader = self.name_of(one.leader)
        return f"{leader} is faster {throughout}{where}: it takes {taken} of the time of {other}"

    def notes(self) -> list[str]:
        """What else must be known."""
        search, end, longest = self.search, self.search.end, self.search.rungs[-1]
        looks, notes = search.looks, list(self.left_out)
        for look in search.failed:
            where = f"from {look.length:,} on" if look is end else f"at {look.length:,}"
            notes.append(f"{where} they can't be compared: {look.status.words}: {look.why}")
        if search.cut is not None:
            notes.append(f"{BUDGET} while {search.cut:,} was looked at")
        elif self.ended and end is None and not any(x.length == longest for x in looks):
            notes.append(f"{self.ended} before {longest:,} was looked at")
        if undecided := [f"{look.length:,}" for look in looks if not look.decided]:
            notes.append(f"at {', '.join(undecided)} the pairs did not decide")
        if len(looks) > 1:
            notes.append("two crossovers within an octave of lengths would not be seen")
        return notes

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        crossovers = [each._asdict() for each in self.crossovers()]
        return {
            "a": self.a,
            "b": self.b,
            "computes": dict(self.computes),
            "range": list(self.asked),
            "stretches": [
                {"leader": each.leader, "from": each.first, "to": each.last}
                for each in self.stretches()
            ],
            "crossovers": [{**c, "ties": c["ties"] and list(c["ties"])} for c in crossovers],
            "looks": [
                {
                    "length": look.length,
                    "status": str(look.status),
                    "why": look.why,
                    "leader": self._label(look.leader) if look.comparison else None,
                    "median_s": look.comparison and {self.a: look.a_s, self.b: look.b_s},
                    "took_s": look.took_s,
                    "comparison": look.comparison and look.comparison.to_dict(),
                }
                for look in self.all_looks
            ],
            "ended": self.ended or "found",
            "notes": self.notes(),
            "sentence": self.sentence(),
        }


def find_crossover(
    a: Variant,
    b: Variant,
    problem: Problem,
    between: tuple[int, int],
    engine: LocalEngine,
    seed: int,
    margin: float,
    seconds: float,
) -> CrossoverAnswer:
    """Which of two leads where, over the lengths of a problem that both take, in so many seconds;
    raises :class:`CantBeDone` where these are fewer than two.
    """
    duel = Duel(a, b, problem, between, [])
    duel.rungs += [length for length in ladder(*between) if not duel.refusal(length)]
    if len(duel.rungs) < 2:
        raise CantBeDone(f"{a.label} and {b.label} share no lengths to search")
    search = CrossoverSearch(duel.rungs)
    for _ in seek(search, PairServer(duel, engine, seed, margin), seconds):
        pass
    ended = BUDGET if search.next() is not None else ""
    computes = {row.label: row.computes for row in (a, b)}
    return CrossoverAnswer(a.label, b.label, "tokens", between, search, ended, computes=computes)
