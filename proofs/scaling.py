"""What claims to be linear is: ``python proofs/scaling.py [NAME …]``.

Every row whose own cost formula grows with the length and no faster, and the windows, are run from
4,096 to 32,768 tokens, forward and train, under each mask of theirs that keeps them linear. The
exponent is the slope of log time, or log peak memory, over log length. Limit: 1.15. One thread.
Leave the machine alone meanwhile.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.core.settings import Settings, apply, environment  # noqa: E402

LIMIT = 1.15
LENGTHS = (4096, 8192, 16384, 32768)
WINDOW = "causal+window:255,0"
SECONDS, FEWEST, ROUNDS = 0.6, 3, 2


def problem_of(length: int, mask: str, phase: str) -> Any:
    from impls.masks import Mask
    from impls.problem import Problem

    return Problem(
        heads=2, kv_heads=2, q_len=length, kv_len=length, mask=Mask.parse(mask), phase=phase
    )


def slope(values: list[float]) -> float:
    """By least squares, on logarithms."""
    x = [math.log(n) for n in LENGTHS]
    y = [math.log(v) for v in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return over / sum((a - mx) ** 2 for a in x)


def claims(names: list[str]) -> Iterator[tuple[Any, str, str]]:
    """Rows, masks and phases of which linear growth is claimed."""
    import impls
    from attnbench.core.machine import this_machine, why_not
    from impls.loading import load_function

    for row in impls.table().rows.values():
        if (names and row.name not in names) or row.level != "core" or row.cost is None:
            continue
        if row.family == "external":
            continue  # what others' kernels claim is theirs to show
        if why_not(row, this_machine()) is not None or row.name == "mean_v":
            continue
        masks = [WINDOW] if row.name.startswith("window.") else ["none", "causal"]
        for mask in masks:
            for phase in ("forward", "train"):
                ends = [problem_of(n, mask, phase) for n in (LENGTHS[0], LENGTHS[-1])]
                if any(row.supports(p) is not None for p in ends):
                    continue
                few, many = (load_function(row.cost)(p, **row.chosen).flops for p in ends)
                if row.exact and not row.name.startswith("window."):
                    continue  # what they do is the problem's, not theirs
                if many <= 1.05 * few * LENGTHS[-1] / LENGTHS[0]:
                    yield row, mask, phase


def exponents(row: Any, mask: str, phase: str) -> tuple[float, float]:
    """Of the least time of a few rounds over the lengths, and of the peak memory."""
    import torch

    from attnbench.gate.inputs import Call, make
    from attnbench.meter.memory import observe
    from impls.loading import load_function

    best = dict.fromkeys(LENGTHS, math.inf)
    peaks = []
    calls = {}
    for n in LENGTHS:
        problem = problem_of(n, mask, phase)
        inputs = make(problem, 0)
        attend = load_function(row.build)(problem, **row.chosen)
        dout = torch.randn(problem.output_shape) if problem.gradients else None
        calls[n] = Call(problem, attend, inputs)
        once(calls[n], dout)
        peaks.append(float(observe(problem, attend, inputs, dout, None).memory.peak_bytes))
    for _ in range(ROUNDS):
        for n, call in calls.items():
            dout = torch.randn(call.problem.output_shape) if call.problem.gradients else None
            start, taken = time.perf_counter(), 0
            while taken < FEWEST or time.perf_counter() - start < SECONDS / ROUNDS:
                before = time.perf_counter()
                once(call, dout)
                best[n] = min(best[n], time.perf_counter() - before)
                taken += 1
    return slope(list(best.values())), slope(peaks)


def once(call: Any, dout: Any) -> None:
    out = call.forward()
    if dout is not None:
        call.backward(out, dout)


def main(names: list[str]) -> int:
    """Print both exponents of every claim; 1 where one is beyond the limit."""
    wanted = environment(1)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})
    apply(Settings(threads=1))
    beyond = 0
    for row, mask, phase in claims(names):
        of_time, of_memory = exponents(row, mask, phase)
        holds = max(of_time, of_memory) <= LIMIT
        beyond += not holds
        mark = "holds" if holds else "BEYOND"
        where = f"{row.label} {mask} {phase}"
        print(f"  {mark:7} {where:48} time {of_time:5.2f}  memory {of_memory:5.2f}", flush=True)
    print(f"{beyond} beyond {LIMIT}" if beyond else f"all within {LIMIT}")
    return int(beyond > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
