"""What is faster than the fastest exact variant by being no exact one: what it keeps, and loses."""

from __future__ import annotations

from dataclasses import dataclass

from attnbench.answer.standing import Faster, Standing
from attnbench.report import numbers

LEAST = 0.05
"""What keeps less than this keeps nothing worth its name here."""


@dataclass(frozen=True)
class Beside:
    """A sentence around a name."""

    before: str
    found: Faster | None = None
    after: str = ""
    short: str = ""
    """What may stand for ``before`` where that has been said already."""

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.before}."
        return f"{self.before} {self.found.variant}, {self.after}."


def beside(standing: Standing) -> Beside | None:
    """What is to be said beside an answer; None where there is no answer."""
    if standing.answer is None:
        return None
    if (found := standing.substitute) is not None:
        told = f"{_kept(found)} ({found.computes})"
        return Beside("Faster, but not exact:", found, told, "Faster, not exact:")
    if (found := standing.nearest) is not None:
        if (found.skill or 0.0) >= LEAST:
            before = "Nothing faster keeps half of what softmax does. Nearest:"
            return Beside(before, found, _kept(found), "Not exact:")
        return Beside(f"Nothing faster keeps even {numbers.share(LEAST)} of what softmax does")
    if standing.faster:
        found = standing.faster[0]
        told = f"{numbers.ratio(found.speedup)} as fast ({found.computes})"
        before = "Faster, and how far from softmax was not measured:"
        return Beside(before, found, told, "Of unknown distance:")
    return Beside("Nothing else that was measured is faster for sure, exact or not")


def _kept(found: Faster) -> str:
    kept = max(0.0, found.skill or 0.0)
    return f"{numbers.ratio(found.speedup)} as fast, keeps {numbers.share(kept)}"
