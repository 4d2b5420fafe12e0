"""Killed at any moment: what was measured stays, nothing comes twice, no process is left."""

import random
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager

import pytest

from attnbench.core.record import Status
from attnbench.core.store import read_records
from tests import processes
from tests.faults import misbehaving
from tests.faults.campaign import COMMAND, SMALL, records, started

pytestmark = pytest.mark.slow
VARIANTS = [*(f"c.honest?n={n}" for n in range(1, 5)), "sdpa.cudnn", "c.gives_nan"]


@contextmanager
def running(*words):
    """A run in a process of its own, of which nothing may be left."""
    command = [COMMAND, "run", *map(str, words)]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        yield run


def killed(seconds, *words, path=None):
    """A run killed so long after its start, or after its next record where it has a folder."""
    before = records(path) if path else []
    with running(*words) as run:
        end = time.monotonic() + 60 * bool(path)
        while run.poll() is None and time.monotonic() < end:
            if len(records(path)) > len(before):
                break
            time.sleep(0.01)
        time.sleep(seconds)
        run.kill()
    assert not path or records(path)[: len(before)] == before


def test_a_run_may_be_killed_again_and_again_and_every_cell_is_there_once(tmp_path):
    tables = ["--table", shutil.copy(misbehaving.__file__, tmp_path)]
    words = [*VARIANTS, "--seq", "16,24", *SMALL, *tables, "--out", tmp_path / "out"]
    runs, chance = (tmp_path / "out").glob, random.Random(20261122)
    for seconds in (chance.uniform(0.1, 5.0), chance.uniform(0.1, 5.0), 6.0):
        killed(seconds, *words)
    while not any(runs("*/2*/run.json")):
        killed(6.0, *words)
    resume = ["--resume", path := max(runs("*/2*/run.json")).parent, *tables, "--no-report"]
    for _ in range(3):  # kills of a run that goes on where it was
        if len(records(path)) < 2 * len(VARIANTS):
            killed(chance.uniform(0, 0.5), *resume, path=path)
    with running(*resume) as run:
        _, said = run.communicate(timeout=300)
    assert run.returncode == 1, said  # one of them is wrong
    wanted = {name: {Status.MEASURED, Status.IMPLAUSIBLE} for name in VARIANTS}  # by noise
    wanted |= {"sdpa.cudnn": {Status.UNAVAILABLE}, "c.gives_nan": {Status.WRONG}}
    ended = {(r.variant, r.problem.kv_len): r.status for r in read_records(path)}
    assert set(ended) == {(name, n) for name in VARIANTS for n in (16, 24)}
    assert all(status in wanted[name] for (name, _), status in ended.items()), ended


def test_ctrl_c_twice_ends_at_once_what_is_stuck_and_leaves_nothing(tmp_path):
    words = ["c.honest", "c.stands_still", "einsum", "--seq", "16", *SMALL]
    words += ["--table", shutil.copy(misbehaving.__file__, tmp_path), "--out", tmp_path / "out"]
    runs = (tmp_path / "out").glob
    with running(*words) as run:
        processes.until(lambda: any(map(records, runs("*/2*"))), 120)
        time.sleep(1.0)  # it is stuck by then
        run.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert run.poll() is None
        run.send_signal(signal.SIGINT)
        assert run.wait(10) == 130
        said = run.stderr.read()
    (path,) = (file.parent for file in runs("*/2*/run.json"))
    assert "Traceback" not in said
    assert f"attnbench run --resume {path}" in said
    assert [r.variant for r in read_records(path)] == ["c.honest"]
