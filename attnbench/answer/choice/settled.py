"""A choice settled in pairs: what medians can't tell, calls side by side may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.answer.choice.choice import Choice, Lead
from attnbench.answer.choice.chosen import lead_over
from attnbench.comparison import Verdict

if TYPE_CHECKING:
    from attnbench.answer.choice.candidates import Candidate
    from attnbench.comparison import Comparison
    from attnbench.sweep.contest import Paired


def settled(choice: Choice, taken: Sequence[Paired]) -> Choice:
    """The choice again, where those that were near each other have been held side by side.

    Each was held against the same one. Who is faster than that one is the winner, the fastest of
    them if they are several; who is neither slower nor faster can't be told from it.
    """
    if choice.winner is None or not taken:
        return choice
    ordered = choice.ranked
    by_name = {c.variant: c for c in ordered}
    base, over = taken[0].against, {p.judged: p.pairs.comparison for p in taken}
    faster = [n for n, c in over.items() if c.verdict is Verdict.FASTER]
    first = min(faster, key=lambda n: over[n].ratio) if faster else base
    shares = {base: 1.0, **{name: c.ratio for name, c in over.items()}}
    held = sorted((n for n in shares if n != first), key=shares.__getitem__)
    equal = [by_name[n] for n in held if not _slower(n, first, base, over)]
    behind = [by_name[n] for n in held if _slower(n, first, base, over)]
    rest = [*behind, *(c for c in ordered if c.variant not in shares)]
    after = rest[0] if rest else None
    said = [{"judged": p.judged, "against": p.against, **over[p.judged].to_dict()} for p in taken]
    return replace(
        choice, winner=by_name[first], equal=tuple(equal), next=after, slower=tuple(rest[1:]),
        lead=_lead(by_name[first], after, base, over), pairs=tuple(said),
    )  # fmt: skip


def _slower(name: str, first: str, base: str, over: dict[str, Comparison]) -> bool:
    """Whether pairs say that one is slower than the winner."""
    if first == base:
        return over[name].verdict is Verdict.SLOWER
    if name == base:
        return True  # the winner is faster than it
    return over[name].low > over[first].high * (1 + over[first].margin)


def _lead(first: Candidate, after: Candidate | None, base: str,
          over: dict[str, Comparison]) -> Lead | None:  # fmt: skip
    """Over the next: by pairs where these two were held side by side."""
    if after is None:
        return None
    if first.variant == base and after.variant in over:
        c = over[after.variant]
        return Lead(c.ratio, c.low, c.high)
    if after.variant == base and first.variant in over:
        c = over[first.variant]
        return Lead(1 / c.ratio, 1 / c.high, 1 / c.low)
    return lead_over(first, after)
