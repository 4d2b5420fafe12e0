"""Can the ruler be believed? A known wait, code that is the same, a known slow-down, known faults.

Parts of ``proofs/ruler.py``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Figure = tuple[str, float, float, str]
"""What, how much, the most it may be, the unit."""
TRIALS = {0: 200, 3: 100, 5: 100}
"""Per cent more work, and how often it is tried."""
DIFFERENT = ("FASTER", "SLOWER")
PAIRS_BUDGET_S = 6.0


def _nothing() -> None:
    pass


def clock() -> Iterator[Figure]:
    """A wait of known length, by the clock that is the record's: host, and on CUDA events."""
    import torch

    from attnbench.meter.clocks import HostClock, clock_for

    for seconds in (0.0002, 0.005):

        def wait(until: float = seconds) -> None:
            start = time.monotonic()
            while time.monotonic() - start < until:
                pass

        taken = statistics.median(HostClock().samples(_nothing, wait, 101))
        yield f"a wait of {seconds * 1e3:g} ms, off by", abs(taken / seconds - 1) * 100, 1, "%"
    if torch.cuda.is_available():
        cycles = 20_000_000
        rate = torch.cuda.clock_rate() * 1e6
        events = clock_for("cuda", "forward")
        taken = statistics.median(events.samples(_nothing, lambda: torch.cuda._sleep(cycles), 21))
        off = abs(taken * rate / cycles - 1) * 100
        yield f"a kernel of {cycles} cycles, off by", off, 1, "%"


def pairs() -> Iterator[Figure]:
    """Verdicts on code that is the same, and that does a known share more, on a busy machine."""
    with busy_core():
        yield from _verdicts()


@contextmanager
def busy_core() -> Iterator[None]:
    """Somebody else at work on another core, if there is one."""
    burn = "while True:\n sum(i * i for i in range(10**5))"
    others = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(1)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _verdicts() -> Iterator[Figure]:
    from attnbench.core.job import Job
    from attnbench.core.settings import Settings, apply
    from attnbench.core.stats import LEAST_MARGIN, StopRule, Verdict
    from attnbench.gate.plants import SLICES_PROBLEM, slices
    from attnbench.meter.cell import Bench
    from attnbench.meter.pairs import compare_ready, floor_of

    apply(Settings())
    bench = Bench()
    ready = {extra: bench.ready(Job(slices(extra), SLICES_PROBLEM)) for extra in TRIALS}
    floor = floor_of(ready[0])
    margin = max(LEAST_MARGIN, floor["floor"])
    yield f"noise floor, {floor['trials']} comparisons of itself", floor["floor"] * 100, 2, "%"
    wanted = {0: (None, 1.0), 3: (Verdict.SLOWER, 10.0), 5: (Verdict.SLOWER, 1.0)}
    for extra, trials in TRIALS.items():
        found = []
        for _ in range(trials):
            seen = compare_ready(ready[0], ready[extra], StopRule(margin, budget_s=PAIRS_BUDGET_S))
            found.append(seen.comparison)
        told = [str(c.verdict) for c in found]
        counts = ", ".join(f"{v} {told.count(v)}" for v in Verdict if v in told)
        ratio = statistics.median(c.ratio for c in found)
        print(f"    {extra} %: {counts}; median ratio {ratio:.4f}", file=sys.stderr, flush=True)
        verdict, most = wanted[extra]
        bad = [
            c for c in found if (c.verdict is not verdict if verdict else c.verdict in DIFFERENT)
        ]
        what = (
            f"{extra} % more work, not called {verdict}" if verdict else "same code, a difference"
        )
        yield f"{what}, of {trials} trials", 100 * len(bad) / trials, most, "%"


def faults() -> Iterator[Figure]:
    """Every planted fault is caught, and no honest row is."""
    start = time.perf_counter()
    done = _attnbench("selfcheck")
    taken = time.perf_counter() - start
    report = json.loads(done)
    yield "attnbench selfcheck", taken, 300, "s"
    yield f"of {report['n']} planted, escaped", report["n"] - report["caught"], 0, ""
    records = json.loads(_attnbench("check"))
    asked = [r for r in records if r["status"] not in ("unsupported", "unavailable")]
    alarms = [r for r in asked if r["status"] != "measured"]
    for r in alarms:
        print(f"    {r['variant']}: {r['status']}: {r['reason']}", file=sys.stderr)
    yield f"of {len(asked)} cells of the honest table, false alarms", len(alarms), 0, ""


def _attnbench(verb: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "attnbench", verb, "--json"]
        command += ["--out", folder] * (verb == "selfcheck")
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
