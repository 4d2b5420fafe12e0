"""What the ruler claims of itself, measured here: ``python proofs/ruler.py [PART …]``.

Parts: startup, sweep, endurance, timer, clock, memory, oracle, pairs, faults; all of them if none
is named. Each figure is printed beside its limit; the exit status is 1 if one is beyond it. Leave
the machine alone meanwhile.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SECONDS_A_CELL = 2.0
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.core.settings import Settings, apply, environment  # noqa: E402
from proofs.endurance import endurance  # noqa: E402
from proofs.trust import Figure, clock, faults, pairs  # noqa: E402


def startup() -> Iterator[Figure]:
    """The verbs that only look answer at once, and never import torch."""
    for words, limit in ((["--help"], 0.10), (["list"], 0.25)):
        command = [sys.executable, "-m", "attnbench", *words]
        taken = []
        for _ in range(7):
            start = time.perf_counter()
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            taken.append(time.perf_counter() - start)
        yield f"attnbench {' '.join(words)}, median of 7", statistics.median(taken), limit, "s"
        told = [sys.executable, "-X", "importtime", "-m", "attnbench", *words]
        seen = subprocess.run(told, cwd=ROOT, check=True, capture_output=True, text=True).stderr
        loaded = sum(line.split("|")[-1].strip() == "torch" for line in seen.splitlines())
        yield f"attnbench {' '.join(words)}: imports of torch", loaded, 0, ""


def sweep() -> Iterator[Figure]:
    """The default run: how long, how wide, every number gated, what the ruler adds to a cell."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "attnbench",
            "run",
            "--out",
            folder,
            "--json",
            "--no-report",
        ]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        taken = time.perf_counter() - start
    records = json.loads(done.stdout)["records"]
    measured = [r for r in records if r["status"] == "measured"]
    yield "default run", taken, 180, "s"
    yield "variants missing to 10", max(0, 10 - len({r["variant"] for r in measured})), 0, ""
    lengths = {r["problem"]["kv_len"] for r in measured}
    yield "lengths missing to 3", max(0, 3 - len(lengths)), 0, ""
    phases = {"forward", "train"} - {r["problem"]["phase"] for r in measured}
    yield "phases missing of forward and train", len(phases), 0, ""
    ungated = sum(not r["error"] or r["error"]["forward"]["ratio"] is None for r in measured)
    yield f"of {len(measured)} measured cells, not gated", ungated, 0, ""
    guarded = [
        r["spent_s"]["gate"]
        / sum(r["spent_s"][k] for k in ("warmup", "sampling", "memory", "audit"))
        for r in measured
    ]
    yield (
        "the gate over the measurement that it guards, median cell",
        statistics.median(guarded),
        1,
        "",
    )
    own = [sum(r["spent_s"][k] for k in ("own", "setup", "memory")) for r in measured]
    yield (
        "building, the memory meter and all the rest, median cell",
        (statistics.median(own)) * 1e3,
        20,
        "ms",
    )


def timer() -> Iterator[Figure]:
    """Our samples and torch.utils.benchmark's, turn about, on the same calls."""
    from torch.utils.benchmark import Timer

    from attnbench.gate.gate import gate
    from attnbench.gate.inputs import make
    from attnbench.gate.reference import judge
    from attnbench.meter.clocks import clock_for
    from attnbench.meter.timer import Timed, Values
    from impls import table
    from impls.loading import load_function
    from impls.lowrank.mean_v import definition as define
    from impls.masks import Mask
    from impls.problem import Problem

    apply(Settings())
    ratios = []
    for n in (128, 256, 512):
        for phase in ("forward", "train"):
            problem = Problem(q_len=n, kv_len=n, phase=phase, mask=Mask.parse("causal"))
            judged = judge(problem, make(problem, 0), 0)
            for name in ("einsum", "matmul", "chunked", "sdpa.math", "sdpa.flash", "mean_v"):
                row = table().rows[name]
                attend = load_function(row.build)(problem, **row.chosen)
                verdict = gate(judged, attend, None if row.exact else define(problem), 0)
                values = Values(judged.inputs, judged.dout)
                timed = Timed(problem, attend, values, verdict.truth, exact=row.exact)
                timed.before()
                theirs = Timer("run()", globals={"run": timed.run}, num_threads=1)
                clock = clock_for("cpu", phase)
                pairs: list[float] = []
                until = time.perf_counter() + SECONDS_A_CELL
                while time.perf_counter() < until or len(pairs) < 20:
                    taken = {}
                    for whose in ("ours", "theirs") if len(pairs) % 2 else ("theirs", "ours"):
                        if whose == "theirs":
                            taken[whose] = theirs.timeit(1).median
                        else:  # timeit makes two calls of its own before the one that it times
                            taken[whose] = clock.samples(_nothing, timed.run, 3)[2]
                    pairs.append(taken["ours"] / taken["theirs"])
                ratio = statistics.median(pairs)
                ratios.append(ratio)
                print(f"    {name:12} {problem}: ours / theirs {ratio:.4f}", file=sys.stderr)
    off = [abs(r - 1) for r in ratios]
    yield (
        f"against torch.utils.benchmark, {len(off)} cells: median |ratio - 1|",
        (statistics.median(off)) * 100,
        2,
        "%",
    )
    yield "the worst of them", max(off) * 100, 5, "%"


def _nothing() -> None:
    pass


def memory() -> Iterator[Figure]:
    """The meter's peak against closed forms written out here."""
    from attnbench.gate.inputs import make
    from attnbench.meter.memory import observe, warm_profiler
    from impls import table
    from impls.loading import load_function
    from impls.problem import Problem

    apply(Settings())
    warm_profiler()
    tile = 256 * (512 + 2 + 64) * 4  # flash: a thread's scores, two columns and output, 256 queries
    for n in (2048, 4096):
        scores, out, log_sums = 8 * n * n * 4, 8 * n * 64 * 4, 8 * n * 4
        closed = {
            "einsum": 2 * scores,
            "matmul": 2 * scores,
            "sdpa.flash": out + log_sums + tile,
        }
        problem = Problem(q_len=n, kv_len=n)
        inputs = make(problem, 0)
        for name, wanted in closed.items():
            attend = load_function(table().rows[name].build)(problem)
            attend(*inputs)
            peak = observe(problem, attend, inputs, None, None).memory.peak_bytes
            off = abs(peak / wanted - 1) * 100
            yield f"{name} at {n}: {peak / 2**20:.2f} MiB, off the closed form by", off, 1, "%"


def oracle() -> Iterator[Figure]:
    """A million scores a row: 131,072 tokens, 8 heads of 64, causal, 256 rows, all gradients."""
    import torch

    from attnbench.gate.inputs import make
    from attnbench.gate.oracle import compare, exact, sample_rows
    from impls.masks import Mask
    from impls.problem import Problem

    torch.set_num_threads(1)
    n = 131072
    problem = Problem(q_len=n, kv_len=n, phase="train", mask=Mask.parse("causal"))
    inputs = make(problem, 0)
    rows = sample_rows(n, 256, 0)
    dout = torch.randn(1, 8, len(rows), 64)
    start = time.perf_counter()
    truth = exact(problem, *inputs, rows, dout)
    assert truth.dq is not None and truth.dk is not None and truth.dv is not None
    for tensor in (truth.out, truth.dq, truth.dk, truth.dv):
        assert compare(tensor.float(), tensor).relative < 1e-6
    taken = time.perf_counter() - start
    yield "131,072 tokens checked, forward and three gradients", taken, 40, "s"
    high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    yield "memory of the whole process", high, 3, "GiB"


PARTS: dict[str, Callable[[], Iterator[Figure]]] = {
    "startup": startup, "sweep": sweep, "endurance": endurance, "timer": timer, "clock": clock,
    "memory": memory, "oracle": oracle, "pairs": pairs, "faults": faults,
}  # fmt: skip


def main(names: list[str]) -> int:
    """Each part in a process of its own, under the worker's environment."""
    if unknown := set(names) - set(PARTS):
        print(f"there is no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
        return 2
    if os.environ.get("ATTNBENCH_PROOF") in PARTS:
        return _print(PARTS[os.environ["ATTNBENCH_PROOF"]]())
    status = 0
    for name in names or PARTS:
        print(f"{name}: {PARTS[name].__doc__}", flush=True)
        told = {**os.environ, **environment(1), "ATTNBENCH_PROOF": name}
        status |= subprocess.run([sys.executable, __file__, name], env=told).returncode
    return status


def _print(figures: Iterator[Figure]) -> int:
    beyond = 0
    for what, value, limit, unit in figures:
        holds = value <= limit
        beyond += not holds
        bound = "" if limit == float("inf") else f"(at most {limit:g} {unit})".replace(" )", ")")
        mark = "holds" if holds else "BEYOND"
        print(f"  {mark:7} {what}: {value:.3g} {unit} {bound}", flush=True)
    return int(beyond > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
