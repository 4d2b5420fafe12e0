"""A call's time in attnbench beside its time in a plain script: ``python proofs/plain_process.py``.

A script of a few lines, started with no variable of ours, makes the same call in a loop on values
that are new each time. Its calls and a worker's take turns, and the figure is the median ratio.
The script has freed a large tensor before, as a program that has loaded a model or a batch. One
that has not may take either of two times for a dense variant, by where its heap happens to lie, for
as long as it lives: of such scripts the least and the largest ratio are printed besides.
``--only matmul,sdpa --seq 512 --processes 3`` for less. Leave the machine alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.core.settings import ALLOCATORS, LARGE, PLAIN, Settings  # noqa: E402
from attnbench.sweep.engine import HoldingWorker, LocalEngine  # noqa: E402
from impls.masks import Mask  # noqa: E402
from impls.problem import Problem  # noqa: E402

DENSE = "matmul,baddbmm,einsum,bmm,chunked,online,sdpa"
LIMIT = 0.05
ROUNDS, CALLS = 7, 3
OURS = ("MALLOC_", "OMP_", "MKL_", "OPENBLAS_")
"""How the variables begin that a worker is started with."""
SCRIPT = """
import json, sys, time
import torch
from impls import table
from impls.loading import load_function
from impls.problem import Problem

problem, row = Problem.from_dict(json.loads(sys.argv[1])), table().find(sys.argv[2])
torch.set_num_threads(int(sys.argv[3]))
torch.empty(int(sys.argv[4]), dtype=torch.uint8)
attend = load_function(row.build)(problem, **row.chosen)
shape = (problem.batch, problem.heads, problem.q_len, problem.head_dim)

def call():
    q, k, v = (torch.randn(shape) for _ in "qkv")
    start = time.perf_counter()
    attend(q, k, v)
    return time.perf_counter() - start

with torch.no_grad():
    for line in sys.stdin:
        print(json.dumps([call() for _ in range(int(line))]), flush=True)
"""


class PlainProcess:
    """A plain script that makes calls when it is asked."""

    def __init__(self, name: str, problem: Problem, threads: int, *, large: bool) -> None:
        """``large``: whether it has freed a large tensor before."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
        words = [json.dumps(problem.to_dict()), name, str(threads), str(LARGE if large else 1)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**variables, "PYTHONPATH": str(ROOT)},
        )
        self.samples(CALLS)

    def samples(self, count: int) -> list[float]:
        """Seconds of each of some calls."""
        assert self._process.stdin and self._process.stdout
        print(count, file=self._process.stdin, flush=True)
        return list(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def main() -> int:
    """A line a variant and a length; the status is 1 where a median ratio is beyond the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=DENSE)
    parser.add_argument("--seq", default="512,1024,2048")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--allocator", choices=ALLOCATORS, default=PLAIN)
    given = parser.parse_args()
    beyond, settings = 0, Settings(threads=given.threads, allocator=given.allocator)
    with LocalEngine(settings) as engine:
        worker = HoldingWorker(engine, 0, 0.3, ROOT)
        for length in map(int, given.seq.split(",")):
            of = {"heads": 4, "kv_heads": 4, "mask": Mask.parse("causal")}
            problem = Problem(q_len=length, kv_len=length, **of)
            for name in given.only.split(","):
                beyond += _one(worker, name, problem, given.processes, given.threads)
    return int(beyond > 0)


def _one(worker: HoldingWorker, name: str, problem: Problem, processes: int, threads: int) -> bool:
    worker.hold(name, problem)
    worker.fresh()
    ratios: dict[bool, list[float]] = {True: [], False: []}
    ours: list[float] = []
    for large in ratios:
        for _ in range(processes):
            plain, rounds = PlainProcess(name, problem, threads, large=large), []
            for _ in range(ROUNDS):
                theirs, own = median(plain.samples(CALLS)), median(worker.samples(CALLS))
                rounds.append(theirs / own)
                ours.append(own)
            plain.close()
            ratios[large].append(median(rounds))
    middle = median(ratios[True])
    beyond = abs(middle - 1) > LIMIT
    print(
        f"{'BEYOND' if beyond else 'holds':6} {name:8} {problem.kv_len:5,} tokens: plain over ours "
        f"{middle:.2f} [{min(ratios[True]):.2f}, {max(ratios[True]):.2f}] over {processes} "
        f"processes, without a large tensor before {min(ratios[False]):.2f} to "
        f"{max(ratios[False]):.2f}; ours {median(ours) * 1e3:.3g} ms",
        flush=True,
    )
    return beyond


if __name__ == "__main__":
    sys.exit(main())
