"""Cost of attention that several processes share: the same work, on more devices.

The work and the bytes are of the whole problem, however it is shared out; what a rank needs
above its share has no formula here.
"""

from __future__ import annotations

from impls.cost import Cost, softmax
from impls.problem import Problem


def ring(problem: Problem, world: int, block: int) -> Cost:
    """Softmax attention: the ring computes nothing twice that the plain form computes once."""
    return softmax(problem)


def ulysses(problem: Problem, world: int) -> Cost:
    """Softmax attention, some heads on each rank."""
    return softmax(problem)
