"""Whatever a variant does, its own cell says so, and nobody else's suffers."""

import os
import shutil
from pathlib import Path

import pytest

import impls
from attnbench.core import process, stats
from attnbench.core.machine import this_machine
from attnbench.core.record import Status
from attnbench.core.run_folder import RunFolder
from attnbench.core.settings import Settings
from attnbench.core.store import read_records
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.plan import make_plan
from tests import processes
from tests.faults import misbehaving
from tests.sweep.build import KNOWN, ONE, Watched, sweep_of

pytestmark = pytest.mark.slow
HANG_S, PATIENCE_S = 2.0, 120.0
"""For those that hang, and for everybody else on a busy machine."""
GROWN = 48 << 20
"""By so much the process that sweeps may grow, whatever it is told."""
MEMORY = 4 << 30
"""What a worker may hold: more than any kind that is honest about it needs."""
FAULTS = {**misbehaving.FAULTS, **misbehaving.HANGING}
ORDER = ["c.honest"]
for number, name in enumerate(FAULTS, 1):
    ORDER += [f"c.{name}", f"c.honest?n={number}"]


class Hasty(LocalEngine):
    def ask(self, question, limit_s):
        if "job" in question:
            hasty = question["job"]["variant"]["title"] in misbehaving.HANGING
            limit_s = HANG_S if hasty else PATIENCE_S
        return super().ask(question, limit_s)


def held(name):
    said = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in said if line.startswith(name))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep over all faults with somebody honest after each: its records, and what it showed."""
    folder, word = tmp_path_factory.mktemp("campaign"), os.urandom(8).hex()
    table = impls.table([Path(shutil.copy(misbehaving.__file__, folder))])
    plan = make_plan(table, ORDER, ONE, this_machine())
    out = RunFolder.create(folder / "results", "box", {"seed": 0, "budget_s": 0.01, **KNOWN})
    watcher, engine = Watched(), Hasty(Settings())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(misbehaving.MARK, word)
        patch.setattr(stats, "DRIFT", 1e9)  # the machine that tests run on is busy
        patch.setattr(process, "free_memory", lambda: MEMORY)
        patch.setattr(process, "END_S", 3.0)  # a keeper that was stopped takes no longer
        before = held("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # its largest is counted from now
        try:
            sweep_of(plan, out, engine, watcher=watcher)
        finally:
            engine.close()
            out.close()
        assert held("VmHWM") - before < GROWN
        processes.until(lambda: not processes.marked(word), 20)
    return read_records(out.path), watcher.cells


def test_every_cell_has_one_record_in_the_order_of_the_plan_and_is_shown(swept):
    records, cells = swept
    assert [r.variant for r in records] == ORDER
    shown = [(name, done, total) for name, done, total, _ in cells]
    assert shown == [(name, n, len(ORDER)) for n, name in enumerate(ORDER, 1)]
    assert cells[-1][3] == pytest.approx(0.0, abs=1e-6)  # seconds left


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_as_it_should_and_says_why(swept, fault):
    statuses, word, _ = FAULTS[fault]
    (record,) = (r for r in swept[0] if r.variant == f"c.{fault}")
    assert record.status in statuses.split(), record.reason
    assert word in f"{record.reason} {record.note}"
    measured = record.status is Status.MEASURED
    assert (record.time is not None) == measured and bool(record.reason) != measured
    assert (record.reason + record.remedy + record.note).isprintable()
    assert len(record.line()) < 100_000


def test_whoever_is_honest_is_measured_whatever_came_before(swept):
    before = dict(zip(ORDER[1:], ORDER, strict=False))
    suffered = {
        before.get(r.variant): (r.status, r.reason, r.detail[-300:])
        for r in swept[0]
        if r.variant.startswith("c.honest") and r.status is not Status.MEASURED
    }
    assert suffered == {}
