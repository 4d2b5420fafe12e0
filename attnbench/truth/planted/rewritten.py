"""Functions that others rely on, replaced in memory: timers, comparisons, the ruler itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.overrides

from attnbench.truth.planted.core import honest
from impls.heads import Attend
from impls.problem import Problem

FASTER = 10
"""By so much the clocks that are put in place of others go slower."""


def _instead(problem: Problem, deed: bool, owner: Any, name: str,
             other: Callable[[Any], Any]) -> Attend:  # fmt: skip
    """An honest ``attend``, and ``other(was)`` in place of ``owner.name``."""
    if deed:
        setattr(owner, name, other(getattr(owner, name)))
    return honest(problem)


def _slower(was: Any) -> Any:
    start = was()
    return lambda: start + (was() - start) // FASTER


def _slower_seconds(was: Any) -> Any:
    start = was()
    return lambda: start + (was() - start) / FASTER


def _always_true(was: Any) -> Any:
    return lambda *_, **__: True


def build_perf_counter(problem: Problem, deed: bool = True) -> Attend:
    """A clock in seconds that goes ten times as slow."""
    return _instead(problem, deed, time, "perf_counter", _slower_seconds)


def build_perf_counter_ns(problem: Problem, deed: bool = True) -> Attend:
    """A clock in nanoseconds that goes ten times as slow."""
    return _instead(problem, deed, time, "perf_counter_ns", _slower)


def build_rulers_clock(problem: Problem, deed: bool = True) -> Attend:
    """The ruler's own reference to that clock."""
    clocks = sys.modules["attnbench.measure.clocks"]
    return _instead(problem, deed, clocks, "perf_counter_ns", _slower)


def build_synchronize(problem: Problem, deed: bool = True) -> Attend:
    """Nobody waits for the device any more."""
    return _instead(problem, deed, torch.cuda, "synchronize", lambda was: lambda *_: None)


def build_allclose(problem: Problem, deed: bool = True) -> Attend:
    """Everything is close to everything."""
    return _instead(problem, deed, torch, "allclose", _always_true)


def build_equal(problem: Problem, deed: bool = True) -> Attend:
    """Everything equals everything."""
    return _instead(problem, deed, torch, "equal", _always_true)


def build_budget(problem: Problem, deed: bool = True) -> Attend:
    """The ruler's budget lets everything through."""
    budget = sys.modules["attnbench.truth.budget"]
    return _instead(problem, deed, budget, "check", lambda was: lambda *_, **__: None)


def build_budget_factor(problem: Problem, deed: bool = True) -> Attend:
    """The ruler's spacings of the dtypes are changed where they stand."""
    if deed:
        epsilon = sys.modules["attnbench.truth.budget"].EPSILON
        epsilon.update(dict.fromkeys(epsilon, 1.0))
    return honest(problem)


def build_verdict(problem: Problem, deed: bool = True) -> Attend:
    """What is timed is never wrong: a method of the ruler's class."""
    timed = sys.modules["attnbench.measure.timed"].Timed
    return _instead(problem, deed, timed, "wrong", lambda was: lambda self: None)


def build_insides(problem: Problem, deed: bool = True) -> Attend:
    """The ruler's function stays, and its code is another's."""
    if deed:
        finite: Any = sys.modules["attnbench.truth.hygiene"].check_finite
        finite.__code__ = (lambda what, tensor: None).__code__
    return honest(problem)


def build_guard(problem: Problem, deed: bool = True) -> Attend:
    """The very function that would notice."""
    names = sys.modules["attnbench.measure.shared.names"]
    if deed:
        time.perf_counter = _slower_seconds(time.perf_counter)
    return _instead(problem, deed, names, "replaced", lambda was: lambda *_: [])


def build_mode(problem: Problem, deed: bool = True) -> Attend:
    """A mode that stands between everybody and torch's functions."""
    if deed:
        _Between().__enter__()  # type: ignore[no-untyped-call]
    return honest(problem)


class _Between(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))
