"""Ranks that die, hang, raise or refuse: the cell ends in a sentence, and nobody is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import impls
from attnbench.core.record import Status
from attnbench.gate.findings import Wrong
from attnbench.meter import ranks
from impls.spec import Unavailable, Unsupported

IN_RANK_1 = (
    "def build(problem, ranks):\n    inner = right(problem, ranks, 512)\n"
    "    def attend(q, k, v):\n        if ranks.rank == 1: {deed}\n"
    "        return inner(q, k, v)\n    return attend\n"
)


def gone(pids, within_s=5.0):
    """Whether none of them is there any more."""
    until = time.monotonic() + within_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def ended(planted, deed):
    """The record of a cell in whose second rank that happens, and whether all ranks are gone."""
    pids = ranks.team_for(2, "cpu").processes
    record = planted.run(IN_RANK_1.format(deed=deed), timed=False)
    return record, gone(pids)


def test_a_rank_that_is_killed_is_named_and_the_others_are_ended(planted):
    record, all_gone = ended(planted, "os.kill(os.getpid(), 9)")
    assert record.status is Status.CRASHED
    assert record.reason == "rank 1 died of SIGKILL in its forward pass"
    assert all_gone


@pytest.mark.slow
def test_a_rank_that_hangs_is_told_from_those_that_wait_for_it(planted, monkeypatch):
    monkeypatch.setattr(ranks, "CALL_LIMIT_S", 3.0)
    record, all_gone = ended(planted, "time.sleep(1000)")
    assert record.status is Status.TIMED_OUT
    assert record.reason == (
        "rank 1 was still at its forward pass after 3 s, and rank 0 was waiting"
    )
    assert "planted" in record.detail  # where it stood
    assert all_gone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "status", "says"),
    [
        ("raise ValueError('no more')", Status.FAILED, "rank 1 raised ValueError at planted"),
        ("raise MemoryError('too much')", Status.OUT_OF_MEMORY, "rank 1: too much"),
        ("os._exit(3)", Status.CRASHED, "rank 1 ended with status 3 in its forward pass"),
    ],
)
def test_whatever_else_ends_a_rank_is_said_of_it(planted, deed, status, says):
    record, all_gone = ended(planted, deed)
    assert record.status is status
    assert record.reason.startswith(says)
    assert all_gone


@pytest.mark.slow
def test_the_next_cell_after_a_loss_gets_ranks_of_its_own(planted):
    ended(planted, "os._exit(3)")
    assert planted.measure(planted.row(), timed=False).status is Status.MEASURED


@pytest.mark.slow
def test_a_build_that_refuses_in_a_rank_is_unsupported(planted):
    code = (
        "from impls.spec import Unsupported\n"
        "def build(problem, ranks):\n    raise Unsupported('not on a Sunday')\n"
    )
    record = planted.run(code)
    assert (record.status, record.reason) == (Status.UNSUPPORTED, "not on a Sunday")


@pytest.mark.slow
def test_ranks_go_with_whoever_started_them():
    code = (
        "import sys; from attnbench.meter.ranks import team_for\n"
        "print(*team_for(2, 'cpu').processes, flush=True); sys.stdin.read()\n"
    )
    root = str(Path(impls.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    ) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        process.send_signal(signal.SIGKILL)
    assert gone(pids)


# ---- who is to blame, without any process --------------------------------------------------------

WAITS = '  File "/x/impls/parallel/ranks.py", line 30 in wait\n  File "/x/ring.py", line 9 in go'
WORKS = '  File "/x/ring.py", line 7 in attend'


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            {0: WAITS, 1: WORKS},
            "rank 1 was still at its forward pass after 240 s, and rank 0 was waiting",
        ),
        ({0: WORKS}, "rank 0 was still at its forward pass after 240 s"),
        (
            {0: WORKS, 1: WAITS, 2: WORKS},
            "ranks 0 and 2 were still at their forward pass after 240 s, and rank 1 was waiting",
        ),
        (
            {0: WAITS, 1: WAITS},
            "ranks 0 and 1 were waiting for each other in their forward pass after 240 s",
        ),
        ({1: WAITS}, "rank 1 was still waiting for others in its forward pass after 240 s"),
    ],
)
def test_those_that_are_stuck_are_named_and_those_that_wait(words, reason):
    lost = ranks.silent(words, "forward pass", 240.0)
    assert str(lost) == lost.fields["reason"] == reason
    assert lost.fields["status"] is Status.TIMED_OUT


def failed(reason, exchanging=False):
    return {"failed": {"status": "failed", "reason": reason}, "exchanging": exchanging}


@pytest.mark.parametrize(
    ("troubles", "kind", "says"),
    [
        (
            {0: failed("it raised Lost", True), 2: failed("it raised ValueError")},
            ranks.RankLost,
            "rank 2 raised ValueError",
        ),
        ({0: failed("it raised Lost", True)}, ranks.RankLost, "rank 0 raised Lost"),
        ({1: {"wrong": "it is off"}, 0: failed("it raised Lost", True)}, Wrong, "rank 1: it is"),
        ({0: {"unsupported": "not so"}}, Unsupported, "not so"),
        ({0: {"unavailable": ["no such thing", "get one"]}}, Unavailable, "no such thing"),
    ],
)
def test_one_that_was_left_in_the_lurch_is_not_blamed(troubles, kind, says):
    lost = ranks.blamed(troubles)
    assert type(lost) is kind
    assert str(lost).startswith(says)


@pytest.mark.parametrize(
    ("status", "how"),
    [(3, "ended with status 3"), (-9, "died of SIGKILL"), (-42, "died of signal 42")],
)
def test_a_rank_that_is_gone_is_named_with_how_it_ended(status, how):
    assert str(ranks.died(1, status, "forward", "")) == f"rank 1 {how} in its forward"
