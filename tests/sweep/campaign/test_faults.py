"""Whatever a variant does, its own cell says so, and nobody else's suffers."""

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
from tests.sweep.build import KNOWN, ONE, Watched, sweep_of
from tests.sweep.campaign import campaign, faults

pytestmark = pytest.mark.slow
HANG_S, PATIENCE_S = 2.0, 120.0
"""For those that hang, and for everybody else on a busy machine."""
GROWN = 48 << 20
"""By so much the process that sweeps may grow, whatever it is told."""
MEMORY = 4 << 30
"""What a worker may hold: more than any kind that is honest about it needs."""


class Hasty(LocalEngine):
    def ask(self, question, limit_s):
        if "job" in question:
            hasty = question["job"]["variant"]["title"] in faults.HANGING
            limit_s = HANG_S if hasty else PATIENCE_S
        return super().ask(question, limit_s)


class Swept:
    """One sweep over all faults with somebody honest after each."""

    def __init__(self, folder):
        self.faults, self.order = {**faults.FAULTS, **faults.HANGING}, ["c.honest"]
        for number, name in enumerate(self.faults, 1):
            self.order += [f"c.{name}", f"c.honest?n={number}"]
        table = impls.table([campaign.laid_out(folder)])
        plan = make_plan(table, self.order, ONE, this_machine())
        out = RunFolder.create(folder / "results", "box", {"seed": 0, "budget_s": 0.01, **KNOWN})
        self.watcher, engine = Watched(), Hasty(Settings())
        with pytest.MonkeyPatch.context() as patch, campaign.marked() as word:
            patch.setattr(stats, "DRIFT", 1e9)  # the machine that tests run on is busy
            patch.setattr(process, "free_memory", lambda: MEMORY)
            patch.setattr(process, "END_S", 3.0)  # a keeper that was stopped takes no longer
            before = self._held("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # its largest is counted from now
            try:
                sweep_of(plan, out, engine, watcher=self.watcher)
            finally:
                engine.close()
                out.close()
            self.grown = self._held("VmHWM") - before
            campaign.until_gone(word)
        found = list(read_records(out.path))
        self.records, self.count = {r.variant: r for r in found}, len(found)

    @staticmethod
    def _held(name):
        said = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in said if line.startswith(name))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    return Swept(tmp_path_factory.mktemp("campaign"))


def test_every_cell_has_one_record_in_the_order_of_the_plan_and_is_shown(swept):
    count = len(swept.order)
    assert (list(swept.records), swept.count) == (swept.order, count)
    shown = [(name, done, total) for name, done, total, _ in swept.watcher.cells]
    assert shown == [(name, n, count) for n, name in enumerate(swept.order, 1)]
    assert swept.watcher.cells[-1][3] == pytest.approx(0.0, abs=1e-6)  # seconds left
    assert swept.grown < GROWN


def test_a_fault_ends_as_it_should_and_says_why(swept):
    for fault, (statuses, word, _) in swept.faults.items():
        record = swept.records[f"c.{fault}"]
        assert record.status in statuses.split(), (fault, record.reason)
        assert word in f"{record.reason} {record.note}", fault
        measured = record.status is Status.MEASURED
        assert (record.time is not None) == measured and bool(record.reason) != measured
        assert (record.reason + record.remedy + record.note).isprintable(), fault
        assert len(record.line()) < 100_000, fault


def test_whoever_is_honest_is_measured_whatever_came_before(swept):
    before = dict(zip(swept.order[1:], swept.order, strict=False))
    suffered = {
        before.get(name): (r.status, r.reason, r.detail[-300:])
        for name, r in swept.records.items()
        if name.startswith("c.honest") and r.status is not Status.MEASURED
    }
    assert suffered == {}
