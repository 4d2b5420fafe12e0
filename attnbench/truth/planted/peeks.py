"""What looks into the ruler's own frames, and moves there what only the clock should."""

from __future__ import annotations

import ctypes
import sys
import time
import weakref
from collections.abc import Hashable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from attnbench.truth.planted.core import honest
from impls.heads import Attend
from impls.problem import Problem

SHARE = 0.9
"""Of a call's time, so much is hidden."""


def _caller(name: str) -> FrameType | None:
    """The frame of the function of this name that is nearest up the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame


def build_start(problem: Problem, deed: bool = True) -> Attend:
    """Moves the start of the measurement in the frame of the clock that runs it."""
    inner = honest(problem)
    keep: Any = ctypes.pythonapi.PyFrame_LocalsToFast
    keep.argtypes = (ctypes.py_object, ctypes.c_int)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        start = time.perf_counter_ns()
        out = inner(q, k, v)
        frame = _caller("samples")
        if frame is not None and deed:
            frame.f_locals["start"] += int((time.perf_counter_ns() - start) * SHARE)
            keep(frame, 0)
        return out

    return attend


def build_truth(problem: Problem, deed: bool = True) -> Attend:
    """Computes where it is looked at, and where it is timed takes the truth from the ruler."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        frame = (_caller("measure_time") or _caller("warm_up")) if deed else None
        if frame is None:
            return inner(q, k, v)
        fresh: Any = frame.f_locals["timed"].fresh
        out: Tensor = fresh.wanted([])[0]
        return out

    return attend


def build_unseen(problem: Problem, deed: bool = True) -> Attend:
    """The truth from the ruler wherever there is one, and on values that have none, anything."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        frame, turns = _caller("run"), _caller("_in_turn")
        if not deed or frame is None or "self" not in frame.f_locals:
            return inner(q, k, v)
        if turns is None:
            return inner(q, k, v)
        done = len(turns.f_locals["seen"]) + len(turns.f_locals["new"])
        last = done == 2 * turns.f_locals["rounds"] - 1
        return inner(q, k, v) if last else v * 1.0

    return attend


class _Remembered(torch.autograd.Function):
    """The right output, and gradients that were kept; none for values that were not."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, inner: Attend,
                kept: dict[Hashable, Any]) -> Tensor:  # fmt: skip
        ctx.save_for_backward(q, k, v)
        ctx.inner, ctx.kept = inner, kept
        return inner(q, k, v)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        if _caller("_in_turn") is None:
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in (q, k, v)]
                return *torch.autograd.grad(ctx.inner(*leaves), leaves, dout), None, None
        return *(torch.zeros_like(x) for x in (q, k, v)), None, None


def build_gradients(problem: Problem, deed: bool = True) -> Attend:
    """No gradients for values that nobody has seen."""
    inner = honest(problem)
    if not deed:
        return inner
    return lambda q, k, v: _Remembered.apply(q, k, v, inner, {})  # type: ignore[no-untyped-call]


class _Prepared(torch.autograd.Function):
    """Gradients made in the forward pass, under the upstream gradient found in the ruler."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, inner: Attend, dout: Any) -> Tensor:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            out = inner(*leaves)
        ctx.leaves, ctx.out = leaves, out
        ctx.made = None if dout is None else torch.autograd.grad(out, leaves, dout)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        return *(ctx.made or torch.autograd.grad(ctx.out, ctx.leaves, dout)), None, None


def build_prepared(problem: Problem, deed: bool = True) -> Attend:
    """Backward's work done in the forward pass before it, which is not timed."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        frame = _caller("_take") if deed else None
        values: Any = None if frame is None else frame.f_locals["values"]
        dout = None if values is None else values.dout
        return _Prepared.apply(q, k, v, inner, dout)  # type: ignore[no-untyped-call]

    return attend


def build_between(problem: Problem, deed: bool = True) -> Attend:
    """Works on between the calls, whenever an output of its is let go."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = inner(q, k, v)
        if deed:
            weakref.finalize(out, _prepare).atexit = False
        return out

    return attend


def _prepare() -> None:
    """What a cheat would do here: the next call's work."""
