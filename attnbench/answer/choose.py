"""The variant to use for a problem, within limits, from one run; or why there is none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from attnbench.answer.predict import TRUSTED, Estimate, VariantRecords
from attnbench.answer.ranking import (
    EXACT,
    MARGIN,
    Candidate,
    Ranking,
    beats,
    margin_of,
    one_a_kernel,
    rank,
)
from attnbench.answer.regimes import line_of
from attnbench.core.format import name_and_kind, percent, size, time_interval
from attnbench.core.record import FINDINGS
from attnbench.core.stats import Interval, Verdict
from attnbench.core.wire import plain
from impls.errors import CantBeDone
from impls.operators import OPERATORS, further

if TYPE_CHECKING:
    from attnbench.core.record import Record
    from attnbench.sweep.compare import Compared
    from impls import Table
    from impls.problem import Problem

KINDS = {
    "pattern": "softmax on its own pattern",
    "approximate": "approximates softmax",
    "other": "its own operator",
}
"""Operators that may be allowed besides exact softmax, by the word for it on the command line."""
TOO_MUCH = ("out_of_memory", "timed_out")
"""A variant that ended so will end so on every problem that is at least as large."""
SIZES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
AMPLE = 1.02
"""A limit is proposed a little above what is needed."""


@dataclass(frozen=True)
class Wants:
    """Limits, and what may be used besides exact softmax: words of :data:`KINDS`."""

    max_memory: int | None = None
    """Bytes above the inputs, at the worst instant."""
    max_error: float | None = None
    """Relative to exact softmax: of an exact variant its rounding, of another its distance."""
    allowed: tuple[str, ...] = ()
    operator: str = EXACT
    """What has to be computed, where that is not softmax; then nothing else may be used."""
    same_bits: bool = False
    """Only what was seen to give an element the same bits whatever the batch."""

    def __post_init__(self) -> None:
        if unknown := [word for word in self.allowed if word not in KINDS]:
            raise CantBeDone(
                f"--allow {unknown[0]!r} is not one of {', '.join(KINDS)} (exact softmax is always "
                "allowed)"
            )

    @property
    def computes(self) -> tuple[str, ...]:
        """Operators that a variant may compute."""
        return (EXACT, *(KINDS[word] for word in self.allowed))

    def allows(self, operator: str) -> bool:
        """True for an operator that may be used, or for how it looks from softmax."""
        if self.operator != EXACT:
            return operator == self.operator
        computes = OPERATORS[operator].computes if operator in OPERATORS else operator
        return computes in self.computes

    def words(self) -> list[str]:
        """``exact``, ``in 8 GiB``, ``error at most 0.01``"""
        exact = "exact" if self.operator == EXACT else self.operator
        allowed = self.allowed if self.operator == EXACT else ()
        words = [" or ".join([exact, *allowed])]
        words += [f"in {size(self.max_memory)}"] if self.max_memory else []
        words += [f"error at most {self.max_error:g}"] if self.max_error else []
        words += ["the same bits whatever the batch"] if self.same_bits else []
        return words


class Why(StrEnum):
    """The reasons that keep a variant out."""

    COMPUTES = "computes something else"
    SUPPORT = "doesn't take it"
    MEMORY = "memory"
    ERROR = "error"
    INPUTS = "wrong on other inputs"
    BITS = "other bits"
    STATUS = "failed elsewhere"
    SLOW = "far behind"
    UNTRIED = "untried"
    UNKNOWN = "not known"
    ABSENT = "not in the run"


@dataclass(frozen=True)
class Excluded:
    """A variant that can't be chosen. ``needs``: what the limits that it breaks would have to be,
    bytes of ``memory`` or an ``error``; ``time``: one that is too uncertain to rank.
    """

    variant: str
    why: Why
    said: str
    needs: Mapping[str, float] = field(default_factory=dict)
    time: Interval | None = None


@dataclass(frozen=True)
class Choice:
    """The answer for one problem: the ranking, from the run ``source`` with its ``settings`` as the
    command line has them, and from comparisons in pairs. Without a ranking there is none:
    ``why_not``, and which limit would have to give way.
    """

    problem: Problem
    wants: Wants
    ranking: Ranking | None = None
    excluded: tuple[Excluded, ...] = ()
    why_not: str = ""
    margin: float = MARGIN
    source: str = ""
    pairs: tuple[dict[str, Any], ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def unknown(self) -> list[Excluded]:
        """The variants that might be faster, for all that is known."""
        unknown = (Why.UNKNOWN, Why.ABSENT, Why.UNTRIED)
        slowest = self.ranking.winner.high_s if self.ranking else math.inf
        some = [e for e in self.excluded if e.why in unknown]
        return [e for e in some if e.time is None or e.time.low < slowest]

    def sentence(self) -> str:
        """The answer."""
        return f"{self.problem} ({', '.join(self.wants.words())}): {self.advice()}"

    def advice(self) -> str:
        """The answer without the problem."""
        r = self.ranking
        if r is None:
            return f"no answer: {self.why_not}"
        w = r.winner
        time = time_interval(w.median_s, w.low_s, w.high_s)
        text = f"use {self._name(w)}, {'' if w.measured else 'predicted at '}{time}"
        if w.memory_bytes is not None:
            text += f" and {size(w.memory_bytes)}"
        if r.equal:
            text += f"; tied with {', '.join(map(self._name, r.equal))}"
        if r.next:
            text += f"; {r.lead} ahead of {self._name(r.next)}{', in pairs' if self.pairs else ''}"
        if len(r.all) == 1:
            text += "; the only one that is known"
        if w.flags:
            kinds = dict.fromkeys(flag.split(":")[0] for flag in w.flags)
            text += f" (noisy: {' and '.join(kinds)})"
        return text

    def _name(self, candidate: Candidate) -> str:
        """With what it computes, where that is another operator than the one asked for."""
        asked = self.wants.operator != EXACT
        return candidate.name if asked else name_and_kind(candidate.name, candidate.computes)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        r = self.ranking
        of = {name: getattr(r, name, None) for name in ("winner", "equal", "next")}
        lead = r and r.lead and {"factor": r.lead.value, "low": r.lead.low, "high": r.lead.high}
        slower = [c for c in r.slower if c is not r.next] if r else ()
        of |= {"equal": r.equal if r else (), "lead": lead, "slower": slower}
        names = ("excluded", "why_not", "margin")
        return {
            "problem": plain(self.problem),
            "wants": self.wants.words(),
            **msgspec.to_builtins(of | {name: getattr(self, name) for name in names}),
            "source": self.source,
            "pairs": list(self.pairs),
            "sentence": self.sentence(),
        }


# ---- who could be chosen -------------------------------------------------------------------------


def choose(
    records: Sequence[Record],
    problem: Problem,
    wants: Wants,
    table: Table,
    *,
    left_out: Sequence[Excluded] = (),
    source: str = "",
) -> Choice:
    """From the records of one run, of problems of the same phase, dtype and kind of mask.

    ``left_out``: the variants that the run did not measure, with the reasons.
    """
    nodes = Counter(r.node for r in records if r.time is not None)
    (node, _), *_ = nodes.most_common(1) or [("", 0)]  # of the kind of machine that measured most
    latest = {(r.variant, r.problem): r for r in records if not r.ranks and r.node in (node, "")}
    line = line_of(problem)
    alike = [
        r
        for r in latest.values()
        if r.problem.mask.kinds == problem.mask.kinds
        or (r.time is not None and line_of(r.problem) == line)
    ]
    by_variant: dict[str, list[Record]] = {}
    for record in alike:
        by_variant.setdefault(record.variant, []).append(record)
    results: list[Candidate | Excluded] = []
    able: list[Candidate] = []
    near: dict[str, Record] = {}
    margin = margin_of(alike)
    for label, some in by_variant.items():
        try:
            row = table.find(label)
        except CantBeDone:  # the table has none of that name
            row = None
        evidence = VariantRecords(row, some, problem)
        judged = _judge(label, evidence, wants)
        if isinstance(judged, Candidate):
            able.append(judged)
            near[label] = evidence.beside[0]
        else:
            results.append(judged)
    results += one_a_kernel(able, near, margin)
    results += [each for each in left_out if each.variant not in by_variant]
    there = {each.variant for each in results} | near.keys()
    results += [
        Excluded(name, Why.ABSENT, "the run did not measure it")
        for name, row in table.rows.items()
        if name not in there and wants.allows(row.operator) and not row.ranks
        if row.supports(problem) is None
        if wants.operator != EXACT or not further(row.operator)
    ]
    return make_choice(problem, wants, results, margin=margin, source=source)


def _judge(label: str, evidence: VariantRecords, wants: Wants) -> Candidate | Excluded:
    computes = evidence.row.computes if evidence.row else evidence.records[0].computes
    if not wants.allows(evidence.row.operator if evidence.row else computes):
        return Excluded(label, Why.COMPUTES, f"it computes {computes}")
    for why, reason in _ruled_out(evidence):
        return Excluded(label, why, reason)
    exact = computes == EXACT or wants.operator != EXACT
    memory, error = evidence.memory(), evidence.error(exact=exact)
    if (broken := _breaks(label, memory, error, wants)) is not None:
        return broken
    if wants.same_bits and (other := _other_bits(label, evidence)) is not None:
        return other
    time = evidence.time()
    if isinstance(time, str):
        return Excluded(label, Why.UNKNOWN, time)
    if not time.measured and evidence.row is not None and evidence.row.untried:
        return Excluded(label, Why.UNTRIED, "it was not measured on this problem", time=time)
    if not time.measured and time.off > TRUSTED:
        reason = f"its time there is only known to within {percent(time.off)}"
        return Excluded(label, Why.UNKNOWN, reason, time=time)
    near = evidence.beside[0]
    return Candidate(
        label,
        computes,
        time.value,
        time.low,
        time.high,
        time.measured,
        memory_bytes=None if memory is None else round(memory.value),
        error=error,
        skill=near.distance.skill if near.distance and not exact else None,
        kept=near.distance.kept if near.distance else None,
        setup_s=near.setup_s,
        flags=tuple(evidence.own.time.doubts) if evidence.own and evidence.own.time else (),
    )


def _breaks(
    label: str, memory: Estimate | None, error: float | None, wants: Wants
) -> Excluded | None:
    """Out, where it breaks a limit or is not known to keep it."""
    needs, reasons = {}, []
    if wants.max_memory is not None:
        if memory is None:
            return Excluded(label, Why.UNKNOWN, "how much memory it needs there is not known")
        if memory.high > wants.max_memory:
            about = "about " if memory.high > 1.01 * memory.low else ""
            needs["memory"] = memory.high
            reasons.append(f"it needs {about}{size(memory.value)}")
    if wants.max_error is not None:
        if error is None:
            return Excluded(label, Why.UNKNOWN, "its error there is not known")
        if error > wants.max_error:
            needs["error"] = error
            reasons.append(f"its error is {error:.2g}")
    why = Why.MEMORY if "memory" in needs else Why.ERROR
    return Excluded(label, why, " and ".join(reasons), needs) if needs else None


def _other_bits(label: str, evidence: VariantRecords) -> Excluded | None:
    """Out, where a batch element may have other bits than it gets alone, or it is not known."""
    for record in evidence.records:
        d = record.determinism
        if d is not None and False in (d.repeats, d.batch, d.place):
            return Excluded(label, Why.BITS, f"{d.words()}, on {record.problem}")
    for record in evidence.beside:
        d = record.determinism
        if d is None or None in (d.repeats, d.batch, d.place):
            why = f": {d.why}" if d and d.why else "; a run with --same-bits tries each measurement"
            return Excluded(label, Why.UNKNOWN, f"its bits were not tried on {record.problem}{why}")
    return None


def _ruled_out(evidence: VariantRecords) -> Iterator[tuple[Why, str]]:
    """Reasons against it: its row, its own word, where it was tried, and its results elsewhere."""
    problem = evidence.problem
    if evidence.row is not None and (reason := evidence.row.supports(problem)):
        yield Why.SUPPORT, reason
    for record in evidence.records:
        own = record.status == "unsupported" and record.problem == problem
        if (own or record.status == "unavailable") and record.reason:
            yield Why.SUPPORT, record.reason
    for record in evidence.records:
        p, where = record.problem, f"{record.problem}: {record.reason}"
        if record.wrong_on:
            yield Why.INPUTS, record.wrong_on
        elif record.status in FINDINGS and p.inputs != problem.inputs:
            yield Why.INPUTS, f"{p.inputs}: {record.reason}"
        elif record.status in FINDINGS:
            yield Why.STATUS, f"{record.status} on {where}"
        elif record.status in TOO_MUCH and all(getattr(p, x) <= getattr(problem, x) for x in SIZES):
            yield Why.STATUS, f"{record.status.replace('_', ' ')} already on {where}"


# ---- who is chosen -------------------------------------------------------------------------------


def make_choice(
    problem: Problem,
    wants: Wants,
    results: Sequence[Candidate | Excluded],
    *,
    margin: float,
    source: str = "",
) -> Choice:
    """The winner among the candidates; none where one of unknown time may be faster."""
    candidates = [c for c in results if isinstance(c, Candidate)]
    excluded = tuple(e for e in results if isinstance(e, Excluded))
    choice = Choice(problem, wants, excluded=excluded, margin=margin, source=source)
    if not candidates:
        return replace(choice, why_not=_why_none(excluded, wants))
    best = min(candidates, key=lambda c: c.median_s)
    uncertain = [(e.time.value, e) for e in excluded if e.why is Why.UNKNOWN and e.time]
    seconds, rival = min(uncertain, key=lambda each: each[0], default=(math.inf, None))
    if rival is not None and seconds < best.high_s:
        why = f"{rival.variant} may be faster than {best.variant}, and {rival.said}"
        return replace(choice, why_not=why)
    return replace(choice, ranking=rank(candidates, margin))


def _why_none(excluded: Sequence[Excluded], wants: Wants) -> str:
    """The reason for no candidate, and the least that would have to give way to let one in."""
    whys = [e.why for e in excluded if e.why is not Why.ABSENT]
    if not whys:
        return "nothing of this phase, dtype, kind of mask, inputs, level and device was measured"
    if reasons := [e.said for e in excluded if e.why is Why.UNKNOWN]:
        return f"outside what was measured ({max(reasons, key=reasons.count)})"
    if broken := [e for e in excluded if e.needs]:
        most = {"memory": wants.max_memory or 1, "error": wants.max_error or 1}
        # by what factors, in all, the limits would have to be relaxed for it
        nearest = min(broken, key=lambda e: sum(math.log(e.needs[x] / most[x]) for x in e.needs))
        options = {
            "memory": lambda need: f"--max-memory {math.ceil(need / 2**20)}MiB",
            "error": lambda need: f"--max-error {need * AMPLE:.1e}",
        }
        enough = " and ".join(options[name](need) for name, need in nearest.needs.items())
        return f"no variant keeps the limits; {enough} would let {nearest.variant} in"
    text = f"no variant takes it ({max(whys, key=whys.count)})"
    words = [word for word in KINDS if word not in wants.allowed]
    if others := whys.count(Why.COMPUTES):
        text += f"; --allow {','.join(words)} would let those in that are not exact ({others})"
    return text


def contest_row(pair: Compared) -> dict[str, Any]:
    """A contest as a header and a choice have it."""
    figures: dict[str, Any] = msgspec.to_builtins(pair.comparison)
    figures = {name: x for name, x in figures.items() if name not in ("a_s", "b_s", "stop")}
    return {"judged": pair.variant, "against": pair.against, **figures}


def settle(choice: Choice, contests: Sequence[Compared]) -> Choice:
    """The choice again, where those that were near each other were compared in pairs.

    Each was compared with the same one. The fastest is the one that is faster than that one, or
    the fastest of these if they are several. What is neither slower nor faster ties with it, and
    so does what tied by the medians and was not compared.
    """
    ranked = choice.ranking.all if choice.ranking else ()
    by_name = {c.variant: c for c in ranked}
    over = {
        pair.variant: pair.comparison
        for pair in contests
        if pair.variant in by_name and pair.comparison
    }
    if choice.ranking is None or not over or contests[0].against not in by_name:
        return choice
    base = contests[0].against
    spans = {base: (1.0, 1.0, 1.0)} | {n: (c.ratio, c.low, c.high) for n, c in over.items()}
    faster = [name for name, c in over.items() if c.verdict is Verdict.FASTER]
    first = min(faster, key=spans.__getitem__) if faster else base
    leaders: list[Candidate] = [by_name[first]]
    slower: list[Candidate] = []
    for name in sorted((n for n in spans if n != first), key=spans.__getitem__):
        if first == base:
            behind = over[name].verdict is Verdict.SLOWER
        else:
            most = over[first].high * (1 + over[first].margin)
            behind = name == base or over[name].low > most
        (slower if behind else leaders).append(by_name[name])
    for c in ranked:
        if c.variant not in spans:
            tied = c in choice.ranking.equal and not beats(leaders[0], c, choice.margin)
            (leaders if tied else slower).append(c)
    ranking = Ranking.of(leaders, slower, choice.margin)
    winner, after = ranking.winner.variant, ranking.next
    if after is not None and {winner, after.variant} <= spans.keys():
        (one, low, high), (other, least, most) = spans[winner], spans[after.variant]
        ranking = replace(ranking, lead=Interval(other / one, least / high, most / low))
    return replace(choice, ranking=ranking, pairs=tuple(map(contest_row, contests)))
