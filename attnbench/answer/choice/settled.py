"""A choice settled in pairs: what medians can't tell, calls side by side may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.answer.choice.choice import Choice, Lead
from attnbench.answer.choice.chosen import lead_over, preferred, told_apart
from attnbench.comparison import Verdict

if TYPE_CHECKING:
    from attnbench.answer.choice.candidates import Candidate
    from attnbench.comparison import Comparison
    from attnbench.sweep.contest import Held


def settled(choice: Choice, taken: Sequence[Held]) -> Choice:
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
    still = [c for c in unheld if c in choice.equal
             and not told_apart(by_name[first], c, choice.margin)]  # fmt: skip
    equal = [by_name[n] for n in others if not _slower(n, first, base, over)]
    rest = [by_name[n] for n in others if _slower(n, first, base, over)]
    rest += [c for c in unheld if c not in still]
    after = rest[0] if rest else None
    winner, tied = preferred([by_name[first], *equal, *still], choice.margin)
    return replace(
        choice, winner=winner, equal=tied, next=after, slower=tuple(rest[1:]),
        lead=_lead(winner, after, base, over),
        pairs=tuple(held.to_dict() for held in taken),
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
