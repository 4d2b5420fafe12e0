"""What whoever asks will have: how exact, in how much memory, with how large an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.answer.said import size
from impls.asked import CantBeDone

KINDS = {
    "pattern": "softmax on its own pattern",
    "approximate": "approximates softmax",
    "other": "its own operator",
}
"""What may be allowed besides exact softmax, in a word."""
EXACT = "softmax"


class Contradiction(CantBeDone):
    """Limits that nothing can meet together; a sentence."""


@dataclass(frozen=True)
class Wants:
    """Limits, and what else than exact softmax will do."""

    max_memory: int | None = None
    """Bytes above the inputs, at the worst instant."""
    max_error: float | None = None
    """Relative to exact softmax: of an exact variant its rounding, of another its distance."""
    allowed: tuple[str, ...] = ()
    """Words of :data:`KINDS`."""

    @classmethod
    def of(cls, *, exact: bool, allow: Sequence[str], max_memory: int | None,
           max_error: float | None) -> Wants:  # fmt: skip
        """What was asked for; raises a sentence where it contradicts itself."""
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
        """As they are said: ``exact``, ``in 8 GiB``, ``error at most 0.01``."""
        found = [f"exact or {' or '.join(self.allowed)}" if self.allowed else "exact"]
        found += [f"in {size(self.max_memory)}"] if self.max_memory else []
        found += [f"error at most {self.max_error:g}"] if self.max_error else []
        return found
