"""The variant to use for a problem, from what a run knows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from attnbench.answer import predict
from attnbench.answer.predict import VariantRecords
from attnbench.answer.ranking import MARGIN, margin_of, preference
from attnbench.answer.wants import KINDS, Candidate, Excluded, Why, judged
from attnbench.core.format import milliseconds, size
from attnbench.core.stats import Verdict

if TYPE_CHECKING:
    from attnbench.answer.wants import Candidate, Wants
    from attnbench.core.record import Record
    from attnbench.core.stats import Comparison
    from attnbench.sweep.compare import ContestResult
    from impls import Table
    from impls.problem import Problem
    from impls.spec import Variant


@dataclass(frozen=True)
class Lead:
    """By how much one is ahead of another: a factor and its interval."""

    factor: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.factor:.2f}× [{self.low:.2f}, {self.high:.2f}]"

    def to_dict(self) -> dict[str, float]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Choice:
    """What is said of one problem."""

    problem: Problem
    wants: Wants
    winner: Candidate | None
    equal: tuple[Candidate, ...] = ()
    """The others that can't be told from the fastest."""
    next: Candidate | None = None
    """The first that can."""
    lead: Lead | None = None
    """Over the next."""
    slower: tuple[Candidate, ...] = ()
    """What comes after that."""
    excluded: tuple[Excluded, ...] = ()
    why_not: str = ""
    """Why nothing is said, where nothing is."""
    relax: str = ""
    """Which limit would have to give way, and how far."""
    margin: float = MARGIN
    """What counts as no lead."""
    source: str = ""
    """The run that it rests on."""
    pairs: tuple[dict[str, Any], ...] = ()
    """Comparisons in pairs that it rests on besides."""
    settings: tuple[str, ...] = ()
    """What the run was told besides its grid, as the command line has it."""

    @property
    def ranked(self) -> list[Candidate]:
        """All that could be chosen: the winner, what ties with it, then the others by time."""
        after = [self.next] if self.next else []
        return [self.winner, *self.equal, *after, *self.slower] if self.winner else []

    @property
    def unknown(self) -> list[Excluded]:
        """Who might be faster, for all that is known."""
        unknown = [e for e in self.excluded if e.why in (Why.UNKNOWN, Why.ABSENT)]
        slowest = self.winner.high_s if self.winner else math.inf
        return [e for e in unknown if e.at_best_s is None or e.at_best_s < slowest]

    @property
    def pays_after(self) -> int | None:
        """Calls after which what the winner costs once has paid, against the runner-up."""
        other = self.next or (self.equal[0] if self.equal else None)
        if self.winner is None or other is None or self.winner.setup_s is None:
            return None
        once = self.winner.setup_s - (other.setup_s or 0.0)
        each = other.median_s - self.winner.median_s
        return None if each <= 0 else max(0, math.ceil(once / each))

    def sentence(self) -> str:
        """The answer."""
        where = f"{self.problem} ({', '.join(self.wants.words())})"
        if self.winner is None:
            return f"{where}: no answer: {self.why_not}" + f"; {self.relax}" * bool(self.relax)
        w = self.winner
        said = f"{where}: use {w.variant}, {_taken(w)}"
        said += f" and {size(w.memory_bytes)}" if w.memory_bytes is not None else ""
        if self.equal:
            names = ", ".join(c.variant for c in self.equal)
            said += f"; {names} can't be told from it"
        if self.next and self.lead:
            said += f"; {self.lead} ahead of {self.next.variant}" + ", in pairs" * bool(self.pairs)
        if len(self.ranked) == 1:
            said += "; the only one that is known"
        if w.flags:
            kinds = dict.fromkeys(flag.split(":")[0] for flag in w.flags)
            said += f" (in doubt: {' and '.join(kinds)})"
        return said

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "problem": self.problem.to_dict(),
            "wants": self.wants.words(),
            "winner": self.winner and self.winner.to_dict(),
            "equal": [c.to_dict() for c in self.equal],
            "next": self.next and self.next.to_dict(),
            "lead": self.lead and self.lead.to_dict(),
            "slower": [c.to_dict() for c in self.slower],
            "excluded": [e.to_dict() for e in self.excluded],
            "why_not": self.why_not,
            "relax": self.relax,
            "margin": self.margin,
            "pays_after_calls": self.pays_after,
            "source": self.source,
            "pairs": list(self.pairs),
            "sentence": self.sentence(),
        }


def _taken(c: Candidate) -> str:
    """``37.4 ms [32.3 ms, 43.3 ms]``"""
    said = f"{milliseconds(c.median_s)} [{milliseconds(c.low_s)}, {milliseconds(c.high_s)}]"
    return said if c.measured else f"predicted at {said}"


NOTHING = "nothing of this phase, dtype, kind of mask, inputs, level and device was measured"
AMPLE = 1.02
"""A limit is named a little above what is needed."""


def choose(
    seen: Sequence[Record],
    problem: Problem,
    wants: Wants,
    table: Table,
    *,
    ceilings: Mapping[str, Any],
    left_out: Sequence[Excluded] = (),
    source: str = "",
) -> Choice:
    """From the records of one run, of problems of the same phase, dtype and kind of mask.

    ``left_out``: whom the run left out with a reason.
    """
    alike = [s for s in _of_one_kind(seen) if _tells_of(s, problem)]
    by_variant: dict[str, list[Record]] = {}
    for each in alike:
        by_variant.setdefault(each.variant, []).append(each)
    found: list[Candidate | Excluded] = []
    for label, some in by_variant.items():
        row = row_of(table, label)
        found.append(judged(label, row, VariantRecords(row, some, ceilings), problem, wants))
    found += [each for each in left_out if each.variant not in by_variant]
    found += _absent(table, {e.variant for e in found}, problem, wants)
    return ranked(problem, wants, found, margin=margin_of(alike), source=source)


def _tells_of(seen: Record, problem: Problem) -> bool:
    """Whether the masks are of one kind; a time, also where both hide nothing."""
    if seen.problem.mask.kinds == problem.mask.kinds:
        return True
    return seen.time is not None and predict.kinds(seen.problem) == predict.kinds(problem)


def _of_one_kind(seen: Sequence[Record]) -> list[Record]:
    """Of one kind of machine, the one that measured most, and of each cell the last record."""
    nodes = Counter(s.node for s in seen if s.time is not None)
    (node, _), *_ = nodes.most_common(1) or [("", 0)]
    latest: dict[tuple[str, Problem], Record] = {}
    for each in seen:
        if each.ranks is None and each.node in (node, ""):
            latest[each.variant, each.problem] = each
    return list(latest.values())


def _absent(table: Table, there: set[str], problem: Problem, wants: Wants) -> list[Excluded]:
    """Who would do, and was not measured at all."""
    return [
        Excluded(name, Why.ABSENT, "the run has nothing of it")
        for name, row in table.rows.items()
        if name not in there
        and row.computes in wants.computes
        and not row.ranks
        and row.supports(problem) is None
    ]


def ranked(
    problem: Problem,
    wants: Wants,
    found: Sequence[Candidate | Excluded],
    *,
    margin: float,
    source: str = "",
) -> Choice:
    """The fastest of those that could be chosen; among ties the one to prefer."""
    order = sorted((c for c in found if isinstance(c, Candidate)), key=lambda c: c.median_s)
    excluded = tuple(e for e in found if isinstance(e, Excluded))
    start = Choice(problem, wants, None, excluded=excluded, margin=margin, source=source)
    if not order:
        return replace(start, why_not=_nobody(excluded), relax=_relax(excluded, wants))
    best, *rest = order
    nearly = [e for e in excluded if e.about_s is not None and e.about_s < best.high_s]
    if nearly:
        first = min(nearly, key=lambda e: e.about_s or 0.0)
        why = f"{first.variant} may be faster than {best.variant}, and {first.said}"
        return replace(start, why_not=why)
    told = [told_apart(best, other, margin) for other in rest]
    tied = told.index(True) if True in told else len(told)
    after = rest[tied] if tied < len(rest) else None
    winner, equal = preferred(order[: 1 + tied], margin)
    return replace(
        start,
        winner=winner,
        equal=equal,
        next=after,
        lead=lead_over(winner, after) if after else None,
        slower=tuple(rest[tied + 1 :]),
    )


def preferred(ties: Sequence[Candidate], margin: float) -> tuple[Candidate, tuple[Candidate, ...]]:
    """Of some that can't be told apart, the fastest first, the one to advise, and the others."""
    most_s = ties[0].median_s * (1 + margin)
    first = min(ties, key=lambda c: preference(c.variant, c.memory_bytes, c.median_s, most_s))
    return first, tuple(c for c in ties if c is not first)


def lead_over(best: Candidate, other: Candidate) -> Lead:
    """How far ahead the one is of the other: of measured times from the ends of both intervals.

    Predicted ones are off independently of each other, so their intervals add as squares.
    """
    if best.measured and other.measured:
        low, high = other.low_s / best.high_s, other.high_s / best.low_s
        return Lead(other.median_s / best.median_s, low, high)
    middle = math.log(other.median_s / best.median_s)
    down = math.hypot(math.log(other.median_s / other.low_s), math.log(best.high_s / best.median_s))
    up = math.hypot(math.log(other.high_s / other.median_s), math.log(best.median_s / best.low_s))
    return Lead(*(math.exp(x) for x in (middle, middle - down, middle + up)))


def told_apart(best: Candidate, other: Candidate, margin: float) -> bool:
    """Whether the lead is one."""
    return lead_over(best, other).low > 1 + margin


def row_of(table: Table, label: str) -> Variant | None:
    """The row that a record's label names; None where the table has none."""
    from impls import UnknownVariant
    from impls.spec import InvalidRow

    try:
        return table.find(label)
    except (UnknownVariant, InvalidRow):
        return None


def _nobody(excluded: Sequence[Excluded]) -> str:
    """Why there is nobody to choose, from why each is out."""
    whys = [e.why for e in excluded]
    if all(e.why is Why.ABSENT for e in excluded):
        return NOTHING
    if Why.UNKNOWN in whys:
        said = [e.said for e in excluded if e.why is Why.UNKNOWN]
        return f"outside what was measured ({max(said, key=said.count)})"
    if any(e.needs for e in excluded):
        limits = dict.fromkeys(name for e in excluded for name in e.needs)
        return f"nobody keeps the limit of {' and '.join(limits)}"
    whys = [why for why in whys if why is not Why.ABSENT]
    return f"nobody serves it ({max(whys, key=whys.count)})"


def _relax(excluded: Sequence[Excluded], wants: Wants) -> str:
    """What would have to give way to let somebody in, the least of it."""
    if any(e.why is Why.UNKNOWN for e in excluded) or _nobody(excluded) is NOTHING:
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


def settled(choice: Choice, taken: Sequence[ContestResult]) -> Choice:
    """The choice again, where those that were near each other have been held side by side.

    Each was held against the same one. The fastest is the one that is faster than that one, or the
    fastest of these if they are several; what is neither slower nor faster can't be told from it,
    nor can what was equal and was held against none. Among these the winner is the one to prefer.
    """
    by_name = {c.variant: c for c in choice.ranked}
    over = {held.judged: held.comparison for held in taken if held.judged in by_name}
    if not over or taken[0].against not in by_name:
        return choice
    base = taken[0].against
    faster = [n for n, c in over.items() if c.verdict is Verdict.FASTER]
    first = min(faster, key=lambda n: over[n].ratio) if faster else base
    shares = {base: 1.0, **{name: c.ratio for name, c in over.items()}}
    others = sorted((n for n in shares if n != first), key=shares.__getitem__)
    unheld = [c for c in choice.ranked if c.variant not in shares]
    still = [
        c for c in unheld if c in choice.equal and not told_apart(by_name[first], c, choice.margin)
    ]
    equal = [by_name[n] for n in others if not _slower(n, first, base, over)]
    rest = [by_name[n] for n in others if _slower(n, first, base, over)]
    rest += [c for c in unheld if c not in still]
    after = rest[0] if rest else None
    winner, tied = preferred([by_name[first], *equal, *still], choice.margin)
    return replace(
        choice,
        winner=winner,
        equal=tied,
        next=after,
        slower=tuple(rest[1:]),
        lead=_lead(winner, after, base, over),
        pairs=tuple(held.to_dict() for held in taken),
    )


def _slower(name: str, first: str, base: str, over: dict[str, Comparison]) -> bool:
    """Whether pairs say that one is slower than the winner."""
    if first == base:
        return over[name].verdict is Verdict.SLOWER
    if name == base:
        return True  # the winner is faster than it
    return over[name].low > over[first].high * (1 + over[first].margin)


def _lead(
    first: Candidate, after: Candidate | None, base: str, over: dict[str, Comparison]
) -> Lead | None:
    """Over the next: by pairs where both were held against the same one."""
    if after is None:
        return None
    one, other = over.get(first.variant), over.get(after.variant)
    if first.variant == base and other is not None:
        return Lead(other.ratio, other.low, other.high)
    if after.variant == base and one is not None:
        return Lead(1 / one.ratio, 1 / one.high, 1 / one.low)
    if one is not None and other is not None:
        return Lead(other.ratio / one.ratio, other.low / one.high, other.high / one.low)
    return lead_over(first, after)
