"""The canary: a small attention of the ruler's own, timed now and again through a run.

No variant is in it, so what moves it is the machine: heat, a neighbour, another clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import cache

import torch

from attnbench.measure.clocks import clock_for

SHAPE = {"cpu": (1, 4, 256, 64), "cuda": (2, 16, 2048, 128)}
"""Batch, heads, tokens and width: about a millisecond."""
WARM_UP, SAMPLES = 3, 15


def reading(device: str) -> float:
    """Seconds of a call, the median of a few."""
    call, clock = _call(device), clock_for(device, "forward")
    clock.samples(_nothing, call, WARM_UP)
    return statistics.median(clock.samples(_nothing, call, SAMPLES))


@cache
def _call(device: str) -> Callable[[], object]:
    """Scores, softmax and values, from tensors of its own."""
    kind = device.split(":")[0]
    made = torch.Generator(device).manual_seed(0)
    dtype = torch.float32 if kind == "cpu" else torch.bfloat16
    q, k, v = (torch.randn(SHAPE[kind], generator=made, device=device).to(dtype) for _ in "qkv")
    product, softmax = torch.matmul, torch.softmax

    def call() -> object:
        with torch.no_grad():
            return product(softmax(product(q, k.mT) * q.shape[-1] ** -0.5, -1), v)

    return call


def _nothing() -> None:
    pass
