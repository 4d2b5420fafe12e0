"""The ceilings of this device, measured: a matrix product in each dtype, and a copy.

No call can do its work faster than a good product does it, nor move its bytes faster than a copy.
A copy that fits a cache is faster than memory, so copies of several sizes are timed, and a cell is
held against the fastest that its own bytes could have seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

from attnbench.measure.clocks import clock_for

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
