"""What a worker is asked to measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from impls.problem import Problem
from impls.spec import Variant


@dataclass(frozen=True)
class Job:
    """A variant on a problem, and how long to measure what of it."""

    variant: Variant
    problem: Problem
    seed: int = 0
    budget_s: float = 0.3
    timed: bool = True
    """False: only the gate, and a record without a time."""
    bits_s: float = 0.0
    """Try whether the same values give the same bits; across batches, for which a variant is built
    again, only where that takes no more seconds than these."""
    energy: bool = False
    ceilings: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The job as JSON."""
        parts = {"variant": self.variant.to_dict(), "problem": self.problem.to_dict()}
        return {**vars(self), **parts, "ceilings": dict(self.ceilings)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """The job back from :meth:`to_dict`."""
        variant = Variant.from_dict(values["variant"])
        problem = Problem.from_dict(values["problem"])
        return cls(**{**values, "variant": variant, "problem": problem})
