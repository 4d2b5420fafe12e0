"""Killed by -9 at any moment: what was measured stays, nothing comes twice, no process is left."""

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import impls
from attnbench.core.disk import StoreError
from attnbench.core.machine import this_machine
from attnbench.core.record import Status
from attnbench.core.run_folder import RunFolder
from attnbench.core.store import read_header, read_records
from attnbench.sweep import sweep
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.plan import make_plan
from attnbench.sweep.start import RunRecords
from attnbench.sweep.sweep import Slot
from impls.loading import load_file

starting = load_file(Path(__file__).with_name("starting.py"))
sweeping = starting.sweeping
SEED = 20261122
NEW, GOING_ON = 12, 40
"""Kills of runs that have just begun, and of one that goes on where it was."""
VARIANTS = [
    *(f"c.honest?n={n}" for n in range(16)), "sdpa.cudnn", "c.gives_nan", "c.note_that_raises",
    "c.cost_beyond_all_memory", "einsum",
]  # fmt: skip
GRID = ["--seq", "16,24", *starting.SMALL]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    return [word for table in sweeping.laid_out(folder)[:2] for word in ("--table", table)]


def ended(path):
    """How each cell ended; what noise alone may doubt counts as measured."""
    alike = {Status.IMPLAUSIBLE: Status.MEASURED}
    return {r.key: str(alike.get(r.status, r.status)) for r in read_records(path)}


class Killing:
    """Starts a run again and again, and kills it; what was kept before has to be kept after."""

    def __init__(self, tables, out, word):
        self.words = [*VARIANTS, *GRID, *tables, "--out", out]
        self.out, self.word, self.random = out, word, random.Random(SEED)
        self.kills = 0

    def after(self, seconds, *words, path=None, a_record_first=False):
        """Kill it so long after its start, or after its next record."""
        before = starting.lines(path) if path else []
        with starting.started(self.word, *words) as process:
            end = time.monotonic() + 60
            while a_record_first and process.poll() is None and time.monotonic() < end:
                if len(starting.lines(path)) > len(before):
                    break
                time.sleep(0.01)
            time.sleep(seconds)
            self.kills += process.poll() is None
        starting.until_gone(self.word)
        if path:
            now = starting.lines(path) + starting.lines(path, "spoiled.jsonl")
            assert set(before) <= set(now)
            assert [json.loads(line)["status"] for line in now]

    def new(self):
        """Runs that die young: each is no run at all, or one that can be gone on with."""
        for _ in range(NEW):
            self.after(self.random.uniform(0.1, 5.0), *self.words)
        runs = [path for path in self.out.glob("*/2*") if path.is_dir()]
        for path in runs:
            try:
                read_header(path)
            except StoreError as error:
                assert "start a new" in str(error)
                continue
            list(read_records(path))
            yield path


def test_the_process_that_sweeps_may_be_killed_fifty_times_and_every_cell_is_there_once(
    tables, tmp_path
):
    with sweeping.marked() as word:
        clean = Killing(tables, tmp_path / "clean", word)
        done = starting.finished(word, *clean.words)
        assert done.returncode == 1, done.stderr  # one of them is wrong, and one fails
        (wanted,) = (ended(path) for path in (tmp_path / "clean").glob("*/2*"))

        killing = Killing(tables, tmp_path / "killed", word)
        runs = list(killing.new())
        assert runs
        path = runs[-1]
        for number in range(GOING_ON):
            some = number % 4 == 3
            seconds = killing.random.uniform(0.0, 1.0) if some else killing.random.uniform(0.1, 5)
            if set(ended(path)) < set(wanted):
                killing.after(seconds, "--resume", path, *tables, path=path, a_record_first=some)
            else:
                killing.after(seconds, *killing.words)
        assert killing.kills >= 50
        left = len(set(wanted) - set(ended(path)))
        done = starting.finished(word, "--resume", path, *tables)
        assert done.returncode == 1, done.stderr
        assert f"[1/{left}, " in done.stderr or not left  # and nothing that was there before
        starting.until_gone(word)
    assert ended(path) == wanted
    assert set(Counter(r.key for r in read_records(path)).values()) == {1}
    assert len(wanted) == 2 * len(VARIANTS)


class Hunted(sweeping.Hasty):
    """An engine whose worker, or its keeper, somebody kills now and then."""

    def __init__(self, chance, most):
        super().__init__(())
        self._random, self._chance, self._left = random.Random(SEED), chance, most
        self.killed = 0

    def ask(self, question, limit_s):
        if self._left and self._child is not None and self._random.random() < self._chance:
            self._left -= 1
            who = self.pid if self._random.random() < 0.7 else self._child.keeper.pid
            late = self._random.choice([0.02, 0.3])  # within a cell, or when it may be over
            threading.Timer(self._random.uniform(0, late), self._kill, (who,)).start()
        return super().ask(question, limit_s)

    def _kill(self, who):
        try:
            os.kill(who, signal.SIGKILL)
            self.killed += 1
        except ProcessLookupError:
            pass  # its time had come already


def test_workers_killed_at_random_times_cost_their_own_cells_and_no_other(tmp_path):
    table = sweeping.laid_out(tmp_path)[0]
    names = [f"c.honest?n={n}" for n in range(1, 41)]
    plan = make_plan(impls.table([table]), names, sweeping.GRID, this_machine())
    folder = RunFolder.create(tmp_path, "box", {"seed": 0, "budget_s": 0.01, **sweeping.KNOWN})
    with pytest.MonkeyPatch.context() as patch, sweeping.marked() as word:
        patch.setattr(sweep, "MARGIN", 1e9)
        engine = Hunted(chance=0.4, most=15)
        try:
            for _ in range(10):  # a run whose canary can't be read twice ends with a sentence
                done = RunRecords(read_records(folder.path))
                try:
                    sweep.sweep(
                        plan,
                        done,
                        folder,
                        [Slot(engine)],
                        sweeping._Quiet(),
                        sweep.Interrupt(print),
                    )
                    break
                except WorkerLost:
                    continue
        finally:
            engine.close()
            folder.close()
        starting.until_gone(word)
    records = list(read_records(folder.path))
    assert engine.killed >= 5
    assert [r.variant for r in records] == names
    ends = Counter(r.status for r in records)
    assert set(ends) <= {Status.MEASURED, Status.CRASHED}
    assert ends[Status.MEASURED] > len(names) // 2
    assert sum("its worker died first" in r.note for r in records) >= 3  # and were asked again
    assert all("SIGKILL" in r.reason + r.note for r in records if r.status is Status.CRASHED)
