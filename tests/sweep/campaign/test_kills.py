"""Killed at any moment: what was measured stays, nothing comes twice, no process is left."""

import json
import random
import signal
import time

import pytest

from attnbench.core.disk import StoreError
from attnbench.core.record import Status
from attnbench.core.store import read_header, read_records
from tests.sweep.campaign import campaign

pytestmark = pytest.mark.slow
VARIANTS = [*(f"c.honest?n={n}" for n in range(1, 5)), "sdpa.cudnn", "c.gives_nan"]


def ended(path):
    """How each cell ended; what noise alone may doubt counts as measured."""
    alike = {Status.IMPLAUSIBLE: Status.MEASURED}
    found = read_records(path)
    return {(r.variant, r.problem.kv_len): alike.get(r.status, r.status) for r in found}


def killed(seconds, *words, path=None):
    """A run killed so long after its start, or after its next record where it has a folder."""
    before = campaign.lines(path) if path else []
    with campaign.marked() as word:
        with campaign.started(*words) as process:
            end = time.monotonic() + 60 * bool(path)
            while process.poll() is None and time.monotonic() < end:
                if len(campaign.lines(path)) > len(before):
                    break
                time.sleep(0.01)
            time.sleep(seconds)
        campaign.until_gone(word)
    if path:
        now = campaign.lines(path) + campaign.lines(path, "spoiled.jsonl")
        assert set(before) <= set(now)
        assert all(json.loads(line)["status"] for line in now)


def test_a_run_may_be_killed_again_and_again_and_every_cell_is_there_once(tmp_path):
    tables, chance = ["--table", campaign.laid_out(tmp_path)], random.Random(20261122)
    words = [*VARIANTS, "--seq", "16,24", *campaign.SMALL, *tables, "--out", tmp_path / "out"]
    runs = (tmp_path / "out").glob
    for seconds in (chance.uniform(0.1, 5.0), chance.uniform(0.1, 5.0), 6.0):
        killed(seconds, *words)
    while not any(runs("*/2*/run.json")):
        killed(6.0, *words)
    for path in runs("*/2*"):  # each is no run at all, or one that can be gone on with
        try:
            read_header(path)
        except StoreError as error:
            assert "is not a run" in str(error) or "start a new" in str(error)
        else:
            list(read_records(path))
    path = max(runs("*/2*/run.json")).parent
    for _ in range(3):  # kills of a run that goes on where it was
        if len(ended(path)) < 2 * len(VARIANTS):
            killed(chance.uniform(0, 0.5), "--resume", path, *tables, path=path)
    with campaign.marked() as word:
        done = campaign.finished("--resume", path, *tables)
        assert done.returncode == 1, done.stderr  # one of them is wrong
        campaign.until_gone(word)
    wanted = dict.fromkeys(VARIANTS, Status.MEASURED)
    wanted |= {"sdpa.cudnn": Status.UNAVAILABLE, "c.gives_nan": Status.WRONG}
    assert ended(path) == {(name, n): status for name, status in wanted.items() for n in (16, 24)}
    assert len(list(read_records(path))) == 2 * len(VARIANTS)


def test_ctrl_c_twice_ends_at_once_what_is_stuck_and_leaves_nothing(tmp_path):
    words = ["c.honest", "c.stands_still", "einsum", "--seq", "16", *campaign.SMALL]
    words += ["--table", campaign.laid_out(tmp_path), "--out", tmp_path / "results"]
    runs = (tmp_path / "results").glob
    with campaign.marked() as word, campaign.started(*words) as run:
        campaign.processes.until(lambda: any(map(campaign.lines, runs("*/2*"))), 120)
        time.sleep(1.0)  # it is stuck by then
        run.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert run.poll() is None
        run.send_signal(signal.SIGINT)
        assert run.wait(10) == 130
        said = run.stderr.read()
        campaign.until_gone(word)
    (path,) = (file.parent for file in runs("*/2*/run.json"))
    assert "Traceback" not in said
    assert f"attnbench run --resume {path}" in said
    assert [r.variant for r in read_records(path)] == ["c.honest"]
