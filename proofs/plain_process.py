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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.core.settings import LARGE, Settings  # noqa: E402
from attnbench.sweep.engine import HoldingWorker, LocalEngine  # noqa: E402
from impls.masks import Mask  # noqa: E402
from impls.problem import Problem  # noqa: E402

DENSE = "matmul,baddbmm,einsum,bmm,chunked,online,sdpa"
LIMIT, ROUNDS, CALLS = 0.05, 7, 3
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


@contextmanager
def plain_process(words: list[str]) -> Iterator[Callable[[], float]]:
    """A plain script, as a function that has it make some calls: their median in seconds."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    command = [sys.executable, "-c", SCRIPT, *words]
    env, pipe = {**variables, "PYTHONPATH": str(ROOT)}, subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as process:
        assert process.stdin and process.stdout
        lines, answers = process.stdin, process.stdout

        def calls_s() -> float:
            print(CALLS, file=lines, flush=True)
            return median(json.loads(answers.readline()))

        calls_s()
        yield calls_s
        lines.close()


def main() -> int:
    """A line a variant and a length; the status is 1 where a median ratio is beyond the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=DENSE)
    parser.add_argument("--seq", default="512,1024,2048")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    beyond, settings = 0, Settings(threads=options.threads)
    with LocalEngine(settings) as engine:
        worker = HoldingWorker(engine, 0, 0.3, ROOT)
        for length in map(int, options.seq.split(",")):
            shape = {"heads": 4, "kv_heads": 4, "mask": Mask.parse("causal")}
            problem = Problem(q_len=length, kv_len=length, **shape)
            for name in options.only.split(","):
                beyond += compare(worker, name, problem, options.processes, options.threads)
    return int(beyond > 0)


def compare(
    worker: HoldingWorker, name: str, problem: Problem, processes: int, threads: int
) -> bool:
    """Print the ratios of a variant; true where they are beyond the limit."""
    worker.hold(name, problem)
    worker.fresh()
    ratios: dict[int, list[float]] = {LARGE: [], 1: []}
    own_s: list[float] = []
    for bytes_, some in ratios.items():
        words = [json.dumps(problem.to_dict()), name, str(threads), str(bytes_)]
        for _ in range(processes):
            with plain_process(words) as calls_s:
                rounds = [(calls_s(), median(worker.samples(CALLS))) for _ in range(ROUNDS)]
            some.append(median(plain / own for plain, own in rounds))
            own_s += [own for _, own in rounds]
    large, small = ratios.values()
    beyond = abs(median(large) - 1) > LIMIT
    print(
        f"{'BEYOND' if beyond else 'holds':6} {name:8} {problem.kv_len:5,} tokens: plain over ours "
        f"{median(large):.2f} [{min(large):.2f}, {max(large):.2f}] over {processes} processes, "
        f"without a large tensor before {min(small):.2f} to {max(small):.2f}; ours "
        f"{median(own_s) * 1e3:.3g} ms",
        flush=True,
    )
    return beyond


if __name__ == "__main__":
    sys.exit(main())
