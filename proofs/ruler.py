"""What the ruler claims of itself, measured here: ``python -m proofs.ruler [PART …]``.

Parts: startup, sweep, endurance, timer, pairs, plain; all of them if none is named.
Each figure is printed beside its limit; the exit status is 1 if one is beyond it. Leave the machine
alone meanwhile.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

import impls
from attnbench.core import wire
from attnbench.core.machine import kernel_bytes
from attnbench.core.process import Program
from attnbench.core.settings import Settings, apply, environment
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

ROOT = Path(__file__).resolve().parent.parent
Figure = tuple[str, float, float, str]
"""A name, a value, the most it may be, the unit."""
SECONDS_A_CELL = 2.0
TRIVIAL = ("einsum", "matmul", "baddbmm", "inplace", "sdpa")
CELLS, FIRST = 1000, 100
TRIALS = {0: (200, 1.0), 3: (100, 10.0), 5: (100, 1.0)}
"""By the per cent of more work: how often it is tried, and the most per cent of wrong verdicts."""
SLICES = 100
PAIRS_BUDGET_S = 6.0
SMALL = {"heads": 2, "kv_heads": 2, "q_len": 100, "kv_len": 100, "head_dim": 16, "v_head_dim": 16}
BUSY = "while True:\n sum(i * i for i in range(10**5))"
"""Somebody else at work, on another core if there is one."""
DENSE = ("matmul", "baddbmm", "einsum", "bmm", "chunked", "online", "sdpa")
PLAIN_LENGTHS, PROCESSES, ROUNDS, CALLS = (512, 1024, 2048), 5, 7, 3
RULER = ("own", "setup", "memory")
"""The parts of a cell's time that are neither inputs, warm-up, gate, sampling nor audit."""


def attnbench(*words: str, **more: Any) -> str:
    """The output of a command of attnbench, in a process."""
    command = [sys.executable, "-m", "attnbench", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **more).stdout


def startup() -> Iterator[Figure]:
    """The verbs that only look answer at once."""
    for verb, limit in (("--help", 0.10), ("list", 0.25)):
        times = []
        for _ in range(7):
            start = time.perf_counter()
            attnbench(verb, check=True)
            times.append(time.perf_counter() - start)
        yield f"attnbench {verb}, median of 7", statistics.median(times), limit, "s"


def sweep() -> Iterator[Figure]:
    """The default run: how long, every number gated, what the ruler adds to a cell."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        output = attnbench("run", "--out", folder, "--json", "--no-report", check=True)
        yield "default run", time.perf_counter() - start, 180, "s"
    measured = [r for r in json.loads(output)["records"] if r["status"] == "measured"]
    ungated = sum(not r["error"] or r["error"]["forward"]["ratio"] is None for r in measured)
    yield f"of {len(measured)} measured cells, not gated", ungated, 0, ""
    spent = [r["spent_s"] for r in measured]
    parts = ("warmup", "sampling", "memory", "audit")
    ratio = statistics.median(s["gate"] / sum(s[k] for k in parts) for s in spent)
    yield "the gate over the measurement that it guards, median cell", ratio, 1, ""
    own = statistics.median(sum(s[k] for k in RULER) for s in spent)
    yield "building, the memory meter and all the rest, median cell", own * 1e3, 20, "ms"


def endurance() -> Iterator[Figure]:
    """A thousand cells of trivial work: what is the sweep's own, and by how much it grows."""
    from attnbench.core.record import Status
    from attnbench.core.run_folder import RunFolder
    from attnbench.core.store import read_records
    from attnbench.sweep import sweep
    from attnbench.sweep.places import Local
    from attnbench.sweep.plan import make_plan
    from attnbench.sweep.presets import Preset

    lengths = tuple(str(n) for n in range(1, CELLS // (2 * len(TRIVIAL)) + 1))
    grid = Preset("trivial", seq=lengths, heads=(1,), head_dim=(8,), mask=("none",), budget=1e-3)
    sizes, busy_s, places = list[int](), list[float](), Local()

    def note(record: object, done: int, *_: object) -> None:
        if done == FIRST:
            gc.collect()
        sizes.append(kernel_bytes("VmRSS"))
        busy_s.append(time.process_time())

    watcher = SimpleNamespace(at=lambda *_: None, cell=note, tell=print)
    plan = make_plan(impls.table(), TRIVIAL, grid, places.machine)
    header = {"seed": 0, "budget_s": grid.budget, "grid": {}, "machine": {}}
    with tempfile.TemporaryDirectory() as out:
        folder = RunFolder.create(Path(out), "here", header)
        with places.slots(Settings(), "cpu") as slots:
            sweep.sweep(plan, folder, slots, watcher, sweep.Interrupt(print))
        folder.close()
        records = read_records(folder.path)
    keys = {record.key for record in records}
    yield f"of {len(plan.cells)} cells, missing", len(plan.cells) - len(keys), 0, ""
    yield "cells twice", len(records) - len(keys), 0, ""
    measured = [r for r in records if r.status is Status.MEASURED]
    own = statistics.median(sum(r.spent_s[k] for k in RULER) for r in measured)
    parent = (busy_s[-1] - busy_s[FIRST]) / (len(records) - FIRST)
    both = f"the worker's own time, {own * 1e3:.2g} ms, and the parent's, a cell"
    yield both, (own + parent) * 1e3, 20, "ms"
    once = len(plan.to_run) - 1  # what is measured again comes after it
    growth = (sizes[once] - sizes[FIRST]) / (once - FIRST)
    yield "the parent grows, a cell", growth / 1024, 2, "KiB"
    yield "and at the most, in all", (max(sizes) - sizes[FIRST]) / 2**20, 8, "MiB"


def timer() -> Iterator[Figure]:
    """Our samples and torch.utils.benchmark's, turn about, on the same calls."""
    from torch.utils.benchmark import Timer

    from attnbench.meter.cell import Bench
    from attnbench.meter.clocks import clock_for

    def ratio(name: str, problem: Problem) -> float:
        timed = bench.ready(wire.Job(impls.table().find(name), problem)).timed()
        timed.before()
        theirs = Timer("run()", globals={"run": timed.run}, num_threads=1)
        clock, ratios = clock_for("cpu", problem.phase), list[float]()
        # timeit makes two calls of its own before the one that it times
        sides = {
            "ours": lambda: clock.samples(lambda: None, timed.run, 3)[2],
            "theirs": lambda: theirs.timeit(1).median,
        }
        until = time.perf_counter() + SECONDS_A_CELL
        while time.perf_counter() < until or len(ratios) < 20:
            times = {side: sides[side]() for side in random.sample([*sides], 2)}
            ratios.append(times["ours"] / times["theirs"])
        print(f"    {name:12} {problem}: {statistics.median(ratios):.4f}", file=sys.stderr)
        return statistics.median(ratios)

    apply(Settings())
    bench = Bench()
    names = ("einsum", "matmul", "chunked", "sdpa.math", "sdpa.flash", "mean_v")
    problems = [
        Problem(q_len=n, kv_len=n, phase=phase, mask=Mask.parse("causal"))
        for n in (128, 256, 512)
        for phase in ("forward", "train")
    ]
    off = [abs(ratio(name, p) - 1) * 100 for p in problems for name in names]
    median = statistics.median(off)
    yield f"against torch.utils.benchmark, {len(off)} cells: median |ratio - 1|", median, 2, "%"
    yield "the worst of them", max(off), 5, "%"


def build(problem: Problem, extra: int = 0) -> Callable[..., Any]:
    """Attention without a mask; ``extra`` of its slices, spread evenly, are computed twice."""
    import torch

    again = {i * SLICES // extra for i in range(extra)}

    def attend(q: Any, k: Any, v: Any) -> Any:
        parts = []
        for number, rows in enumerate(q.tensor_split(SLICES, 2)):
            for _ in range(1 + (number in again)):
                part = (rows @ k.mT * problem.scale).softmax(-1) @ v
            parts.append(part)
        return torch.cat(parts, 2)

    return attend


def pairs() -> Iterator[Figure]:
    """Verdicts on code that is the same, and that does a known share more, on a busy machine."""
    from attnbench.core.stats import LEAST_MARGIN, StopRule, Verdict
    from attnbench.meter.cell import Bench
    from attnbench.meter.pairs import compare_ready, floor_of

    apply(Settings())
    bench, problem = Bench(), Problem(**SMALL)
    row = Variant("slices", "", "planted", "softmax", f"{__file__}:build", options={"extra": 0})
    with Program([sys.executable, "-c", BUSY]):
        jobs = {n: wire.Job(replace(row, given={"extra": n}), problem) for n in TRIALS}
        ready = {n: bench.ready(job) for n, job in jobs.items()}
        floor = floor_of(ready[0])
        margin = max(LEAST_MARGIN, floor["floor"])
        yield f"noise floor, {floor['trials']} comparisons of itself", floor["floor"] * 100, 2, "%"
        for extra, (trials, most) in TRIALS.items():
            rule = StopRule(margin, budget_s=PAIRS_BUDGET_S)
            results = [compare_ready(ready[0], ready[extra], rule) for _ in range(trials)]
            counts = Counter(c.verdict for c in results)
            ratio = statistics.median(c.ratio for c in results)
            slower, faster = counts[Verdict.SLOWER], counts[Verdict.FASTER]
            wrong = trials - slower if extra else slower + faster
            what = f"{extra} % more work, not called SLOWER" if extra else "same code, a difference"
            each = ", ".join(f"{verdict} {n}" for verdict, n in counts.items())
            what += f", of {trials} trials ({each}; median ratio {ratio:.4f})"
            yield what, 100 * wrong / trials, most, "%"


SCRIPT = """
import json, sys, time
import torch
from attnbench.core.wire import convert
from impls import table
from impls.loading import load_function
from impls.problem import Problem

problem, row = convert(json.loads(sys.argv[1]), Problem), table().find(sys.argv[2])
torch.set_num_threads(1)
torch.empty(int(sys.argv[3]), dtype=torch.uint8)
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


def plain_process(words: Sequence[str]) -> subprocess.Popen[str]:
    """A script of a few lines, started with no variable of ours."""
    ours = ("MALLOC_", "OMP_", "MKL_", "OPENBLAS_")
    variables = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    env, pipe = {**variables, "PYTHONPATH": str(ROOT)}, subprocess.PIPE
    command = [sys.executable, "-c", SCRIPT, *words]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)


def calls_s(process: subprocess.Popen[str]) -> float:
    """The median in seconds of some calls that the script makes now."""
    print(CALLS, file=process.stdin, flush=True)
    return statistics.median(json.loads(process.stdout.readline()))


def plain() -> Iterator[Figure]:
    """A call in a plain script over the same call in a worker. The script has freed a large tensor
    before, as a program that has loaded a model or a batch. One that has not may take either of two
    times for a dense variant for as long as it lives: these ratios are printed besides.
    """
    from attnbench.core.settings import LARGE
    from attnbench.sweep.engine import HoldingWorker, LocalEngine

    with LocalEngine(Settings(threads=1)) as engine:
        worker = HoldingWorker(engine, 0, 0.3, ROOT)
        for length, name in itertools.product(PLAIN_LENGTHS, DENSE):
            shape = {"heads": 4, "kv_heads": 4, "mask": Mask.parse("causal")}
            problem = Problem(q_len=length, kv_len=length, **shape)
            worker.hold(name, problem)
            worker.fresh()
            ratios: dict[int, list[float]] = {LARGE: [], 1: []}
            for freed, some in ratios.items():
                for _ in range(PROCESSES):
                    words = [json.dumps(wire.plain(problem)), name, str(freed)]
                    with plain_process(words) as process:
                        calls_s(process)
                        rounds = [
                            calls_s(process) / statistics.median(worker.samples(CALLS))
                            for _ in range(ROUNDS)
                        ]
                    some.append(statistics.median(rounds))
            low, high = min(ratios[1]), max(ratios[1])
            print(f"    {name} without a large tensor: {low:.2f} to {high:.2f}", file=sys.stderr)
            off = abs(statistics.median(ratios[LARGE]) - 1) * 100
            yield f"{name}, {length:,} tokens, in a plain script: off by", off, 5, "%"


PARTS: dict[str, Callable[[], Iterator[Figure]]] = {
    part.__name__: part for part in (startup, sweep, endurance, timer, pairs, plain)
}


def main(names: Sequence[str]) -> int:
    """Each part in a process of its own, under the worker's environment."""
    if unknown := set(names) - set(PARTS):
        print(f"there is no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
        return 2
    os.environ |= environment(1)  # before torch is loaded
    if len(names) == 1:
        print(f"{names[0]}: {PARTS[names[0]].__doc__}", flush=True)
        return show(PARTS[names[0]]())
    command = [sys.executable, "-m", "proofs.ruler"]
    return max(subprocess.run([*command, name]).returncode for name in names or PARTS)


def show(figures: Iterator[Figure]) -> int:
    """Print each figure beside its limit; 1 where one is beyond it."""
    beyond = 0
    for what, value, limit, unit in figures:
        beyond += value > limit
        mark, of = "BEYOND" if value > limit else "holds", f" {unit}" if unit else ""
        print(f"  {mark:7} {what}: {value:.4g}{of} (at most {limit:g}{of})", flush=True)
    return int(beyond > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
