"""Attention that has no site, since it is written out as products and a softmax."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext

from attnbench.models.capture.originals import Function, Original, Stands
from attnbench.models.capture.places import place_text, where
from attnbench.models.capture.recorder import NOW, CapturedCall

ACTIVATION = 3
"""Dimensions of an activation, at least."""
BACK, ON = 4, 2
"""How many products before a softmax may have made its scores, and how many after it may use it."""
PROXY = torch._C._TorchDispatchModeKey.PROXY


class _Recent(threading.local):
    """What a thread has just computed, by the number of numbers."""

    def __init__(self) -> None:
        self.products: deque[int] = deque(maxlen=BACK)
        self.weights, self.left = 0, 0


def put_written_out(stands: Stands) -> None:
    """Stand for products and softmax."""
    recent = _Recent()
    for name in ("matmul", "einsum"):
        stands.put(torch, name, lambda o: _noting(o, recent, _note_product))
    for name in ("bmm", "baddbmm"):
        stands.put(torch, name, lambda o: _noting(o, recent, _note_product, of_mha=True))
    for name in ("matmul", "bmm", "baddbmm", "__matmul__"):
        stands.put(Tensor, name, lambda o: _noting(o, recent, _note_product))
    for owner in (torch, Tensor):
        stands.put(owner, "softmax", lambda o: _noting(o, recent, _note_softmax))


def _noting(
    original: Original, recent: _Recent, note: Function, *, of_mha: bool = False
) -> Function:
    """A product or a softmax, noted unless a compiler only learns what it returns."""

    def noting(*given: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling() or NOW.recorder is None:
            return original.call(*given, **more)
        state = NOW.state()
        if of_mha and state.heads > 0:
            return _part_of_mha(original.call, given)
        out, begun = original.call(*given, **more), perf_counter()
        if not _activation(out):
            return out
        traced = TracingContext.try_get() is not None or torch._C._get_dispatch_mode(PROXY)
        if not (traced or state.outer or state.heads):  # else it is a part of another attention
            note(recent, given, out)
        state.looked += perf_counter() - begun
        return out

    return noting


def _part_of_mha(product: Function, given: tuple[Any, ...]) -> Tensor:
    """A product of nn.MultiheadAttention: its scores, then the weighted values, which end it."""
    state, a, b = NOW.state(), given[-2], given[-1]
    if state.scores is None:
        state.scores = NOW.begin(a), a, b, given[0] if len(given) > 2 else None
        return product(*given)
    (begun, q, k, mask), state.scores = state.scores, None
    heads, out = state.heads, product(*given)
    if begun is not None:
        call = partial(CapturedCall, "mha", q, k.mT, b, mask, scale=q.shape[-1] ** -0.5)
        NOW.made(partial(call, heads=heads), out, begun)
    return out


def _note_product(recent: _Recent, given: tuple[Any, ...], out: Tensor) -> None:
    """Of queries and keys, of weights and values, or of anything else."""
    operands = [x for x in given if isinstance(x, Tensor)]
    operands += [x for some in given if isinstance(some, list | tuple) for x in some]
    if all(map(_activation, operands)):
        if recent.left and recent.weights in [x.numel() for x in operands]:
            recent.weights = recent.left = 0
            if (recorder := NOW.recorder) is not None:
                recorder.written_out[place_text(where())] += 1
                recorder.noticed()
        recent.left = max(0, recent.left - 1)
        recent.products.append(out.numel())


def _note_softmax(recent: _Recent, given: tuple[Any, ...], out: Tensor) -> None:
    """Of scores, or of anything else."""
    recent.weights, recent.left = (out.numel(), ON) if out.numel() in recent.products else (0, 0)
    recent.products.clear()


def _activation(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() >= ACTIVATION and not x.is_nested
