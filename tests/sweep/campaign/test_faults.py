"""Whatever a variant does, its own cell says so, and nobody else's suffers."""

from pathlib import Path

import pytest

import impls
from attnbench.core import process, stats
from attnbench.core.machine import this_machine
from attnbench.core.process import LAST_WORDS
from attnbench.core.record import Status
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import read_records
from attnbench.sweep.plan import make_plan
from impls.loading import load_file
from tests.sweep.build import KNOWN, ONE, Watched, sweep_of

campaign = load_file(Path(__file__).with_name("campaign.py"))
GROWN = 48 << 20
"""By so much the process that sweeps may grow, whatever it is told."""
MEMORY = 4 << 30
"""What a worker may hold: more than any kind that is honest about it needs."""


class Swept:
    """One sweep over kinds of faults with somebody honest after each."""

    def __init__(self, kinds, folder):
        self.kinds, self.order = kinds, ["c.honest"]
        for number, kind in enumerate(kinds, 1):
            self.order += [kind.label, f"c.honest?n={number}"]
        table = impls.table([campaign.laid_out(folder)])
        plan = make_plan(table, self.order, ONE, this_machine())
        out = RunFolder.create(folder / "results", "box", {"seed": 0, "budget_s": 0.01, **KNOWN})
        self.watcher, self.workers = Watched(), set()
        engine = campaign.Hasty(kind.label for kind in kinds if kind.hangs)
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
        self.records = list(read_records(out.path))

    @staticmethod
    def _held(name):
        said = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in said if line.startswith(name))

    def of(self, label):
        return next(r for r in self.records if r.variant == label)


@pytest.fixture(
    scope="module",
    params=[pytest.param(True, id="quick"), pytest.param(False, id="rest", marks=pytest.mark.slow)],
)
def swept(request, tmp_path_factory):
    kinds = [kind for kind in campaign.faults.KINDS if kind.quick is request.param]
    return Swept(kinds, tmp_path_factory.mktemp("campaign"))


def test_every_cell_has_one_record_in_the_order_of_the_plan_and_is_shown(swept):
    assert [r.variant for r in swept.records] == swept.order
    count = len(swept.order)
    shown = [(name, done, total) for name, done, total, _ in swept.watcher.cells]
    assert shown == [(name, n, count) for n, name in enumerate(swept.order, 1)]
    assert swept.watcher.cells[-1][3] == pytest.approx(0.0, abs=1e-6)  # seconds left
    assert swept.grown < GROWN


def test_a_fault_ends_as_it_should_and_says_why(swept):
    for kind in swept.kinds:
        record = swept.of(kind.label)
        assert record.status in kind.statuses, (kind, record.reason)
        assert kind.word in f"{record.reason} {record.note}", kind
        measured = record.status is Status.MEASURED
        assert (record.time is not None) == measured and bool(record.reason) != measured
        assert (record.reason + record.remedy + record.note).isprintable(), kind
        assert len(record.line()) < 100_000, kind


def test_whoever_is_honest_is_measured_whatever_came_before(swept):
    before = dict(zip(swept.order[1:], swept.order, strict=False))
    suffered = {
        before.get(r.variant): (r.status, r.reason, r.detail[-300:])
        for r in swept.records
        if r.variant.startswith("c.honest") and r.status is not Status.MEASURED
    }
    assert suffered == {}


@pytest.mark.parametrize("swept", [True], ids=["quick"], indirect=True)
def test_the_dead_leave_their_own_last_words(swept):
    last = swept.of("c.exits").detail
    assert "my last words are xyzzy" in last and len(last.encode()) <= LAST_WORDS
    assert "Traceback" in (told := swept.of("c.raises").detail) and "second line" in told
    after = swept.order[swept.order.index("c.chatters") :]  # in the same worker
    assert not any("err err" in swept.of(name).detail for name in after[1:])
