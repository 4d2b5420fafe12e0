"""The variant to use for a problem, within limits, from one run; or why there is none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from attnbench.answer import predict
from attnbench.answer.predict import TRUSTED, VariantRecords
from attnbench.answer.ranking import (
    EXACT,
    MARGIN,
    Candidate,
    Lead,
    Ranking,
    is_ahead,
    lead_over,
    margin_of,
    rank,
)
from attnbench.core.format import milliseconds, size
from attnbench.core.record import FINDINGS
from attnbench.core.stats import Verdict
from impls.asked import CantBeDone

if TYPE_CHECKING:
    from attnbench.answer.predict import Estimate
    from attnbench.core.record import Record
    from attnbench.sweep.compare import ContestResult
    from impls import Table
    from impls.problem import Problem

KINDS = {
    "pattern": "softmax on its own pattern",
    "approximate": "approximates softmax",
    "other": "its own operator",
}
"""What may be allowed besides exact softmax, by the word for it on the command line."""
TOO_MUCH = ("out_of_memory", "timed_out")
"""A variant that ended so will end so on every problem that is at least as large."""
AMPLE = 1.02
"""A limit is proposed a little above what is needed."""


class Contradiction(CantBeDone):
    """Limits that nothing can meet together."""


@dataclass(frozen=True)
class Wants:
    """Limits, and what may be used besides exact softmax: words of :data:`KINDS`."""

    max_memory: int | None = None
    """Bytes above the inputs, at the worst instant."""
    max_error: float | None = None
    """Relative to exact softmax: of an exact variant its rounding, of another its distance."""
    allowed: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, *, exact: bool, allow: Sequence[str], max_memory: int | None, max_error: float | None
    ) -> Wants:
        """What the command line says; raises :class:`Contradiction`."""
        if exact and allow:
            raise Contradiction(
                f"--exact and --allow {','.join(allow)} contradict each other: leave one out"
            )
        if unknown := [word for word in allow if word not in KINDS]:
            raise Contradiction(
                f"--allow {unknown[0]!r} is not one of {', '.join(KINDS)} (exact softmax is always "
                "allowed)"
            )
        if max_error is not None and max_error <= 0:
            raise Contradiction(f"an error of {max_error:g} or less is nobody's: give one above 0")
        return cls(max_memory, max_error, tuple(dict.fromkeys(allow)))

    @property
    def computes(self) -> tuple[str, ...]:
        """What a variant may compute."""
        return (EXACT, *(KINDS[word] for word in self.allowed))

    def words(self) -> list[str]:
        """``exact``, ``in 8 GiB``, ``error at most 0.01``"""
        words = [f"exact or {' or '.join(self.allowed)}" if self.allowed else "exact"]
        words += [f"in {size(self.max_memory)}"] if self.max_memory else []
        words += [f"error at most {self.max_error:g}"] if self.max_error else []
        return words


class Why(StrEnum):
    """What keeps a variant out."""

    COMPUTES = "computes something else"
    SUPPORT = "doesn't take it"
    MEMORY = "memory"
    ERROR = "error"
    STATUS = "came to grief"
    SLOW = "far behind"
    UNKNOWN = "not known"
    ABSENT = "not in the run"


@dataclass(frozen=True)
class Excluded:
    """A variant that can't be chosen. ``needs``: what the limits that it breaks would have to be,
    bytes of ``memory`` or an ``error``; a time that is too uncertain to rank, and at its best.
    """

    variant: str
    why: Why
    said: str
    needs: Mapping[str, float] = field(default_factory=dict)
    about_s: float | None = None
    at_best_s: float | None = None


@dataclass(frozen=True)
class Choice:
    """The answer for one problem: the ranking and the winner's lead over the next, from the run
    ``source`` with its ``settings`` as the command line has them, and from comparisons in pairs.
    Without a ranking there is none: ``why_not``, and which limit would have to give way.
    """

    problem: Problem
    wants: Wants
    ranking: Ranking | None = None
    lead: Lead | None = None
    excluded: tuple[Excluded, ...] = ()
    why_not: str = ""
    relax: str = ""
    margin: float = MARGIN
    source: str = ""
    pairs: tuple[dict[str, Any], ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def winner(self) -> Candidate | None:
        """The one to use."""
        return self.ranking.winner if self.ranking else None

    @property
    def equal(self) -> tuple[Candidate, ...]:
        """The others that tie with it."""
        return self.ranking.equal if self.ranking else ()

    @property
    def next(self) -> Candidate | None:
        """The first that is slower."""
        return self.ranking.next if self.ranking else None

    @property
    def ranked(self) -> list[Candidate]:
        """All that could be chosen: the winner, what ties with it, then the others by time."""
        r = self.ranking
        return [r.winner, *r.equal, *r.slower] if r else []

    @property
    def unknown(self) -> list[Excluded]:
        """The variants that might be faster, for all that is known."""
        unknown = [e for e in self.excluded if e.why in (Why.UNKNOWN, Why.ABSENT)]
        slowest = self.winner.high_s if self.winner else math.inf
        return [e for e in unknown if e.at_best_s is None or e.at_best_s < slowest]

    @property
    def pays_after(self) -> int | None:
        """Calls after which the winner's setup has paid, against the runner-up."""
        other = self.next or (self.equal[0] if self.equal else None)
        if self.winner is None or other is None or self.winner.setup_s is None:
            return None
        once = self.winner.setup_s - (other.setup_s or 0.0)
        each = other.median_s - self.winner.median_s
        return None if each <= 0 else max(0, math.ceil(once / each))

    def sentence(self) -> str:
        """The answer."""
        where = f"{self.problem} ({', '.join(self.wants.words())})"
        w = self.winner
        if w is None:
            why = "; ".join(filter(None, [self.why_not, self.relax]))
            return f"{where}: no answer: {why}"
        time = f"{milliseconds(w.median_s)} [{milliseconds(w.low_s)}, {milliseconds(w.high_s)}]"
        text = f"{where}: use {w.variant}, {'' if w.measured else 'predicted at '}{time}"
        if w.memory_bytes is not None:
            text += f" and {size(w.memory_bytes)}"
        if self.equal:
            text += f"; {', '.join(c.variant for c in self.equal)} can't be told from it"
        if self.next and self.lead:
            how = ", in pairs" if self.pairs else ""
            text += f"; {self.lead} ahead of {self.next.variant}{how}"
        if len(self.ranked) == 1:
            text += "; the only one that is known"
        if w.flags:
            kinds = dict.fromkeys(flag.split(":")[0] for flag in w.flags)
            text += f" (in doubt: {' and '.join(kinds)})"
        return text

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        of = msgspec.to_builtins(
            {name: getattr(self, name) for name in ("winner", "equal", "next", "lead")}
        )
        return {
            "problem": self.problem.to_dict(),
            "wants": self.wants.words(),
            **of,
            "slower": msgspec.to_builtins(self.ranking.slower[1:] if self.ranking else ()),
            "excluded": msgspec.to_builtins(self.excluded),
            **{name: getattr(self, name) for name in ("why_not", "relax", "margin")},
            "pays_after_calls": self.pays_after,
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
    ceilings: Mapping[str, Any],
    left_out: Sequence[Excluded] = (),
    source: str = "",
) -> Choice:
    """From the records of one run, of problems of the same phase, dtype and kind of mask.

    ``left_out``: the variants that the run did not measure, with the reasons.
    """
    nodes = Counter(r.node for r in records if r.time is not None)
    (node, _), *_ = nodes.most_common(1) or [("", 0)]  # of the kind of machine that measured most
    latest = {(r.variant, r.problem): r for r in records if not r.ranks and r.node in (node, "")}
    alike = [
        r
        for r in latest.values()
        if r.problem.mask.kinds == problem.mask.kinds
        or (r.time is not None and predict.kinds(r.problem) == predict.kinds(problem))
    ]
    by_variant: dict[str, list[Record]] = {}
    for record in alike:
        by_variant.setdefault(record.variant, []).append(record)
    found: list[Candidate | Excluded] = []
    for label, some in by_variant.items():
        known = VariantRecords(_row(table, label), some, ceilings)
        found.append(_judge(label, known, problem, wants))
    found += [each for each in left_out if each.variant not in by_variant]
    there = {each.variant for each in found}
    found += [
        Excluded(name, Why.ABSENT, "the run has nothing of it")
        for name, row in table.rows.items()
        if name not in there and row.computes in wants.computes and not row.ranks
        if row.supports(problem) is None
    ]
    return make_choice(problem, wants, found, margin=margin_of(alike), source=source)


def _row(table: Table, label: str) -> Any:
    """The row that a record's label names; None where the table has none."""
    from impls import UnknownVariant
    from impls.spec import InvalidRow

    try:
        return table.find(label)
    except (UnknownVariant, InvalidRow):
        return None


def _judge(
    label: str, known: VariantRecords, problem: Problem, wants: Wants
) -> Candidate | Excluded:
    computes = known.row.computes if known.row else known.seen[0].computes
    if computes not in wants.computes:
        return Excluded(label, Why.COMPUTES, f"it computes {computes}")
    for why, said in _rules_it_out(known, problem):
        return Excluded(label, why, said)
    memory, error = known.memory(problem), known.error(problem)
    if (broken := _breaks(label, memory, error, wants)) is not None:
        return broken
    time = known.time(problem)
    if isinstance(time, str):
        return Excluded(label, Why.UNKNOWN, time)
    if not time.measured and time.off > TRUSTED:
        said = f"its time there is known to within {time.off:.0%} only"
        return Excluded(label, Why.UNKNOWN, said, about_s=time.middle, at_best_s=time.low)
    own, (near, *_) = known.on(problem), known.nearest(problem)
    return Candidate(
        label,
        computes,
        time.middle,
        time.low,
        time.high,
        time.measured,
        memory_bytes=None if memory is None else round(memory.middle),
        error=error,
        skill=near.distance.skill if near.distance and computes != EXACT else None,
        setup_s=near.setup_s,
        flags=tuple(own.time.flags) if own and own.time else (),
    )


def _breaks(
    label: str, memory: Estimate | None, error: float | None, wants: Wants
) -> Excluded | None:
    """Out, where it breaks a limit or is not known to keep it."""
    needs, said = {}, []
    if wants.max_memory is not None:
        if memory is None:
            return Excluded(label, Why.UNKNOWN, "how much memory it needs there is not known")
        if memory.high > wants.max_memory:
            about = "about " if memory.high > 1.01 * memory.low else ""
            needs["memory"] = memory.high
            said.append(f"it needs {about}{size(memory.middle)}")
    if wants.max_error is not None:
        if error is None:
            return Excluded(label, Why.UNKNOWN, "its error there is not known")
        if error > wants.max_error:
            needs["error"] = error
            said.append(f"its error is {error:.2g}")
    why = Why.MEMORY if "memory" in needs else Why.ERROR
    return Excluded(label, why, " and ".join(said), needs) if needs else None


def _rules_it_out(known: VariantRecords, problem: Problem) -> Iterator[tuple[Why, str]]:
    """Why it doesn't take the problem, by its row, by its own word, or by where it was tried; and
    the results elsewhere that rule it out.
    """
    if known.row is not None and (said := known.row.supports(problem)):
        yield Why.SUPPORT, said
    for record in known.seen:
        own = record.status == "unsupported" and record.problem == problem
        if (own or record.status == "unavailable") and record.reason:
            yield Why.SUPPORT, record.reason
    sizes = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
    for record in known.seen:
        p, where = record.problem, f"{record.problem}: {record.reason}"
        if record.status in FINDINGS:
            yield Why.STATUS, f"{record.status} on {where}"
        elif record.status in TOO_MUCH and all(getattr(p, x) <= getattr(problem, x) for x in sizes):
            yield Why.STATUS, f"{record.status.replace('_', ' ')} already on {where}"


# ---- who is chosen -------------------------------------------------------------------------------


def make_choice(
    problem: Problem,
    wants: Wants,
    found: Sequence[Candidate | Excluded],
    *,
    margin: float,
    source: str = "",
) -> Choice:
    """The winner among the candidates; none where one of unknown time may be faster."""
    candidates = [c for c in found if isinstance(c, Candidate)]
    excluded = tuple(e for e in found if isinstance(e, Excluded))
    choice = Choice(problem, wants, excluded=excluded, margin=margin, source=source)
    if not candidates:
        why, relax = _why_none(excluded, wants)
        return replace(choice, why_not=why, relax=relax)
    best = min(candidates, key=lambda c: c.median_s)
    rivals = [(e.about_s, e) for e in excluded if e.about_s and e.about_s < best.high_s]
    if rivals:
        _, first = min(rivals, key=lambda each: each[0])
        why = f"{first.variant} may be faster than {best.variant}, and {first.said}"
        return replace(choice, why_not=why)
    ranking = rank(candidates, margin)
    return replace(choice, ranking=ranking, lead=ranking.lead)


def _why_none(excluded: Sequence[Excluded], wants: Wants) -> tuple[str, str]:
    """Why there is no candidate, and the least that would have to give way to let one in."""
    whys = [e.why for e in excluded if e.why is not Why.ABSENT]
    if not whys:
        return (
            "nothing of this phase, dtype, kind of mask, inputs, level and device was measured",
            "",
        )
    if said := [e.said for e in excluded if e.why is Why.UNKNOWN]:
        return f"outside what was measured ({max(said, key=said.count)})", ""
    if broken := [e for e in excluded if e.needs]:
        limits = dict.fromkeys(name for e in broken for name in e.needs)
        most = {"memory": wants.max_memory or 1, "error": wants.max_error or 1}
        # by what factors, in all, the limits would have to be relaxed for it
        nearest = min(broken, key=lambda e: sum(math.log(e.needs[x] / most[x]) for x in e.needs))
        enough = {name: f"{need * AMPLE:.1e}" for name, need in nearest.needs.items()}
        if "memory" in enough:  # in hundredths of a MiB, rounded up
            hundredths = math.ceil(nearest.needs["memory"] * AMPLE / 2**20 * 100)
            enough["memory"] = f"{hundredths / 100:g}MiB"
        give = [f"--max-{name} {limit}" for name, limit in enough.items()]
        return (
            f"nobody keeps the limit of {' and '.join(limits)}",
            f"{' and '.join(give)} would let {nearest.variant} in",
        )
    others, words = whys.count(Why.COMPUTES), [word for word in KINDS if word not in wants.allowed]
    relax = f"--allow {','.join(words)} would let those in that are not exact ({others})"
    return f"nobody serves it ({max(whys, key=whys.count)})", relax if others else ""


def settle(choice: Choice, taken: Sequence[ContestResult]) -> Choice:
    """The choice again, where those that were near each other were compared in pairs.

    Each was compared with the same one. The fastest is the one that is faster than that one, or
    the fastest of these if they are several. What is neither slower nor faster ties with it, and
    so does what tied by the medians and was not compared.
    """
    by_name = {c.variant: c for c in choice.ranked}
    over = {pair.judged: pair.comparison for pair in taken if pair.judged in by_name}
    if not over or taken[0].against not in by_name:
        return choice
    base = taken[0].against
    spans = {base: (1.0, 1.0, 1.0)} | {n: (c.ratio, c.low, c.high) for n, c in over.items()}
    faster = [name for name, c in over.items() if c.verdict is Verdict.FASTER]
    first = min(faster, key=spans.__getitem__) if faster else base

    def is_slower(name: str) -> bool:
        if first == base:
            return over[name].verdict is Verdict.SLOWER
        return name == base or over[name].low > over[first].high * (1 + over[first].margin)

    leaders: list[Candidate] = [by_name[first]]
    slower: list[Candidate] = []
    for name in sorted((n for n in spans if n != first), key=spans.__getitem__):
        (slower if is_slower(name) else leaders).append(by_name[name])
    for c in choice.ranked:
        if c.variant not in spans:
            tied = c in choice.equal and not is_ahead(leaders[0], c, choice.margin)
            (leaders if tied else slower).append(c)
    ranking = Ranking.of(leaders, slower, choice.margin)
    winner, after = ranking.winner, ranking.next
    lead = None if after is None else lead_over(winner, after)
    if after is not None and {winner.variant, after.variant} <= spans.keys():
        (one, low, high), (other, least, most) = spans[winner.variant], spans[after.variant]
        lead = Lead(other / one, least / high, most / low)
    pairs = tuple(pair.to_dict() for pair in taken)
    return replace(choice, ranking=ranking, lead=lead, pairs=pairs)
