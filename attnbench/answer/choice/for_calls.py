"""Answers for a whole program: for each place that calls attention, what it would gain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnbench.answer.model_gain import SiteTimes, Span

if TYPE_CHECKING:
    from attnbench.answer.choice.candidates import Candidate
    from attnbench.answer.choice.choice import Choice

USES = {"eager": "matmul", "flex": "flex", "sdpa": "sdpa", "mha": "sdpa"}
"""By a word of how a call was captured, the variant that does what it does now."""


def site_times(site: str, share: float | None, via: str, choice: Choice | None, *,
               off: tuple[float, float] = (1.0, 1.0), inside_s: float | None = None,
               why: str = "") -> SiteTimes:  # fmt: skip
    """A place with what it uses now and what it would take.

    ``off``: by what factors its share may be smaller and larger; ``inside_s``: what a call of it
    took in the program.
    """
    uses = uses_of(via)
    part = None if share is None else Span(share, share * off[0], min(1.0, share * off[1]))
    if choice is None or choice.winner is None:
        return SiteTimes(site, part, uses or via, None, why=why or _why(choice))
    by_name: Mapping[str, Candidate] = {c.variant: c for c in choice.ranked}
    now = by_name.get(uses)
    if now is None:
        why_not = {e.variant: e.said for e in choice.excluded}.get(uses, "it was not measured")
        said = f"how long what it takes now ({uses or via}) would take is not known: {why_not}"
        then = _span(choice.winner, choice.margin)
        return SiteTimes(site, part, uses or via, None, choice.winner.variant, then, said)
    takes = now if now in choice.equal else choice.winner  # a change that gains nothing is none
    return SiteTimes(site, part, uses, _span(now, choice.margin), takes.variant,
                     _span(takes, choice.margin), inside_s=inside_s)  # fmt: skip


def uses_of(via: str) -> str:
    """The variant that does what a call captured that way does; empty where none is known to."""
    return next((name for word, name in USES.items() if word in via), "")


def _why(choice: Choice | None) -> str:
    return choice.why_not if choice else "nothing was asked of it"


def _span(c: Candidate, margin: float) -> Span:
    """Its time, and half of what may lie between two that were timed one after the other."""
    each = math.sqrt(1 + margin)
    return Span(c.median_s, c.low_s / each, c.high_s * each)
