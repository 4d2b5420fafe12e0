"""Which exact variant to use on each problem: the fastest, or the preferred one of a tie.

The times compared here are medians taken one after the other, so two variants tie where their
intervals come within the margin of each other. Only exact softmax is ranked: another operator is
another answer to another question. So is what ran over more processes, or on another kind of
machine.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from attnbench.answer.regimes import time_of, without_size
from attnbench.core.format import percent
from attnbench.core.record import FINDINGS, Record, Status, Time
from attnbench.core.stats import Interval
from attnbench.core.wire import plain
from impls import own_rows
from impls.problem import Problem

EXACT = "softmax"
"""The operator that an exact variant computes."""
MARGIN = 0.05
"""Medians of blocks timed one after the other differ by this through drift alone, one time in
twenty: a smaller lead is not a lead. In a run with more noise of its own, nor is one of that."""

# ---- one ranking ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A variant that could be chosen, with its time, measured on this very problem or predicted."""

    variant: str
    computes: str
    median_s: float
    low_s: float
    high_s: float
    measured: bool
    memory_bytes: int | None = None
    error: float | None = None
    """Relative to exact softmax."""
    skill: float | None = None
    """The share of what softmax does beyond averaging that an inexact variant keeps."""
    kept: float | None = None
    """The share of softmax's weight on the keys that it selects; None of what selects none."""
    setup_s: float | None = None
    flags: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    """Other names under which the same kernel ran on the problem."""

    @classmethod
    def of(cls, record: Record, time: Time) -> Candidate:
        """The variant of a record, by the time that this has."""
        far, ends = record.distance, (time.median_s, time.low_s, time.high_s)
        skill, kept = (far.skill, far.kept) if far else (None, None)
        about = record.variant, record.computes, *ends
        return cls(*about, True, memory_bytes=_peak(record), skill=skill, kept=kept)

    @property
    def name(self) -> str:
        """With those: ``sdpa (flash)``."""
        return with_same(self.variant, self.same)

    @property
    def names(self) -> tuple[str, ...]:
        """All names under which its kernel ran."""
        return (self.variant, *self.same)


def with_same(variant: str, same: Sequence[str]) -> str:
    """A variant with other names of the kernel that it ran: ``sdpa (flash)``."""
    others = ", ".join(name.removeprefix(f"{variant}.") for name in same)
    return f"{variant} ({others})" if others else variant


def lead_over(best: Candidate, other: Candidate) -> Interval:
    """The lead of one over another, from the ends of both intervals."""
    low, high = other.low_s / best.high_s, other.high_s / best.low_s
    return Interval(other.median_s / best.median_s, low, high)


def beats(one: Time | Candidate, other: Time | Candidate, margin: float) -> bool:
    """True where one time is below another by more than the margin."""
    return one.high_s * (1 + margin) < other.low_s


@dataclass(frozen=True)
class Ranking:
    """Candidates in order: the one to use, those that tie with the fastest, and those that are
    slower; ``next``, the first of these that the one to use is ahead of too, with its lead.
    """

    winner: Candidate
    equal: tuple[Candidate, ...]
    slower: tuple[Candidate, ...]
    next: Candidate | None
    lead: Interval | None

    @classmethod
    def of(
        cls, leaders: Sequence[Candidate], slower: Sequence[Candidate], margin: float
    ) -> Ranking:
        """``leaders`` tie, the fastest first. The winner is torch's own function, if it is among
        them and was measured; of those within the margin of the fastest the one of torch's, then
        what needs least memory, then the fastest.
        """
        most_s = leaders[0].median_s * (1 + margin)
        winner = min(
            leaders,
            key=lambda c: (
                c.median_s > most_s and (torch_rank(c.variant) > 0 or not c.measured),
                torch_rank(c.variant),
                math.inf if c.memory_bytes is None else c.memory_bytes,
                c.median_s,
            ),
        )
        beaten = slower  # by the fastest, which may be more than by the one to use
        if winner is not leaders[0]:
            beaten = [c for c in slower if beats(winner, c, margin)]
        after = beaten[0] if beaten else None
        lead = lead_over(winner, after) if after else None
        equal = tuple(c for c in leaders if c is not winner)
        return cls(winner, equal, tuple(slower), after, lead)

    @property
    def runner_up(self) -> Candidate | None:
        """The next one after the winner, be it tied or slower."""
        return (*self.equal, self.next)[0]

    @property
    def all(self) -> tuple[Candidate, ...]:
        """The winner, what ties with it, then the others by time."""
        return (self.winner, *self.equal, *self.slower)

    @property
    def by_name(self) -> dict[str, Candidate]:
        """All of them, by each name under which their kernel ran."""
        return {name: c for c in self.all for name in c.names}


def rank(candidates: Iterable[Candidate], margin: float) -> Ranking:
    """By the medians. Ties end at the first that is slower than the fastest by the margin:
    what is slower than that one and no better known is no choice.
    """
    order = sorted(candidates, key=lambda c: c.median_s)
    first = next((i for i, c in enumerate(order) if beats(order[0], c, margin)), len(order))
    return Ranking.of(order[:first], order[first:], margin)


def torch_rank(variant: str) -> int:
    """The distance of a variant from torch's own choice: 0 is ``sdpa``, 3 is not torch's."""
    row = own_rows().get(variant.partition("?")[0])
    if row is None or row.origin != "torch":
        return 3
    return 2 if row.family != "dense" else int(bool(row.runs))


# ---- which kernel ran ----------------------------------------------------------------------------

FUSED = re.compile("attention|flash|fmha|sdpa", re.IGNORECASE)
"""In the name of a kernel that is the whole of attention, on a CPU or a GPU."""
CALLING = "aten::scaled_dot_product_attention"
"""Not a kernel: it calls one, and is recorded where it was called by that name."""
PRODUCT = re.compile("mm$|matmul|softmax")
"""In the name of an operator that does a part of attention's work beside such a kernel."""
NEARLY = 0.1
"""A kernel's memory, by the mask that it is handed, differs by no more than this share."""


def kernels_of(record: Record) -> tuple[str, ...]:
    """The kernels that did attention's work; nothing where no kernel is the whole."""
    ran = [name for name in record.kernels if name != CALLING]
    if not any(map(FUSED.search, ran)):
        return ()
    return tuple(sorted(n for n in ran if FUSED.search(n) or PRODUCT.search(n)))


def ran_the_same(one: Record, other: Record) -> bool:
    """True where both ran the same kernel on the same problem."""
    peaks = [_peak(one) or 0, _peak(other) or 0]
    alike = (one.problem, one.computes, one.ranks) == (other.problem, other.computes, other.ranks)
    return (
        alike
        and kernels_of(one) == kernels_of(other) != ()
        and math.isclose(*peaks, rel_tol=NEARLY)
    )


def one_a_kernel(
    candidates: Sequence[Candidate], records: Mapping[str, Record], margin: float
) -> list[Candidate]:
    """The candidates, those that ran the same kernel as one: under torch's own name where its time
    is within the margin of the fastest, else under that one's.
    """
    groups: list[list[Candidate]] = []
    for c in sorted(candidates, key=lambda c: c.median_s):
        own = next(
            (g for g in groups if ran_the_same(records[g[0].variant], records[c.variant])), None
        )
        if own is None:
            groups.append([c])
        else:
            own.append(c)
    merged = []
    for group in groups:
        near = [c for c in group if c.median_s <= group[0].median_s * (1 + margin)]
        first = min(near, key=lambda c: torch_rank(c.variant))
        merged.append(replace(first, same=tuple(c.variant for c in group if c is not first)))
    return merged


# ---- the margin of a run -------------------------------------------------------------------------

LEAST_S = 1e-3
"""In shorter calls, what leads up to the kernel shows too."""
LEAST_READINGS = 5
"""Readings of the canary; fewer say nothing."""
WIDE = 2.0 * 1.4826
"""Median absolute deviations: nineteen of twenty readings of a normal law are no further off."""


def margin_of(records: Sequence[Record]) -> float:
    """The lead that counts as none among the records of one run."""
    return max(MARGIN, same_kernel_spread(records)[0], canary_spread(records))


def margin_reason(records: Sequence[Record]) -> str:
    """A sentence that says why the margin is what it is."""
    (apart, who), moved = same_kernel_spread(records), canary_spread(records)
    if max(apart, moved) <= MARGIN:
        drift = "blocks timed one after the other drift apart by that much, one time in twenty"
        return f"intervals less than {percent(MARGIN)} apart count as ties: {drift}"
    why = "the drift check moved by that much, one time in twenty, during the run"
    if apart > moved:
        one, other, where = who
        why = f"{one} and {other} ran one kernel, neither noisy, and were that far apart {where}"
    return f"intervals less than {percent(max(apart, moved))} apart count as ties: {why}"


def same_kernel_spread(records: Iterable[Record]) -> tuple[float, tuple[str, ...]]:
    """The distance, as a share, of two variants that ran the same kernel on a problem
    without flags; and which two, and where. 0 where there are none.
    """
    groups: dict[tuple[Any, ...], list[tuple[str, float]]] = {}
    for record in records:
        time = time_of(record)
        if time is None or time.doubts or time.median_s < LEAST_S or record.ranks is not None:
            continue
        if kernels := kernels_of(record):
            key = (record.problem, record.node, record.computes, *kernels, _peak(record))
            groups.setdefault(key, []).append((record.variant, time.median_s))
    twins = (
        (max(x, y) / min(x, y) - 1, (a, b, f"({p.phase}, mask {p.mask}, {p.kv_len:,} tokens)"))
        for (p, *_), group in groups.items()
        for (a, x), (b, y) in combinations(group, 2)
    )
    return max(twins, key=lambda each: each[0], default=(0.0, ()))


def canary_spread(records: Iterable[Record]) -> float:
    """The share by which the canary moved, on the node where it moved most; 0 if not known."""
    nodes: dict[str, set[float]] = {}
    for record in records:
        if record.canary_s:
            nodes.setdefault(record.node, set()).add(record.canary_s)
    moved = [0.0]
    for readings in nodes.values():
        if len(readings) >= LEAST_READINGS:
            middle = statistics.median(readings)
            off = statistics.median(abs(each / middle - 1) for each in readings)
            moved.append(WIDE * off)
    return max(moved)


# ---- one problem's answer ------------------------------------------------------------------------

FRUGAL = 0.5
"""A variant that needs less than this share of the winner's memory is named."""
FAILURES = {
    Status.WRONG: "is wrong",
    Status.IMPLAUSIBLE: "is implausible",
    Status.FAILED: "failed",
    Status.CRASHED: "crashed",
}


@dataclass(frozen=True)
class Answer:
    """The exact variant to use for one problem: the winner, what ties with the fastest, and the
    first that is slower, with the lead over it. ``frugal``: what needs least memory, how much, and
    its median over the winner's; None where the winner needs little more. ``world``: over how many
    processes all ran, ``node``: on which kind of machine, where the records are of several.
    ``flags``: what casts doubt on the winner, the next one and whatever might have won.
    """

    problem: Problem
    winner: str
    time: Time
    equal: tuple[str, ...]
    next: str | None
    lead: Interval | None
    memory_bytes: int | None = None
    frugal: tuple[str, int, float] | None = None
    world: int | None = None
    node: str = ""
    margin: float = MARGIN
    flags: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    """Other names under which the winner's kernel ran."""

    @property
    def name(self) -> str:
        """The winner with those: ``sdpa (flash)``."""
        return with_same(self.winner, self.same)

    @property
    def where(self) -> str:
        """The problem, over how many processes, and on which kind of machine."""
        over = f", over {self.world} processes" if self.world else ""
        return f"{self.problem}{over}{f', on {self.node}' if self.node else ''}"

    @property
    def leaders(self) -> tuple[str, ...]:
        """The winner and what ties with it."""
        return (self.winner, *self.equal)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, without the samples."""
        names, lead = ("winner", "next", "memory_bytes", "world", "node", "margin"), self.lead
        return {
            **{name: getattr(self, name) for name in names},
            "lead": lead and lead.value,
            "lead_low": lead and lead.low,
            "lead_high": lead and lead.high,
            **{name: getattr(self.time, name) for name in ("median_s", "low_s", "high_s")},
            "problem": plain(self.problem),
            "equal": list(self.equal),
            "same": list(self.same),
            "frugal": self.frugal and self.frugal[0],
            "flags": list(self.flags),
        }


def answers(
    records: Sequence[Record], margin: float | None = None, among: Sequence[Record] | None = None
) -> Iterator[Answer]:
    """One answer a problem, in the order of the records; none where nothing exact was measured.

    Runs over several processes had as many devices, and unlike machines are unlike devices: each
    is ranked among its like. What is wrong on other kinds of inputs is no answer: a program may
    bring any. ``margin``: by default that of these records. ``among``: all that is
    known of these variants, if that is more.
    """
    margin = margin_of(records) if margin is None else margin
    failures: dict[tuple[Any, str], str] = {}
    failed = [r for r in (records if among is None else among) if r.status in FINDINGS]
    for r in sorted(failed, key=lambda r: -r.problem.kv_len):  # the shortest is named
        failure = f"{r.variant} {FAILURES[r.status]} at {r.problem.kv_len:,} tokens"
        failures[without_size(r.problem), r.variant] = failure
    groups: dict[tuple[Problem, int | None, str], list[Record]] = {}
    for record in records:
        world = record.ranks.world if record.ranks else None
        groups.setdefault((record.problem, world, record.node), []).append(record)
    several = len({node for (_, _, node), group in groups.items() if any(r.time for r in group)})
    for (problem, world, node), group in groups.items():
        exact = [r for r in group if r.computes == EXACT and r.time and not r.wrong_on]
        if exact:
            answer = _answer(problem, exact, margin)
            failed_elsewhere = [failures.get((without_size(problem), v)) for v in answer.leaders]
            flags = (*answer.flags, *filter(None, failed_elsewhere))
            yield replace(answer, world=world, node=node if several > 1 else "", flags=flags)


def _answer(problem: Problem, exact: list[Record], margin: float) -> Answer:
    """The answer among those timed by the most common clock; the others are named."""
    times = {r.variant: r.time for r in exact if r.time}
    clock = statistics.mode(t.clock for t in times.values())
    ranked = {r.variant: r for r in exact if times[r.variant].clock == clock}
    flags = [
        f"{name} is not ranked: it is timed by the clock {t.clock}, others by {clock}"
        for name, t in times.items()
        if t.clock != clock
    ]
    candidates = [Candidate.of(r, times[name]) for name, r in ranked.items()]
    ranking = rank(one_a_kernel(candidates, ranked, margin), margin)
    winner, after = ranking.winner, ranking.next
    order = sorted(ranking.all, key=lambda c: c.median_s)
    doubts = []
    for c in order:  # where its fastest call could not have won, a slow one's doubts are nothing
        t = times[c.variant]
        may_win = t.min_s <= order[0].high_s * (1 + margin)
        if t.doubts and (may_win or c in (winner, after)):
            words = dict.fromkeys(flag.split(":")[0].removeprefix("it ") for flag in t.doubts)
            if "drifted" in words:  # of the whole machine; that the cell did so too adds nothing
                words.pop("drifting", None)
            doubts.append(f"{c.variant} {' and '.join(words)}")
    peaks = ((c.memory_bytes, c.median_s, c.variant) for c in order if c.memory_bytes is not None)
    frugal = None
    if winner.memory_bytes:
        peak, median, name = min(peaks)
        if peak <= FRUGAL * winner.memory_bytes:
            frugal = name, peak, median / winner.median_s
    return Answer(
        problem,
        winner.variant,
        times[winner.variant],
        tuple(c.variant for c in ranking.equal),
        after.variant if after else None,
        ranking.lead,
        winner.memory_bytes,
        frugal,
        margin=margin,
        flags=(*doubts, *flags),
        same=winner.same,
    )


def _peak(record: Record) -> int | None:
    return record.memory.peak_bytes if record.memory else None
