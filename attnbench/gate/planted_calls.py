"""Planted faults in what a call computes: its values, masks, inputs and gradients."""

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

from impls.dense.matmul import build as honest
from impls.heads import Attend, to_query_heads
from impls.masks import Mask
from impls.problem import Problem


def visible(problem: Problem, text: str | None = None) -> Tensor:
    """What the problem's mask, or another, lets be seen."""
    mask = problem.mask if text is None else Mask.parse(text)
    return torch.from_numpy(mask.visible(problem.shape).copy())


def masked(problem: Problem, seen: Tensor) -> Attend:
    """Softmax attention over the pairs that ``seen`` allows."""
    blind = ~seen.any(-1, keepdim=True)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = to_query_heads(k, problem), to_query_heads(v, problem)
        scores = (q @ k.mT * problem.scale).masked_fill(~(seen | blind), -torch.inf)
        return (scores.softmax(-1) @ v).masked_fill(blind, 0.0)

    return attend


def beforehand(problem: Problem, deed: Callable[[Tensor, Tensor, Tensor], object]) -> Attend:
    """Something done at every call, and then the right output."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        deed(q, k, v)
        return inner(q, k, v)

    return attend


def afterwards(problem: Problem, change: Callable[[Tensor], Tensor]) -> Attend:
    """The right output, and then something done to it."""
    inner = honest(problem)
    return lambda q, k, v: change(inner(q, k, v))


HOG_BYTES = 96 << 20
SLEEP_S = 0.02
STATUS = 7
FOREVER_S = 3600.0


def build_hog_torch(problem: Problem, deed: bool = True) -> Attend:
    """Takes memory by torch, and gives it back before it returns."""
    size = HOG_BYTES if deed else 1
    return beforehand(problem, lambda *_: torch.zeros(size, dtype=torch.uint8))


def build_hog_numpy(problem: Problem, deed: bool = True) -> Attend:
    """Takes memory by NumPy, and gives it back before it returns."""
    size = HOG_BYTES if deed else 1
    return beforehand(problem, lambda *_: np.ones(size, dtype=np.uint8))


def build_hog_mmap(problem: Problem, deed: bool = True) -> Attend:
    """Takes memory past both, and gives it back before it returns."""
    size = HOG_BYTES if deed else mmap.PAGESIZE

    def take(*_: Tensor) -> None:
        with mmap.mmap(-1, size) as taken:
            for page in range(0, size, mmap.PAGESIZE):
                taken[page] = 1

    return beforehand(problem, take)


def build_profiled(problem: Problem, deed: bool = True) -> Attend:
    """Does nothing while a profiler is on, so that no memory is seen."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if deed and torch.autograd._profiler_enabled():
            return q * 0.0
        return inner(q, k, v)

    return attend


def build_sleep(problem: Problem, deed: bool = True) -> Attend:
    """Sleeps before it computes."""
    return beforehand(problem, lambda *_: time.sleep(SLEEP_S * deed))


def build_exit(problem: Problem, deed: bool = True) -> Attend:
    """Ends the process."""

    def leave(*_: Tensor) -> None:
        if deed:
            os._exit(STATUS)

    return beforehand(problem, leave)


def build_hang(problem: Problem, deed: bool = True) -> Attend:
    """Never returns."""
    return beforehand(problem, lambda *_: time.sleep(FOREVER_S * deed))


def build_segfault(problem: Problem, deed: bool = True) -> Attend:
    """Reads where nothing is."""

    def read(*_: Tensor) -> None:
        if deed:
            ctypes.string_at(0)

    return beforehand(problem, read)


def build_dtype(problem: Problem, deed: bool = True) -> Attend:
    """Float64 where float32 was asked for."""
    return afterwards(problem, lambda out: out.double() if deed else out)


def build_shape(problem: Problem, deed: bool = True) -> Attend:
    """Heads and rows change places."""
    return afterwards(problem, lambda out: out.transpose(1, 2) if deed else out)


def build_layout(problem: Problem, deed: bool = True) -> Attend:
    """A sparse tensor."""
    return afterwards(problem, lambda out: out.to_sparse() if deed else out)


class Lazy(Tensor):
    """A tensor that is computed when somebody looks."""

    _work: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            done = [x._work() if isinstance(x, Lazy) and hasattr(x, "_work") else x for x in args]
            return func(*done, **(kwargs or {}))


def build_lazy(problem: Problem, deed: bool = True) -> Attend:
    """A promise in place of a tensor."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not deed:
            return inner(q, k, v)
        promise = torch.empty(problem.output_shape).as_subclass(Lazy)
        promise._work = lambda: inner(q, k, v)
        return promise

    return attend


class _Scaled(torch.autograd.Function):
    """The identity, with its gradient scaled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def build_scaled(problem: Problem, deed: bool = True) -> Attend:
    """The gradient of the keys is one per cent too large."""
    inner, factor = honest(problem), 1.01 if deed else 1.0
    return lambda q, k, v: inner(q, _Scaled.apply(k, factor), v)  # type: ignore[no-untyped-call]


def build_detached_keys(problem: Problem, deed: bool = True) -> Attend:
    """No gradient reaches the keys."""
    inner = honest(problem)
    return lambda q, k, v: inner(q, k.detach() if deed else k, v)


def build_detached(problem: Problem, deed: bool = True) -> Attend:
    """No gradient reaches anything."""
    return afterwards(problem, lambda out: out.detach() if deed else out)


def _there_and_back(values: Tensor) -> None:
    values.neg_()
    values.neg_()


def build_in_place(problem: Problem, deed: bool = True) -> Attend:
    """Turns the queries' signs round in place, and back."""

    def turn(q: Tensor, *_: Tensor) -> None:
        with torch.no_grad():
            _there_and_back(q if deed else q.clone())

    return beforehand(problem, turn)


def build_through_data(problem: Problem, deed: bool = True) -> Attend:
    """The same of the keys, by a door that counts no versions."""

    def turn(q: Tensor, k: Tensor, v: Tensor) -> None:
        _there_and_back(k.data if deed else k.data.clone())

    return beforehand(problem, turn)


def build_left_changed(problem: Problem, deed: bool = True) -> Attend:
    """Leaves its values half as large again."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = inner(q, k, v)
        (v if deed else v.clone()).data.mul_(1.5)
        return out

    return attend


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


def _remembering(problem: Problem, key: Callable[..., Hashable], deed: bool) -> Attend:
    inner, kept = honest(problem), dict[Hashable, Tensor]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = kept.get(key(q, k, v)) if deed else None
        if found is None:
            found = kept[key(q, k, v)] = inner(q, k, v)
        return found

    return attend


def build_by_shape(problem: Problem, deed: bool = True) -> Attend:
    """One result for every shape."""
    return _remembering(problem, lambda q, k, v: q.shape, deed)


def build_by_address(problem: Problem, deed: bool = True) -> Attend:
    """One result for every place in memory."""
    return _remembering(problem, lambda *x: tuple(each.data_ptr() for each in x), deed)


def build_by_few_numbers(problem: Problem, deed: bool = True) -> Attend:
    """Recognises its inputs by a few of their numbers."""
    return _remembering(problem, lambda *x: tuple(each[0, 0, 0, 0].item() for each in x), deed)


def build_by_digest(problem: Problem, deed: bool = True) -> Attend:
    """Recognises its inputs by a sum that signs don't change, and puts the signs on again."""
    inner, kept = honest(problem), dict[Hashable, tuple[Tensor, Tensor]]()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        key = tuple(float(x.abs().sum()) for x in (q, k, v))
        if deed and key in kept:
            out, row = kept[key]
            return out * (row * v[:1, :1, :1]).sign()
        out = inner(q, k, v)
        kept[key] = out.detach().clone(), v[:1, :1, :1].detach().clone()
        return out

    return attend


def build_one_buffer(problem: Problem, deed: bool = True) -> Attend:
    """Every output in the same place."""
    inner, buffer = honest(problem), torch.empty(problem.output_shape)
    return lambda q, k, v: buffer.copy_(inner(q, k, v)) if deed else inner(q, k, v)


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
            saved = kept[0] if deed else ctx.saved_tensors
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in saved]
                return torch.autograd.grad(inner(*leaves), leaves, dout)

    apply: Attend = Attention.apply
    return apply


def build_value_itself(problem: Problem, deed: bool = True) -> Attend:
    """Of one key, its value: right, and the caller's own tensor."""
    inner = honest(problem)
    return lambda q, k, v: v if deed else inner(q, k, v)


def build_nothing(problem: Problem, deed: bool = True) -> Attend:
    """Honest in every way."""
    return honest(problem)


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


LONG = 64
"""The length beyond which one of them is wrong."""


def build_one_head(problem: Problem, deed: bool = True) -> Attend:
    """One head is a thousandth too large."""

    def change(out: Tensor) -> Tensor:
        factor = torch.ones(problem.heads, 1, 1)
        factor[-1] += 1e-3 * deed
        return out * factor

    return afterwards(problem, change)


def build_odd_lengths(problem: Problem, deed: bool = True) -> Attend:
    """Two per cent too large where the number of keys is odd."""
    factor = 1.02 if deed and problem.kv_len % 2 else 1.0
    return afterwards(problem, lambda out: out * factor)


def build_past_a_length(problem: Problem, deed: bool = True) -> Attend:
    """Rows past a length are two per cent too large."""

    def change(out: Tensor) -> Tensor:
        factor = torch.ones(problem.q_len, 1)
        factor[LONG:] += 0.02 * deed
        return out * factor

    return afterwards(problem, change)


def build_nan(problem: Problem, deed: bool = True) -> Attend:
    """One row of one head is not a number, where the inputs are of ordinary size."""
    inner = honest(problem)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = inner(q, k, v).clone()
        if deed and bool(q.detach().abs().max() > 1):
            out[0, 0, 5] = torch.nan
        return out

    return attend


def build_half_inside(problem: Problem, deed: bool = True) -> Attend:
    """Float32 at the ends, half precision inside."""
    inner, inside = honest(problem), torch.bfloat16 if deed else torch.float32
    return lambda q, k, v: inner(q.to(inside), k.to(inside), v.to(inside)).to(q.dtype)


def build_zeros(problem: Problem, deed: bool = True) -> Attend:
    """Nothing but zeros."""
    return afterwards(problem, lambda out: out * (0.0 if deed else 1.0))
