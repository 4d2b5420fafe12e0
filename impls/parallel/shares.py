"""Which tokens each process holds of a sequence that several share. Without torch.

``shares(problem, world)`` gives the places of each rank's tokens, in the order in which it holds
them; together they are every place once. What can't be split raises
:class:`impls.spec.Unsupported`, with a sentence.
"""

from __future__ import annotations

from impls.problem import Problem
from impls.spec import Unsupported


def ring(problem: Problem, world: int) -> list[list[int]]:
    """The sequence in 2 W pieces: rank r has pieces r and 2 W - 1 - r, in this order.

    Under a causal mask a late piece sees more keys than an early one; a piece from either end gives
    every rank as many pairs as the next. Raises Unsupported where it can't be split so.
    """
    n, pieces = problem.q_len, 2 * world
    if n % pieces:
        raise Unsupported(
            f"the ring of {world} processes takes lengths that {pieces} divides (a piece from "
            f"either end for each of them), not {n}"
        )
    size = n // pieces

    def piece(number: int) -> list[int]:
        return list(range(number * size, (number + 1) * size))

    return [piece(rank) + piece(pieces - 1 - rank) for rank in range(world)]


def ulysses(problem: Problem, world: int) -> list[list[int]]:
    """One piece of the sequence after the other; and each rank will have some whole heads. Raises
    Unsupported where they can't be split so.
    """
    for what in ("q_len", "heads", "kv_heads"):
        number = getattr(problem, what)
        if number % world:
            raise Unsupported(
                f"ulysses over {world} processes needs {what} that {world} divides, not {number}"
            )
    size = problem.q_len // world
    return [list(range(rank * size, (rank + 1) * size)) for rank in range(world)]
