"""Searches over sizes, looked at in turn within a wall clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Literal, Protocol, TypeVar

from attnbench.sweep.presets import Preset
from impls.problem import InvalidProblem, Problem

By = Literal["seq", "batch"]
GRACE_S = 5.0
"""By how much the last look may be late."""


class Search(Protocol):
    """What is known of one variant, or of a pair, by size."""

    @property
    def turn(self) -> int:
        """The fewer looks, the earlier it is its turn."""

    def next(self, left_s: float) -> int | None:
        """The size to look at; None where the search is over."""

    def expect_s(self, size: int) -> float:
        """Seconds that a look is expected to take."""


S = TypeVar("S", bound=Search)


def in_turn(
    searches: Sequence[S],
    seconds: float,
    *,
    late_s: float = 0.0,
    now: Callable[[], float] = monotonic,
) -> Iterator[tuple[S, int, float]]:
    """The search to look at and the size, with the seconds left, until all are over or the time is
    spent. Of searches whose turn it is, the cheapest comes first.

    No look is begun that is expected to end more than ``late_s`` too late.
    """
    until = now() + seconds
    while (left := until - now()) > 0:
        ready = []
        for number, search in enumerate(searches):
            if (size := search.next(left)) is not None:
                expected = search.expect_s(size)
                if expected <= left + late_s:
                    ready.append((search.turn, expected, number, size))
        if not ready:
            return
        *_, number, size = min(ready)
        yield searches[number], size, left


def sized(problem: Problem, by: By, size: int) -> Problem:
    """The same problem with another length, or another batch."""
    if by == "batch":
        return problem.with_(batch=size)
    if problem.phase == "decode":
        return problem.with_(kv_len=size)
    return problem.with_(q_len=size, kv_len=size)


def refuse_several(grid: Preset, verb: str, axes: Sequence[str], searched: str) -> None:
    """Raise :class:`InvalidProblem` where a grid has several values of one of these axes, or
    captured inputs, which have one size.
    """
    if wide := [name for name in axes if len(getattr(grid, name)) > 1]:
        options = ", ".join("--" + name.replace("_", "-") for name in wide)
        raise InvalidProblem(f"{verb} takes one value of {options}: what is searched is {searched}")
    if any(inputs.startswith("captured:") for inputs in grid.inputs):
        raise InvalidProblem(f"captured inputs have one size; {verb} needs many: leave them out")
