"""What the device can do: its ceilings, its noise floors, the canary."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from time import perf_counter
from typing import Any

import torch

from attnbench.meter.clocks import clock_for

PRODUCT_SIZES = {"cpu": (512, 1024), "cuda": (4096, 8192)}
COPY_BYTES = {"cpu": (1 << 18, 1 << 21, 1 << 25, 1 << 28), "cuda": (1 << 22, 1 << 26, 1 << 30)}
THREE_OF_TF32 = ("cuda",)
"""Where a product of float32 can be three of TF32 that keep its digits, as in torch's efficient
attention: that may be faster than cuBLAS's own, which uses no tensor core."""
TRIES = 5
WARM_S = {"cpu": 0.0, "cuda": 0.3}
"""So long a call is made before it counts: the clocks of an idle GPU are low."""


def measure(device: str, dtypes: Iterable[str]) -> dict[str, Any]:
    """``{"flops": {dtype: FLOP/s}, "copy": {bytes moved: bytes/s}}``, the best of several tries."""
    kind = device.split(":")[0]
    clock = clock_for(device, "forward")
    chance = torch.Generator(device)  # torch's own is everybody's

    def best(call: Any) -> float:
        until = perf_counter() + WARM_S[kind]
        clock.samples(_nothing, call, 2)
        while perf_counter() < until:
            clock.samples(_nothing, call, 2)
        return min(clock.samples(_nothing, call, TRIES))

    flops = {}
    for name in sorted(set(dtypes)):
        rates = []
        for n in PRODUCT_SIZES[kind]:
            a, b = (
                torch.randn(n, n, device=device, generator=chance).to(getattr(torch, name))
                for _ in range(2)
            )
            rates.append(2 * n**3 / best(lambda a=a, b=b: a @ b))
            if name == "float32" and kind in THREE_OF_TF32:
                with _tf32():
                    rates.append(2 * n**3 / best(lambda a=a, b=b: a @ b) / 3)
        flops[name] = max(rates)
    copy = {}
    for size in COPY_BYTES[kind]:
        source = torch.ones(size // 2, dtype=torch.int8, device=device)
        target = torch.empty_like(source)
        copy[str(size)] = size / best(lambda s=source, t=target: t.copy_(s))
    return {"flops": flops, "copy": copy}


def _nothing() -> None:
    pass


@contextmanager
def _tf32() -> Iterator[None]:
    """Products of float32 on tensor cores, and afterwards as they were."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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
