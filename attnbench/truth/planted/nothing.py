"""No fault at all: what the ruler must let pass."""

from __future__ import annotations

from attnbench.truth.planted.core import honest
from impls.heads import Attend
from impls.problem import Problem


def build_nothing(problem: Problem, deed: bool = True) -> Attend:
    """Honest in every way."""
    return honest(problem)
