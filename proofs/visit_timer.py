"""Our clock beside ``triton.testing.do_bench``, turn about, on the same calls of several kernels.

``python proofs/visit_timer.py [DEVICE]``: of each kernel the median ratio of pairs. Theirs takes
the median of what fits into some milliseconds, the L2 cache flushed before each call, as ours does.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

KERNELS = ("sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "matmul", "flex", "linear.elu")
LENGTHS = (1024, 4096, 16384)
COMPILED, COMPILED_AT = ("flex",), 4096
"""What torch compiles anew for each length, and the one length that it is tried at."""
TOKENS = 16384
PAIRS, CALLS = 7, 20
WARM_MS, TAKE_MS = 5, 20
Theirs = Callable[[Callable[[], object]], float]
"""Seconds that a call takes by another's timer."""


def triton_do_bench() -> Theirs:
    from triton.testing import do_bench

    return lambda run: 1e-3 * do_bench(run, warmup=WARM_MS, rep=TAKE_MS, return_mode="median")


def ratios(device: str, theirs: Theirs, kernels=KERNELS, lengths=LENGTHS) -> Iterator[tuple]:
    """Of each kernel and length: its name, the problem, and our time over theirs; or why not."""
    from attnbench.core.settings import Settings, apply
    from impls import table
    from impls.masks import Mask
    from impls.problem import Problem

    apply(Settings())
    dtype = "float32" if device == "cpu" else "bfloat16"
    for n in lengths:
        problem = Problem(
            batch=max(1, TOKENS // n) if device != "cpu" else 1,
            heads=16,
            kv_heads=16,
            q_len=n,
            kv_len=n,
            head_dim=128,
            v_head_dim=128,
            dtype=dtype,
            mask=Mask.parse("causal"),
            device=device,
        )
        for name in kernels:
            if name in COMPILED and n != COMPILED_AT:
                continue
            row = table().rows[name]
            try:
                yield name, problem, row.supports(problem) or _ratio(row, problem, theirs)
            except Exception as error:  # one kernel that can't be run is no reason to lose the rest
                yield name, problem, f"{type(error).__name__}: {error}".splitlines()[0]


def _ratio(row, problem, theirs: Theirs) -> float:
    from attnbench.gate.inputs import make
    from attnbench.meter.clocks import clock_for
    from impls.loading import load_function

    attend, inputs = load_function(row.build)(problem, **row.chosen), make(problem, 0)
    clock = clock_for(problem.device, problem.phase)

    def run() -> object:
        return attend(*inputs)

    run()
    pairs = []
    for number in range(PAIRS):
        taken = {}
        for whose in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
            if whose == "theirs":
                taken[whose] = theirs(run)
            else:
                taken[whose] = statistics.median(clock.samples(_nothing, run, CALLS))
        pairs.append(taken["ours"] / taken["theirs"])
    return statistics.median(pairs)


def _summed(found: list[float]) -> str:
    return (
        f"against triton's do_bench, {len(found)} cell{'s' * (len(found) > 1)}: median |ratio - 1| "
        f"{statistics.median(found):.1%}, the worst {max(found):.1%}"
    )


def _nothing() -> None:
    pass


def main(words: list[str], theirs: Theirs | None = None, **more) -> int:
    """Exit status 1 where some are 5 % apart or more; 2 where nothing could be compared."""
    device, found = (words or ["cuda"])[0], []
    try:
        theirs = theirs or triton_do_bench()
    except ImportError as error:
        print(
            f"nothing was compared: {error}; do_bench is Triton's, which comes with torch's CUDA "
            "builds"
        )
        return 2
    for name, problem, ratio in ratios(device, theirs, **more):
        told = ratio if isinstance(ratio, str) else f"ours / theirs {ratio:.4f}"
        print(f"{name:16} {problem}: {told}", flush=True)
        if not isinstance(ratio, str):
            found.append(abs(ratio - 1))
            print(_summed(found), flush=True)  # now: it may be cut off before the next
    if not found:
        print("nothing was compared, for the reasons said")
        return 2
    return int(max(found) >= 0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
