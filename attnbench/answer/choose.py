"""The variant to use for a problem, within limits, from one run; or why there is none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
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
    from attnbench.core.stats import Comparison
    from attnbench.sweep.compare import ContestResult
    from impls import Table
    from impls.problem import Problem
    from impls.spec import Variant

KINDS = {
    "pattern": "softmax on its own pattern",
    "approximate": "approximates softmax",
    "other": "its own operator",
}
"""What may be allowed besides exact softmax, by the word for it on the command line."""
TOO_MUCH = ("out_of_memory", "timed_out")
"""A variant that ended so will end so on every problem that is at least as large."""
NOTHING = "nothing of this phase, dtype, kind of mask, inputs, level and device was measured"
AMPLE = 1.02
"""A limit is proposed a little above what is needed."""


class Contradiction(CantBeDone):
    """Limits that nothing can meet together."""


@dataclass(frozen=True)
class Wants:
    """Limits, and what may be used besides exact softmax."""

    max_memory: int | None = None
    """Bytes above the inputs, at the worst instant."""
    max_error: float | None = None
    """Relative to exact softmax: of an exact variant its rounding, of another its distance."""
    allowed: tuple[str, ...] = ()
    """Words of :data:`KINDS`."""

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
    """A variant that can't be chosen."""

    variant: str
    why: Why
    said: str
    needs: Mapping[str, float] = field(default_factory=dict)
    """What the limits that it breaks would have to be: bytes of ``memory``, or an ``error``."""
    about_s: float | None = None
    """A time that is too uncertain to rank: its middle, and at its best."""
    at_best_s: float | None = None


@dataclass(frozen=True)
class Choice:
    """The answer for one problem."""

    problem: Problem
    wants: Wants
    ranking: Ranking | None = None
    """None where there is no answer."""
    lead: Lead | None = None
    """The winner's, over the next."""
    excluded: tuple[Excluded, ...] = ()
    why_not: str = ""
    """Why there is no answer."""
    relax: str = ""
    """Which limit would have to give way, and how far."""
    margin: float = MARGIN
    """What counts as no lead."""
    source: str = ""
    """The run that it rests on."""
    pairs: tuple[dict[str, Any], ...] = ()
    """Comparisons in pairs that it rests on besides."""
    settings: tuple[str, ...] = ()
    """The run's options besides its grid, as the command line has them."""

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
        plain = msgspec.to_builtins
        return {
            "problem": self.problem.to_dict(),
            "wants": self.wants.words(),
            "winner": plain(self.winner),
            "equal": plain(self.equal),
            "next": plain(self.next),
            "lead": plain(self.lead),
            "slower": plain(self.ranking.slower[1:] if self.ranking else ()),
            "excluded": plain(self.excluded),
            "why_not": self.why_not,
            "relax": self.relax,
            "margin": self.margin,
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
    alike = [r for r in _of_one_node(records) if _applies(r, problem)]
    by_variant: dict[str, list[Record]] = {}
    for record in alike:
        by_variant.setdefault(record.variant, []).append(record)
    found: list[Candidate | Excluded] = []
    for label, some in by_variant.items():
        known = VariantRecords(_row(table, label), some, ceilings)
        found.append(_judge(label, known, problem, wants))
    found += [each for each in left_out if each.variant not in by_variant]
    found += _absent(table, {each.variant for each in found}, problem, wants)
    return make_choice(problem, wants, found, margin=margin_of(alike), source=source)


def _applies(record: Record, problem: Problem) -> bool:
    """Whether the masks are of one kind; of a time, also where both hide nothing."""
    if record.problem.mask.kinds == problem.mask.kinds:
        return True
    return record.time is not None and predict.kinds(record.problem) == predict.kinds(problem)


def _of_one_node(records: Sequence[Record]) -> list[Record]:
    """The last record of each cell, of the kind of machine that measured most."""
    nodes = Counter(r.node for r in records if r.time is not None)
    (node, _), *_ = nodes.most_common(1) or [("", 0)]
    latest = {
        (r.variant, r.problem): r for r in records if r.ranks is None and r.node in (node, "")
    }
    return list(latest.values())


def _row(table: Table, label: str) -> Variant | None:
    """The row that a record's label names; None where the table has none."""
    from impls import UnknownVariant
    from impls.spec import InvalidRow

    try:
        return table.find(label)
    except (UnknownVariant, InvalidRow):
        return None


def _absent(table: Table, there: set[str], problem: Problem, wants: Wants) -> list[Excluded]:
    """The variants that would do, and were not measured at all."""
    return [
        Excluded(name, Why.ABSENT, "the run has nothing of it")
        for name, row in table.rows.items()
        if name not in there
        and row.computes in wants.computes
        and not row.ranks
        and row.supports(problem) is None
    ]


def _judge(
    label: str, known: VariantRecords, problem: Problem, wants: Wants
) -> Candidate | Excluded:
    computes = known.row.computes if known.row else known.seen[0].computes
    if computes not in wants.computes:
        return Excluded(label, Why.COMPUTES, f"it computes {computes}")
    if (refusal := _refusal(known, problem)) is not None:
        return Excluded(label, Why.SUPPORT, refusal)
    if (failure := _failure(known.seen, problem)) is not None:
        return Excluded(label, Why.STATUS, failure)
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


def _refusal(known: VariantRecords, problem: Problem) -> str | None:
    """Why it doesn't take the problem: by its row, by its own word, or by where it was tried."""
    if known.row is not None and (refusal := known.row.supports(problem)) is not None:
        return refusal
    for record in known.seen:
        own = record.status == "unsupported" and record.problem == problem
        if own or record.status == "unavailable":
            return record.reason
    return None


def _failure(records: Sequence[Record], problem: Problem) -> str | None:
    """The result elsewhere that rules it out."""
    for record in records:
        where = f"{record.problem}: {record.reason}"
        if record.status in FINDINGS:
            return f"{record.status} on {where}"
        if record.status in TOO_MUCH and _nowhere_larger(record.problem, problem):
            return f"{record.status.replace('_', ' ')} already on {where}"
    return None


def _nowhere_larger(one: Problem, other: Problem) -> bool:
    sizes = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
    return all(getattr(one, name) <= getattr(other, name) for name in sizes)


def _breaks(
    label: str, memory: Estimate | None, error: float | None, wants: Wants
) -> Excluded | None:
    """Out, where it breaks a limit or is not known to keep it."""
    needs, said = {}, []
    if wants.max_memory is not None:
        if memory is None:
            return Excluded(label, Why.UNKNOWN, "how much memory it needs there is not known")
        if memory.high > wants.max_memory:
            needs["memory"] = memory.high
            about = "about " if memory.high > 1.01 * memory.low else ""
            said.append(f"it needs {about}{size(memory.middle)}")
    if wants.max_error is not None:
        if error is None:
            return Excluded(label, Why.UNKNOWN, "its error there is not known")
        if error > wants.max_error:
            needs["error"] = error
            said.append(f"its error is {error:.2g}")
    if not needs:
        return None
    why = Why.MEMORY if "memory" in needs else Why.ERROR
    return Excluded(label, why, " and ".join(said), needs)


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
        return replace(choice, why_not=_why_none(excluded), relax=_relax(excluded, wants))
    best = min(candidates, key=lambda c: c.median_s)
    rivals = [e for e in excluded if e.about_s is not None and e.about_s < best.high_s]
    if rivals:
        first = min(rivals, key=lambda e: e.about_s or 0.0)
        why = f"{first.variant} may be faster than {best.variant}, and {first.said}"
        return replace(choice, why_not=why)
    ranking = rank(candidates, margin)
    lead = lead_over(ranking.winner, ranking.next) if ranking.next else None
    return replace(choice, ranking=ranking, lead=lead)


def _why_none(excluded: Sequence[Excluded]) -> str:
    """Why there is no candidate, from why each is out."""
    whys = [e.why for e in excluded if e.why is not Why.ABSENT]
    if not whys:
        return NOTHING
    if Why.UNKNOWN in whys:
        said = [e.said for e in excluded if e.why is Why.UNKNOWN]
        return f"outside what was measured ({max(said, key=said.count)})"
    if limits := dict.fromkeys(name for e in excluded for name in e.needs):
        return f"nobody keeps the limit of {' and '.join(limits)}"
    return f"nobody serves it ({max(whys, key=whys.count)})"


def _relax(excluded: Sequence[Excluded], wants: Wants) -> str:
    """The least that would have to give way to let a variant in."""
    whys = {e.why for e in excluded}
    if Why.UNKNOWN in whys or whys <= {Why.ABSENT}:
        return ""
    if broken := [e for e in excluded if e.needs]:
        nearest = min(broken, key=lambda e: _how_far(e, wants))
        words = []
        if "memory" in nearest.needs:
            words.append(f"--max-memory {_size_word(nearest.needs['memory'] * AMPLE)}")
        if "error" in nearest.needs:
            words.append(f"--max-error {nearest.needs['error'] * AMPLE:.1e}")
        return f"{' and '.join(words)} would let {nearest.variant} in"
    others = [e for e in excluded if e.why is Why.COMPUTES]
    words = [word for word in KINDS if word not in wants.allowed]
    if not others:
        return ""
    return f"--allow {','.join(words)} would let those in that are not exact ({len(others)})"


def _how_far(one: Excluded, wants: Wants) -> float:
    """By what factors, in all, the limits would have to be relaxed for it."""
    limits = {"memory": wants.max_memory, "error": wants.max_error}
    return sum(math.log(one.needs[name] / (limits[name] or 1.0)) for name in one.needs)


def _size_word(nbytes: float) -> str:
    """As the option takes it, rounded up."""
    for unit, each in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= each:
            return f"{math.ceil(nbytes / each * 100) / 100:g}{unit}"
    return f"{math.ceil(nbytes)}B"


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
    faster = [name for name, c in over.items() if c.verdict is Verdict.FASTER]
    first = min(faster, key=lambda name: over[name].ratio) if faster else base
    ratios = {base: 1.0, **{name: c.ratio for name, c in over.items()}}
    leaders = [by_name[first]]
    slower: list[Candidate] = []
    for name in sorted((n for n in ratios if n != first), key=ratios.__getitem__):
        (slower if _is_slower(name, first, base, over) else leaders).append(by_name[name])
    for c in choice.ranked:
        if c.variant not in ratios:
            tied = c in choice.equal and not is_ahead(leaders[0], c, choice.margin)
            (leaders if tied else slower).append(c)
    ranking = Ranking.of(leaders, slower, choice.margin)
    return replace(
        choice,
        ranking=ranking,
        lead=_lead(ranking.winner, ranking.next, base, over) if ranking.next else None,
        pairs=tuple(pair.to_dict() for pair in taken),
    )


def _is_slower(name: str, first: str, base: str, over: dict[str, Comparison]) -> bool:
    """Whether pairs show that one is slower than the fastest."""
    if first == base:
        return over[name].verdict is Verdict.SLOWER
    if name == base:
        return True  # the fastest was faster than it
    return over[name].low > over[first].high * (1 + over[first].margin)


def _lead(first: Candidate, after: Candidate, base: str, over: dict[str, Comparison]) -> Lead:
    """By pairs where both were compared with the same one, else by the medians."""
    one, other = over.get(first.variant), over.get(after.variant)
    if first.variant == base and other is not None:
        return Lead(other.ratio, other.low, other.high)
    if after.variant == base and one is not None:
        return Lead(1 / one.ratio, 1 / one.high, 1 / one.low)
    if one is not None and other is not None:
        return Lead(other.ratio / one.ratio, other.low / one.high, other.high / one.low)
    return lead_over(first, after)
