"""The code of planted faults in what a problem sets, in second outputs, and in recurrences.

As in :mod:`attnbench.gate.plant_code`, each ``build_NAME(problem)`` is a variant; those of
recurrences get the options of ``gla``, whose definition they are held to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.gate.plant_code import Build, instead, scaled
from impls.dense.matmul import build as honest
from impls.heads import Attend, to_query_heads
from impls.linear.gla import build as gla
from impls.masks import Mask
from impls.problem import Problem

# ---- what a problem sets ----


def _sink_ignored(problem: Problem, inner: Attend) -> Attend:
    without = honest(problem.with_(sinks=None))
    return lambda q, k, v, sinks: without(q, k, v)


def _cap_after_mask(problem: Problem, inner: Attend) -> Attend:
    """Hidden keys have a score of minus the cap, and are seen."""
    hidden = ~torch.from_numpy(problem.mask.visible(problem.shape).copy())
    cap = problem.softcap or 1.0

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (to_query_heads(x, problem) for x in (k, v))
        scores = (q @ k.mT * problem.scale).masked_fill(hidden, -torch.inf)
        return (cap * (scores / cap).tanh()).softmax(-1) @ v

    return attend


build_everything_set = instead(lambda problem, inner: inner)
build_sink_ignored = instead(_sink_ignored)
build_cap_after_mask = instead(_cap_after_mask)
build_values_detached = instead(lambda problem, inner: lambda q, k, v: inner(q, k, v.detach()))


# ---- second outputs ----


def with_lse(change: Callable[[Tensor], Tensor]) -> Build:
    """The right output, and something done to the log-sum-exp."""

    def other(problem: Problem, inner: Any) -> Any:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            out, lse = inner(q, k, v)
            return out, change(lse)

        return attend

    return instead(other)


def with_lse_of(**changes: Any) -> Build:
    """The right output, and the log-sum-exp of another problem."""

    def other(problem: Problem, inner: Any) -> Any:
        another: Any = honest(problem.with_(**changes))
        return lambda q, k, v: (inner(q, k, v)[0], another(q, k, v)[1])

    return instead(other)


build_base_two = with_lse(lambda lse: lse / math.log(2))
build_no_gradient = with_lse(lambda lse: scaled(lse, lambda: 0.0))
build_no_scale = with_lse_of(scale=1.0)
build_no_mask = with_lse_of(mask=Mask())


# ---- recurrences ----


def recurrent(other: Callable[[Problem, Attend], Attend]) -> Build:
    """What ``other(problem, inner)`` makes of an honest ``gla``, in its place."""
    return lambda problem, **options: other(problem, gla(problem, **options))


def build_last_state_dropped(problem: Problem, **options: Any) -> Attend:
    """The last chunk begins with no state."""
    last = options["chunk"]
    before, after = (
        gla(problem.with_(q_len=n, kv_len=n), **options) for n in (problem.kv_len - last, last)
    )

    def attend(*qkv: Tensor, g: Tensor) -> Tensor:
        early = before(*(x[:, :, :-last] for x in qkv), g=g[:, :, :-last])
        late = after(*(x[:, :, -last:] for x in qkv), g=g[:, :, -last:])
        return torch.cat([early, late], 2)

    return attend


build_recurrence = recurrent(lambda problem, inner: inner)
build_base_two_decay = recurrent(
    lambda problem, inner: lambda *qkv, g: inner(*qkv, g=g * math.log(2))
)
build_gate_detached = recurrent(lambda problem, inner: lambda *qkv, g: inner(*qkv, g=g.detach()))
build_first_state_ignored = recurrent(
    lambda problem, inner: lambda *qkv, g, state: inner(*qkv, g=g, state=state * 0.0)
)
