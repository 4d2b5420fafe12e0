"""Which exact variant to use on each problem: the fastest, or among those that can't be told from
it the one that :mod:`attnbench.answer.ties` prefers.

These are sentences about medians taken one after the other, so variants whose intervals come
within the margin of each other are said to be equal. Only exact softmax is ranked: another
operator is another answer to another question. So is what ran over more processes,
or on a machine of another kind.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, groupby, pairwise
from math import exp, log
from statistics import mode
from typing import Any

from attnbench.answer.regimes import Regime, time_of
from attnbench.core.record import FINDINGS, Record, Status, Time
from impls import own_rows
from impls.problem import Problem

DID = {
    Status.WRONG: "is wrong",
    Status.IMPLAUSIBLE: "is implausible",
    Status.FAILED: "failed",
    Status.CRASHED: "crashed",
}


def alike(problem: Problem) -> Problem:
    """A problem that those share which differ in their lengths alone.

    And in their batch, which shrinks where tokens are to stay as many.
    """
    return problem.with_(q_len=1, kv_len=1, batch=1)


def griefs(records: Iterable[Record]) -> dict[tuple[Problem, str], str]:
    """By problem but for its length, and by variant: ``mine is wrong at 4,096 tokens``.

    Of several lengths the shortest.
    """
    found: dict[tuple[Problem, str], Record] = {}
    for record in records:
        if record.status in FINDINGS:
            key = alike(record.problem), record.variant
            found[key] = min(found.get(key, record), record, key=_length)
    return {
        key: f"{r.variant} {DID[r.status]} at {_length(r):,} tokens" for key, r in found.items()
    }


def _length(record: Record) -> int:
    return record.problem.kv_len


NOT_TORCHS = 3


def torch_rank(variant: str) -> int:
    """How near to torch's own choice a variant is, by its label: 0 is ``sdpa``."""
    row = own_rows().get(variant.partition("?")[0])
    if row is None or row.origin != "torch":
        return NOT_TORCHS
    return 2 if row.family != "dense" else int(bool(row.runs))


def preference(
    variant: str, memory_bytes: float | None, median_s: float, most_s: float
) -> tuple[float, ...]:
    """Among ties the one with the least of these is advised.

    ``most_s``: the time of the fastest and the margin.
    """
    memory = float("inf") if memory_bytes is None else memory_bytes
    return median_s > most_s, torch_rank(variant), memory, median_s


FUSED = re.compile("attention|flash|fmha|sdpa", re.IGNORECASE)
"""In the name of a kernel that is the whole of attention, on a CPU or a GPU."""
CALLING = "aten::scaled_dot_product_attention"
"""Only calls one of them, and is seen where it was called by that name."""
LEAST_S = 1e-3
"""In shorter calls, what leads up to the kernel shows too."""


@dataclass(frozen=True)
class Twins:
    """Two of them."""

    one: str
    other: str
    problem: Problem
    apart: float
    """The larger median over the smaller, less one."""

    def sentence(self) -> str:
        """What it means for the answers."""
        where = f"{self.problem.phase}, {self.problem.kv_len:,} tokens"
        return (
            f"leads up to {self.apart:.0%} are said to be none: {self.one} and {self.other} were "
            f"one and the same kernel and came out that far apart ({where})"
        )


def furthest(records: Iterable[Record]) -> Twins | None:
    """Those that are furthest apart, of all that nothing was amiss with; None if there are none."""
    return max(_twins(records), key=lambda twins: twins.apart, default=None)


def _twins(records: Iterable[Record]) -> Iterator[Twins]:
    alike: dict[tuple[Any, ...], list[tuple[Record, float]]] = {}
    for record in records:
        time = time_of(record)
        if time is None or time.flags or time.median_s < LEAST_S or record.ranks is not None:
            continue
        if fused := sorted({k for k in record.kernels if _is_fused(k)}):
            peak = record.memory.peak_bytes if record.memory else None
            key = (record.problem, record.node, record.computes, *fused, peak)
            alike.setdefault(key, []).append((record, time.median_s))
    for some in alike.values():
        for (a, x), (b, y) in combinations(some, 2):
            yield Twins(a.variant, b.variant, a.problem, max(x, y) / min(x, y) - 1)


@cache
def _is_fused(kernel: str) -> bool:
    return kernel != CALLING and FUSED.search(kernel) is not None


FEWEST = 5
"""From fewer readings nothing is said."""
TO_DEVIATION = 1.4826
"""A normal distribution's standard deviation over its median absolute one."""
WIDE = 2.0
"""Standard deviations: nineteen of twenty readings are no further off."""


def unrest(records: Iterable[Record]) -> float:
    """As a share; nought where too little is known. Of several nodes, the most restless."""
    readings: dict[str, set[float]] = {}
    for record in records:
        if record.canary_s:
            readings.setdefault(record.node, set()).add(record.canary_s)
    return max((_scatter(each) for each in readings.values() if len(each) >= FEWEST), default=0.0)


def _scatter(readings: Iterable[float]) -> float:
    """By how much a reading may be off the middle one."""
    some = list(readings)
    middle = statistics.median(some)
    off = statistics.median(abs(each / middle - 1) for each in some)
    return WIDE * TO_DEVIATION * off


MARGIN = 0.05
"""Medians of blocks timed one after the other differ by this through drift alone, one time in
twenty: a smaller lead is not a lead. In a run whose twins differ by more, nor is one of that."""
FRUGAL = 0.5
"""A variant that needs less than this share of the winner's memory is worth a word."""


@dataclass(frozen=True)
class Answer:
    """The exact variant to use for one problem."""

    problem: Problem
    winner: str
    time: Time
    equal: tuple[str, ...]
    """The others that can't be told from the fastest, up to the first that can: what is slower than
    that one and no better known is no choice."""
    next: str | None
    """The first that can."""
    lead: float | None
    """Its median over the winner's."""
    lead_low: float | None = None
    lead_high: float | None = None
    """How small and how large the lead may be: from the ends of both intervals."""
    memory_bytes: int | None = None
    """The winner's peak."""
    frugal: tuple[str, int, float] | None = None
    """The variant that needs least memory, how much, and its median over the winner's; None where
    the winner needs little more."""
    world: int | None = None
    """Over how many processes each of these variants ran; None of those that ran in one."""
    node: str = ""
    """The kind of machine that measured them, where the records are of several."""
    margin: float = MARGIN
    """What counted as no lead."""
    flags: tuple[str, ...] = ()
    """What was amiss while those were timed that lead, come next or might have led; and which
    leader came to grief at another length."""

    @property
    def leaders(self) -> tuple[str, ...]:
        """The winner and what can't be told from it."""
        return (self.winner, *self.equal)

    def sentence(self) -> str:
        """The answer with its interval."""
        t = self.time
        taken = f"{_ms(t.median_s)} [{_ms(t.low_s)}, {_ms(t.high_s)}] ms"
        alone = not self.equal and self.next is None
        rank = "the only exact variant measured" if alone else "the fastest exact variant"
        if self.equal:
            rank = f"the one to use of {len(self.leaders)} that tie"
        who = f"{self.winner} is {rank}, at {taken}"
        if self.memory_bytes is not None:
            who += f" and {_mib(self.memory_bytes)}"
        if self.equal:
            who += f", and {', '.join(self.equal)} can't be told from it"
        ahead = f"; {_lead(self)} ahead of {self.next}" if self.next else ""
        if self.frugal:
            name, peak, slower = self.frugal
            ahead += f"; {name} needs least memory, {_mib(peak)}, at {slower:.2f}x the time"
        doubt = f" (in doubt: {'; '.join(self.flags)})" if self.flags else ""
        over = f", over {self.world} processes" if self.world else ""
        where = f", on {self.node}" if self.node else ""
        return f"{regime(self.problem)}{over}{where}: {who}{ahead}{doubt}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, without the samples."""
        return {
            "problem": self.problem.to_dict(),
            "winner": self.winner,
            "median_s": self.time.median_s,
            "low_s": self.time.low_s,
            "high_s": self.time.high_s,
            "equal": list(self.equal),
            "next": self.next,
            "lead": self.lead,
            "lead_low": self.lead_low,
            "lead_high": self.lead_high,
            "memory_bytes": self.memory_bytes,
            "frugal": self.frugal and self.frugal[0],
            "world": self.world,
            "node": self.node,
            "margin": self.margin,
            "flags": list(self.flags),
            "sentence": self.sentence(),
        }


def regime(p: Problem) -> str:
    """A problem in the words of a sentence: ``forward, mask causal, 1024 tokens, …``."""
    length = f"{p.kv_len} tokens"
    if p.q_len != p.kv_len:
        length = f"{p.q_len} queries on {p.kv_len} keys"
    width = f"d{p.head_dim}" + f"/{p.v_head_dim}" * (p.v_head_dim != p.head_dim)
    words = [p.level] * (p.level != "core") + [p.phase, f"mask {p.mask}", length]
    words += [f"{p.inputs} inputs"] * (p.inputs != "normal")
    words += [f"b{p.batch} h{p.heads}/{p.kv_heads} {width} {p.dtype}"]
    return ", ".join(words)


def regime_on_device(problem: Problem) -> str:
    """The same with the device, where it isn't the CPU."""
    return regime(problem) + f" on {problem.device}" * (problem.device != "cpu")


def margin_of(records: Sequence[Record]) -> float:
    """What counts as no lead among the records of one run."""
    twins = furthest(records)
    return max(MARGIN, twins.apart if twins else 0.0, unrest(records))


def margin_said(records: Sequence[Record]) -> str:
    """Why no smaller lead counts; empty where it is the usual margin."""
    twins, moved = furthest(records), unrest(records)
    if twins is not None and twins.apart > max(MARGIN, moved):
        return twins.sentence()
    if moved > MARGIN:
        return (
            f"leads up to {moved:.0%} are said to be none: the ruler's own canary was off by that "
            "much, one time in twenty, while this was measured"
        )
    return ""


def answers(
    records: Sequence[Record], margin: float | None = None, among: Sequence[Record] | None = None
) -> Iterator[Answer]:
    """One answer a problem, in the order of the records; none where nothing exact was measured.

    What ran over several processes had as many devices, and unlike machines are unlike devices:
    each is ranked among its like. ``margin``: what counts as no lead; of these records if none.
    ``among``: all that is known of these variants, if that is more.
    """
    margin = margin_of(records) if margin is None else margin
    elsewhere = griefs(records if among is None else among)
    ranked: dict[tuple[Problem, int | None, str], list[Record]] = {}
    for record in records:
        world = record.ranks.world if record.ranks else None
        ranked.setdefault((record.problem, world, record.node), []).append(record)
    several = len({node for (_, _, node), some in ranked.items() if any(r.time for r in some)}) > 1
    for (problem, world, node), some in ranked.items():
        exact = [r for r in some if r.computes == "softmax" and r.time]
        if exact:
            answer = _answer(problem, exact, margin)
            told = [elsewhere.get((alike(answer.problem), v)) for v in answer.leaders]
            yield replace(
                answer,
                world=world,
                node=node if several else "",
                flags=(*answer.flags, *filter(None, told)),
            )


def _answer(problem: Problem, exact: list[Record], margin: float) -> Answer:
    """Of those that most were timed by the same clock as; the others are named and not ranked."""
    clock = mode(r.time.clock for r in exact if r.time)
    timed = [(r.time, r.variant, r) for r in exact if r.time and r.time.clock == clock]
    apart = [
        f"{r.variant} is not ranked: it is timed by the clock {r.time.clock}, others by {clock}"
        for r in exact
        if r.time and r.time.clock != clock
    ]
    ranked = sorted(timed, key=lambda each: each[0].median_s)
    best = ranked[0][0]
    told = [t.low_s > best.high_s * (1 + margin) for t, _, _ in ranked[1:]]
    tied = told.index(True) if True in told else len(told)
    leaders = ranked[: 1 + tied]
    most_s = best.median_s * (1 + margin)
    taken, winner, record = min(
        leaders, key=lambda x: preference(x[1], _peak(x[2]), x[0].median_s, most_s)
    )
    equal = tuple(v for _, v, _ in leaders if v != winner)
    t, behind, _ = ranked[1 + tied] if tied < len(told) else (None, None, None)
    near = [(v, t) for t, v, _ in ranked if v in (winner, behind) or _may_win(t, best, margin)]
    own = _peak(record)
    sized = [(r.memory.peak_bytes, t.median_s, v) for t, v, r in ranked if r.memory]
    peak, slower, least = min(sized, default=(0, 0.0, ""))
    frugal = (least, peak, slower / taken.median_s) if own and peak <= FRUGAL * own else None
    return Answer(
        problem,
        winner,
        taken,
        equal,
        next=behind,
        lead=t.median_s / taken.median_s if t else None,
        lead_low=t.low_s / taken.high_s if t else None,
        lead_high=t.high_s / taken.low_s if t else None,
        memory_bytes=own,
        frugal=frugal,
        margin=margin,
        flags=(*(f"{v} {_amiss(t)}" for v, t in near if t.flags), *apart),
    )


def _peak(record: Record) -> int | None:
    return record.memory.peak_bytes if record.memory else None


def _may_win(time: Time, best: Time, margin: float) -> bool:
    """Whether its fastest call could have been the winner's: a slow one's doubts change nothing."""
    return time.min_s <= best.high_s * (1 + margin)


def _amiss(time: Time) -> str:
    kinds = dict.fromkeys(flag.split(":")[0].removeprefix("it ") for flag in time.flags)
    if "drifted" in kinds:  # of the whole machine; that the cell did so too adds nothing
        kinds.pop("drifting", None)
    return " and ".join(kinds)


def _lead(answer: Answer) -> str:
    return f"{answer.lead:.2f}x [{answer.lead_low:.2f}, {answer.lead_high:.2f}]"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.3g} MiB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


SKILLED = 0.5
"""What does less than half of what softmax does beyond averaging is no substitute for it."""


@dataclass(frozen=True)
class Faster:
    """Something that is not exact softmax, and faster than the fastest that is."""

    variant: str
    computes: str
    speedup: float
    """The winner's median over its own."""
    distance: float | None
    skill: float | None


@dataclass(frozen=True)
class Standing:
    """One length of a regime."""

    length: int
    answer: Answer | None
    """None where nothing exact has a time."""
    timed: int
    """How many variants have one, exact or not."""
    faster: tuple[Faster, ...] = ()
    """What is not exact and faster than the winner, the fastest first."""

    @property
    def substitute(self) -> Faster | None:
        """The fastest of these that keeps enough of what softmax does."""
        return next((f for f in self.faster if f.skill is not None and f.skill >= SKILLED), None)

    @property
    def nearest(self) -> Faster | None:
        """The one of these that keeps most of it, be it little."""
        told = [f for f in self.faster if f.skill is not None]
        return max(told, key=lambda f: f.skill or 0.0, default=None)

    @property
    def leaders(self) -> tuple[str, ...]:
        """The winner and what can't be told from it."""
        return self.answer.leaders if self.answer else ()

    @property
    def sure(self) -> str:
        """How sure the answer is, in a word or two."""
        if self.answer is None:
            return "nothing exact was measured"
        if self.answer.flags:
            return "in doubt"
        if self.answer.equal:
            return f"a tie of {len(self.leaders)}"
        return "clear" if self.answer.next else "the only one measured"


@dataclass(frozen=True)
class Stretch:
    """Lengths next to each other at which the same variants lead."""

    standings: tuple[Standing, ...]

    @property
    def last(self) -> Standing:
        """The longest of them, which stands for all."""
        return self.standings[-1]

    @property
    def doubts(self) -> list[str]:
        """What was amiss, at any of these lengths."""
        return list(dict.fromkeys(f for s in self.standings if s.answer for f in s.answer.flags))

    @property
    def span(self) -> str:
        """``1,024 to 4,096``."""
        first, last = self.standings[0].length, self.last.length
        return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def standings(regime: Regime, margin: float = MARGIN) -> list[Standing]:
    """One for each length, the shortest first; a lead within the margin is none."""
    return [
        _standing(length, list(some.values()), margin, regime.records)
        for length, some in regime.cells.items()
    ]


def stretches(found: Sequence[Standing]) -> list[Stretch]:
    """The same, those next to each other together where the same variants lead."""
    together = groupby(found, key=lambda s: frozenset(s.leaders))
    return [Stretch(tuple(some)) for _, some in together]


def _standing(
    length: int, records: Sequence[Record], margin: float, among: Sequence[Record]
) -> Standing:
    timed = [r for r in records if time_of(r)]
    answer = next(answers(timed, margin, among), None)
    faster = sorted(_faster(answer, timed), key=lambda f: -f.speedup) if answer else ()
    return Standing(length, answer, len(timed), tuple(faster))


def _faster(answer: Answer, records: Sequence[Record]) -> Iterator[Faster]:
    for record in records:
        time, distance = record.time, record.distance
        if record.computes == "softmax" or time is None or time.clock != answer.time.clock:
            continue
        if time.high_s * (1 + answer.margin) < answer.time.low_s:
            yield Faster(
                record.variant,
                record.computes,
                answer.time.median_s / time.median_s,
                distance.relative if distance else None,
                distance.skill if distance else None,
            )


@dataclass(frozen=True)
class Crossing:
    """``before`` leads up to one length, ``after`` from another on."""

    before: str
    after: str
    low: int
    high: int
    estimate: float
    """Where their medians would be equal, were each a power of the length in between."""

    def __str__(self) -> str:
        return (
            f"{self.after} overtakes {self.before} between {self.low:,} and {self.high:,} "
            f"(about {self.estimate:,.0f})"
        )


def crossings(regime: Regime, found: list[Standing], margin: float = MARGIN) -> list[Crossing]:
    """Of the variants that lead at some length, each pair's changes of place."""
    leaders = dict.fromkeys(s.answer.winner for s in found if s.answer)
    pairs = combinations(leaders, 2)
    return sorted(
        (c for a, b in pairs for c in _of_pair(regime, a, b, margin)), key=lambda c: c.low
    )


def _of_pair(regime: Regime, a: str, b: str, margin: float) -> Iterator[Crossing]:
    ahead: tuple[str, int] | None = None
    times = {n: (time_of(some.get(a)), time_of(some.get(b))) for n, some in regime.cells.items()}
    for length, (of_a, of_b) in times.items():
        if of_a is None or of_b is None or of_a.flags or of_b.flags:
            continue
        now = a if _beats(of_a, of_b, margin) else b if _beats(of_b, of_a, margin) else None
        if now and ahead and now != ahead[0]:
            yield Crossing(ahead[0], now, ahead[1], length, _equal(times, ahead[1], length))
        if now:
            ahead = (now, length)


def _beats(one: Time, other: Time, margin: float) -> bool:
    return one.high_s * (1 + margin) < other.low_s


def _equal(times: Mapping[int, tuple[Time | None, Time | None]], low: int, high: int) -> float:
    """By the logarithms of both ratios, between the neighbours where the ratio passes one."""
    known = [
        (n, log(a.median_s / b.median_s))
        for n, (a, b) in times.items()
        if a and b and low <= n <= high
    ]
    for (n, x), (m, y) in pairwise(known):
        if x * y <= 0 and x != y:
            return exp(log(n) + (log(m) - log(n)) * x / (x - y))
    return (low * high) ** 0.5


FACTORS = (1.05, 1.1, 1.25, 1.5, 2.0)
MOSTLY = 0.9
"""Of the problems, as many as make a sentence about all of them."""


@dataclass(frozen=True)
class Closeness:
    """One variant over the problems."""

    variant: str
    ratios: tuple[float, ...]
    """Its median over the best one's, the smallest first, of the problems where it has one."""
    problems: int
    """Of how many."""

    def share(self, factor: float) -> float:
        """Of the problems, those where it took no more than so many times the best's."""
        return sum(ratio <= factor for ratio in self.ratios) / self.problems

    def mostly(self) -> tuple[float, int]:
        """The least factor that it keeps to on most problems, and on how many it does."""
        factor = next((f for f in FACTORS if self.share(f) >= MOSTLY), FACTORS[-1])
        return factor, sum(ratio <= factor for ratio in self.ratios)


def closeness(regimes: Iterable[Regime]) -> list[Closeness]:
    """The exact variants, the nearest to the best over all first; needs two to compare."""
    ratios: dict[str, list[float]] = {}
    seen: set[tuple[int, ...]] = set()
    for regime in regimes:
        for length in regime.lengths:
            exact = regime.exact(length)
            same = tuple(
                map(id, regime.timed(length).values())
            )  # a problem may lie on lines of two sorts
            if len(exact) < 2 or same in seen:
                continue
            seen.add(same)
            best = min(exact.values())
            for name, median in exact.items():
                ratios.setdefault(name, []).append(median / best)
    found = [Closeness(name, tuple(sorted(some)), len(seen)) for name, some in ratios.items()]
    return sorted(found, key=lambda c: (-_area(c), c.variant))


def advised(found: Sequence[Closeness]) -> Closeness:
    """Which to take, if only one: torch's own, if it keeps to the factor of the nearest of all on
    most problems, or on as many; else that nearest. Needs one at the least.
    """
    factor, _ = found[0].mostly()
    near = [c for c in found if c.share(factor) >= min(MOSTLY, found[0].share(factor))]
    return min(near, key=lambda c: torch_rank(c.variant))


def _area(of: Closeness, factors: Sequence[float] = (1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)) -> float:
    return sum(of.share(factor) for factor in factors)
