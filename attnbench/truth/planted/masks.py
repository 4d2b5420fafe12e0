"""Masks that are not what the problem says."""

from __future__ import annotations

from attnbench.truth.planted.core import masked, visible
from impls.heads import Attend
from impls.problem import Problem


def build_inverted(problem: Problem, deed: bool = True) -> Attend:
    """Sees what it may not, and nothing else."""
    seen = visible(problem)
    return masked(problem, ~seen if deed else seen)


def build_ignored(problem: Problem, deed: bool = True) -> Attend:
    """Every query sees every key."""
    return masked(problem, visible(problem, "none" if deed else None))


def build_upper_left(problem: Problem, deed: bool = True) -> Attend:
    """The first query at the first key, where the last should be at the last."""
    return masked(problem, visible(problem, "causal@upper-left" if deed else None))


def build_window_left(problem: Problem, deed: bool = True) -> Attend:
    """A window of 3,2 that is 4,2."""
    return masked(problem, visible(problem, "window:4,2" if deed else None))


def build_window_right(problem: Problem, deed: bool = True) -> Attend:
    """A window of 3,2 that is 3,3."""
    return masked(problem, visible(problem, "window:3,3" if deed else None))


def build_last_key_dropped(problem: Problem, deed: bool = True) -> Attend:
    """Nobody sees the last key."""
    return masked(problem, visible(problem, f"padding:{problem.kv_len - 1}" if deed else None))
