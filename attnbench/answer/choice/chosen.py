"""Choosing: the fastest of those that could be chosen; among ties, the one to prefer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.answer.choice import features
from attnbench.answer.choice.candidates import Candidate, Excluded, Why, judged
from attnbench.answer.choice.choice import Choice, Lead
from attnbench.answer.choice.known import Known
from attnbench.answer.choice.wants import KINDS
from attnbench.answer.ties import preference
from attnbench.answer.verdict import margin_of

if TYPE_CHECKING:
    from attnbench.answer.choice.wants import Wants
    from attnbench.store.skim import Seen
    from impls import Table
    from impls.problem import Problem
    from impls.spec import Variant

NOTHING = "nothing of this phase, dtype, kind of mask, inputs, level and device was measured"
AMPLE = 1.02
"""A limit is named a little above what is needed."""


def choose(seen: Sequence[Seen], problem: Problem, wants: Wants, table: Table, *,
           ceilings: Mapping[str, Any], left_out: Sequence[Excluded] = (),
           source: str = "") -> Choice:  # fmt: skip
    """From the records of one run, of problems of the same phase, dtype and kind of mask.

    ``left_out``: whom the run left out with a reason.
    """
    alike = [s for s in _of_one_kind(seen) if _tells_of(s, problem)]
    by_variant: dict[str, list[Seen]] = {}
    for each in alike:
        by_variant.setdefault(each.variant, []).append(each)
    found: list[Candidate | Excluded] = []
    for label, some in by_variant.items():
        row = row_of(table, label)
        found.append(judged(label, row, Known(row, some, ceilings), problem, wants))
    found += [each for each in left_out if each.variant not in by_variant]
    found += _absent(table, {e.variant for e in found}, problem, wants)
    return ranked(problem, wants, found, margin=margin_of(alike), source=source)


def _tells_of(seen: Seen, problem: Problem) -> bool:
    """Whether the masks are of one kind; a time, also where both hide nothing."""
    if seen.problem.mask.kinds == problem.mask.kinds:
        return True
    return seen.time is not None and features.kinds(seen.problem) == features.kinds(problem)


def _of_one_kind(seen: Sequence[Seen]) -> list[Seen]:
    """Of one kind of machine, the one that measured most, and of each cell the last record."""
    nodes = Counter(s.node for s in seen if s.time is not None)
    (node, _), *_ = nodes.most_common(1) or [("", 0)]
    latest: dict[tuple[str, Problem], Seen] = {}
    for each in seen:
        if each.ranks is None and each.node in (node, ""):
            latest[each.variant, each.problem] = each
    return list(latest.values())


def _absent(table: Table, there: set[str], problem: Problem, wants: Wants) -> list[Excluded]:
    """Who would do, and was not measured at all."""
    return [
        Excluded(name, Why.ABSENT, "the run has nothing of it")
        for name, row in table.rows.items()
        if name not in there and row.computes in wants.computes and not row.ranks
        and row.supports(problem) is None
    ]  # fmt: skip


def ranked(problem: Problem, wants: Wants, found: Sequence[Candidate | Excluded], *,
           margin: float, source: str = "") -> Choice:  # fmt: skip
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
        start, winner=winner, equal=equal, next=after,
        lead=lead_over(winner, after) if after else None, slower=tuple(rest[tied + 1 :]),
    )  # fmt: skip


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
