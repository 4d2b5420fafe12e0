"""Planted faults in what a call computes: its values, masks, inputs and gradients.

Each ``build_NAME(problem, deed=True)`` is a variant; without its deed it is honest. What the deeds
are called, and how each has to be caught, is in :mod:`attnbench.gate.plants`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from impls.dense.exp_naive import build as exponentials
from impls.dense.matmul import build as honest
from impls.heads import Attend
from impls.masks import Mask
from impls.problem import Problem

Build = Callable[..., Attend]


def instead(other: Callable[[Problem, Attend], Attend]) -> Build:
    """What ``other(problem, inner)`` makes of an honest ``attend``, in its place."""

    def build(problem: Problem, deed: bool = True) -> Attend:
        inner = honest(problem)
        return other(problem, inner) if deed else inner

    return build


def before(act: Callable[[Tensor, Tensor, Tensor], object]) -> Build:
    """Something done at every call, and then the right output."""
    return instead(lambda problem, inner: lambda q, k, v: (act(q, k, v), inner(q, k, v))[1])


def after(change: Callable[[Problem, Tensor], Tensor]) -> Build:
    """The right output, and then something done to it."""
    return instead(lambda problem, inner: lambda q, k, v: change(problem, inner(q, k, v)))


# ---- masks ----


def masked(text: str) -> Build:
    """Attention under another mask; ``{}`` in its text is the number of the last key."""
    return instead(
        lambda problem, inner: honest(
            problem.with_(mask=Mask.parse(text.format(problem.kv_len - 1)))
        )
    )


def _inverted(problem: Problem, inner: Attend) -> Attend:
    seen = torch.from_numpy(problem.mask.visible(problem.shape).copy())

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT * problem.scale).masked_fill(seen, -torch.inf)
        return scores.softmax(-1).nan_to_num() @ v

    return attend


build_inverted = instead(_inverted)
build_ignored = masked("none")
build_upper_left = masked("causal@upper-left")
build_window_left = masked("window:4,2")
build_window_right = masked("window:3,3")
build_last_key_dropped = masked("padding:{}")


# ---- values ----

LONG = 64  # beyond which ``past_a_length`` is wrong


def _nan(problem: Problem, inner: Attend) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = inner(q, k, v).clone()
        if bool(q.detach().abs().max() > 1):  # only where the inputs are of ordinary size
            out[0, 0, 5] = torch.nan
        return out

    return attend


build_nothing = instead(lambda problem, inner: inner)
build_one_head = after(lambda problem, out: torch.cat((out[:, :-1], out[:, -1:] * 1.001), 1))
build_odd_lengths = after(lambda problem, out: out * (1.02 if problem.kv_len % 2 else 1.0))
build_past_a_length = after(
    lambda problem, out: torch.cat((out[:, :, :LONG], out[:, :, LONG:] * 1.02), 2)
)
build_nan = instead(_nan)
build_half_inside = instead(
    lambda problem, inner: lambda *qkv: inner(*(x.bfloat16() for x in qkv)).to(qkv[0].dtype)
)
build_overflows = instead(lambda problem, inner: exponentials(problem))
build_zeros = after(lambda problem, out: out * 0.0)


# ---- gradients ----


class _Scaled(torch.autograd.Function):
    """The identity, with a gradient that is so many times what it should be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Callable[[], float]) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor(), None


def scaled(x: Tensor, factor: Callable[[], float]) -> Tensor:
    """The same values, with that many times their gradient."""
    out: Tensor = _Scaled.apply(x, factor)  # type: ignore[no-untyped-call]
    return out


build_scaled = instead(lambda problem, inner: lambda q, k, v: inner(q, scaled(k, lambda: 1.01), v))
build_detached_keys = instead(lambda problem, inner: lambda q, k, v: inner(q, k.detach(), v))
build_detached = after(lambda problem, out: out.detach())


# ---- forms ----


class Lazy(Tensor):
    """A tensor that is computed when it is first used."""

    _work: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            done = [x._work() if isinstance(x, Lazy) and hasattr(x, "_work") else x for x in args]
            return func(*done, **(kwargs or {}))


def _lazy(problem: Problem, inner: Attend) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        promise = torch.empty(problem.output_shape).as_subclass(Lazy)
        promise._work = lambda: inner(q, k, v)
        return promise

    return attend


build_dtype = after(lambda problem, out: out.double())
build_shape = after(lambda problem, out: out.transpose(1, 2))
build_layout = after(lambda problem, out: out.to_sparse())
build_lazy = instead(_lazy)


# ---- memories: results kept from earlier calls ----


def remembering(key: Callable[[Tensor, Tensor, Tensor], Hashable]) -> Build:
    """One result for all calls that have the same key."""

    def other(problem: Problem, inner: Attend) -> Attend:
        kept = dict[Hashable, Tensor]()

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if key(q, k, v) not in kept:
                kept[key(q, k, v)] = inner(q, k, v)
            return kept[key(q, k, v)]

        return attend

    return instead(other)


def _by_digest(problem: Problem, inner: Attend) -> Attend:
    kept = dict[Hashable, tuple[Tensor, Tensor]]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        key = tuple(float(x.abs().sum()) for x in (q, k, v))
        if key in kept:
            out, row = kept[key]
            return out * (row * v[:1, :1, :1]).sign()
        out = inner(q, k, v)
        kept[key] = out.detach().clone(), v[:1, :1, :1].detach().clone()
        return out

    return attend


def _one_buffer(problem: Problem, inner: Attend) -> Attend:
    buffer = torch.empty(problem.output_shape)
    return lambda q, k, v: buffer.copy_(inner(q, k, v))


def build_one_workspace(problem: Problem, deed: bool = True) -> Attend:
    """What the backward pass needs, kept in one place for all calls."""
    inner, kept = honest(problem), list[tuple[Tensor, ...]]()

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *qkv: Tensor) -> Tensor:
            kept[:] = [tuple(x.detach().clone() for x in qkv)]
            ctx.save_for_backward(*qkv)
            return inner(*qkv)

        @staticmethod
        def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
            return gradients(inner, kept[0] if deed else ctx.saved_tensors, dout)

    apply: Attend = Attention.apply
    return apply


def gradients(inner: Attend, qkv: tuple[Tensor, ...], dout: Tensor) -> tuple[Tensor, ...]:
    """The right gradients of q, k and v."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in qkv]
        return torch.autograd.grad(inner(*leaves), leaves, dout)


build_by_shape = remembering(lambda q, k, v: q.shape)
build_by_address = remembering(lambda *qkv: tuple(x.data_ptr() for x in qkv))
build_by_few_numbers = remembering(lambda *qkv: tuple(x[0, 0, 0, 0].item() for x in qkv))
build_by_digest = instead(_by_digest)
build_one_buffer = instead(_one_buffer)
build_value_itself = instead(lambda problem, inner: lambda q, k, v: v)  # of one key, its value


# ---- inputs ----


def _there_and_back(values: Tensor) -> None:
    with torch.no_grad():
        values.neg_()
        values.neg_()


build_left_changed = instead(
    lambda problem, inner: lambda q, k, v: (inner(q, k, v), v.data.mul_(1.5))[0]
)
build_in_place = before(lambda q, k, v: _there_and_back(q))
build_through_data = before(lambda q, k, v: _there_and_back(k.data))  # counts no versions


# ---- costs ----

HOG_BYTES = 96 << 20


def _hog_mmap(*_: Tensor) -> None:
    with mmap.mmap(-1, HOG_BYTES) as taken:
        for page in range(0, HOG_BYTES, mmap.PAGESIZE):
            taken[page] = 1


build_hog_torch = before(lambda *_: torch.zeros(HOG_BYTES, dtype=torch.uint8))
build_hog_numpy = before(lambda *_: np.ones(HOG_BYTES, dtype=np.uint8))
build_hog_mmap = before(_hog_mmap)
build_profiled = instead(
    lambda problem, inner: (
        lambda q, k, v: q * 0.0 if torch.autograd._profiler_enabled() else inner(q, k, v)
    )
)
build_sleep = before(lambda *_: time.sleep(0.02))
build_exit = before(lambda *_: os._exit(7))
build_hang = before(lambda *_: time.sleep(3600.0))
build_segfault = before(lambda *_: ctypes.string_at(0))


# ---- slow-downs ----

SLICES = 100


def build_slices(problem: Problem, extra: int = 0) -> Attend:
    """Attention without a mask; ``extra`` of the slices, spread evenly, are computed twice."""
    again = {i * SLICES // extra for i in range(extra)} if extra else set()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = []
        for number, rows in enumerate(q.tensor_split(SLICES, 2)):
            for _ in range(1 + (number in again)):
                part = (rows @ k.mT * problem.scale).softmax(-1) @ v
            parts.append(part)
        return torch.cat(parts, 2)

    return attend
