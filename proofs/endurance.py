"""What a long sweep costs beside what it measures. A part of ``proofs/ruler.py``.

A thousand cells of trivial work through the real sweep, with a real worker: the processor time that
the parent takes a cell, what the worker takes beside inputs, warm-up, gate, sampling and audit, and
by how much the parent has grown between the first hundred cells and the last.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import impls
from attnbench.core.record import Record, Status
from attnbench.core.run_folder import RunFolder
from attnbench.core.settings import Settings
from attnbench.core.store import read_records
from attnbench.sweep import sweep
from attnbench.sweep.places import Local
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import Preset
from attnbench.sweep.start import RunRecords
from proofs.trust import Figure

VARIANTS = ("einsum", "matmul", "baddbmm", "inplace", "sdpa")
CELLS, FIRST = 1000, 100


class Growing:
    """A watcher that keeps how large this process was, and how much processor it took."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.busy_s: list[float] = []

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """Note it, and say now and then how far it has come."""
        if done == FIRST:
            gc.collect()
        self.bytes.append(_resident())
        self.busy_s.append(time.process_time())
        if done % 100 == 0:
            print(f"    {done} of {total}, {left_s:.0f} s left", file=sys.stderr)

    def tell(self, sentence: str) -> None:
        """Pass it on."""
        print(f"    {sentence}", file=sys.stderr)


def endurance() -> Iterator[Figure]:
    """A thousand cells of trivial work: what is the sweep's own, and by how much it grows."""
    lengths = tuple(str(n) for n in range(1, CELLS // (2 * len(VARIANTS)) + 1))
    grid = Preset(
        "trivial work", seq=lengths, heads=(1,), head_dim=(8,), mask=("none",), budget=1e-3
    )
    places, watcher = Local(), Growing()
    plan = make_plan(impls.table(), VARIANTS, grid, places.machine)
    header = {"seed": 0, "budget_s": grid.budget, "grid": {}, "machine": {}}
    with tempfile.TemporaryDirectory() as out:
        folder = RunFolder.create(Path(out), "here", header)
        with places.slots(Settings(), "cpu") as slots:
            sweep.sweep(plan, RunRecords(), folder, slots, watcher, sweep.Interrupt(print))
        folder.close()
        records = list(read_records(folder.path))
    keys = {record.key for record in records}
    yield f"of {len(plan.cells)} cells, missing", len(plan.cells) - len(keys), 0, ""
    yield "cells twice", len(records) - len(keys), 0, ""
    measured = [r for r in records if r.status is Status.MEASURED]
    yield "cells that could be measured and were not", len(plan.to_run) - len(measured), 0, ""
    own = statistics.median(sum(r.spent_s[k] for k in ("own", "setup", "memory")) for r in measured)
    parent = (watcher.busy_s[-1] - watcher.busy_s[FIRST]) / (len(records) - FIRST)
    yield "the worker's own time, median cell", own * 1e3, 20, "ms"
    yield "the parent's processor time a cell", parent * 1e3, 20, "ms"
    yield "both", (own + parent) * 1e3, 20, "ms"
    once = len(plan.to_run) - 1  # what is measured again comes after it
    grown = (watcher.bytes[once] - watcher.bytes[FIRST]) / (once - FIRST)
    yield "the parent grows, a cell", grown / 1024, 2, "KiB"
    most = max(watcher.bytes) - watcher.bytes[FIRST]
    yield "and at the most, in all", most / 2**20, 8, "MiB"


def _resident() -> int:
    with Path("/proc/self/status").open() as lines:
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("VmRSS"))
