"""Cells that several ranks share, real processes over gloo: how they end, and their parts."""

from pathlib import Path

import pytest

import impls
from attnbench.core.process import WorkerLost
from attnbench.core.record import Status
from attnbench.core.wire import Job
from attnbench.gate.findings import Wrong
from attnbench.meter import ranks
from attnbench.meter.ranks import RanksClock
from impls.masks import Mask
from impls.spec import Unavailable, Unsupported
from tests.meter.conftest import Cells
from tests.processes import gone

ALL = ("forward", "dq", "dk", "dv")
TOP = "import os, time\nfrom impls.parallel.ring import build as right\n"
HONEST = "def build(problem, ranks):\n    return right(problem, ranks, 512)\n"
CAUSAL = Mask.parse("causal")


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Cells; whatever ranks their rows have started are gone afterwards."""
    yield Cells(tmp_path_factory.mktemp("planted"))
    for team in ranks._teams.values():
        pids = team.processes
        team.close()
        assert all(map(gone, filter(None, pids)))
    ranks._teams.clear()


def row_of_two(cells, code=HONEST):
    """A row of two ranks whose code is the given text."""
    shared = {"cross": False, "ranks": True, "shares": "impls.parallel.shares:ring"}
    more = {"masks": ("none", "causal"), "options": {"world": 1}}
    return cells.variant(TOP + code, **shared, **more).with_options({"world": "2"})


def sent(row, problem):
    """Bytes that each of two ranks sends, by formula: k, v and the like are of one rank's share."""
    b, n, each = problem.batch, problem.q_len // 2, problem.item_bytes
    d, e = problem.head_dim, problem.v_head_dim
    q, k = (b * heads * n * d * each for heads in (problem.heads, problem.kv_heads))
    v, out = (b * heads * n * e * each for heads in (problem.kv_heads, problem.heads))
    if row == "ulysses":  # (W-1)/W of Q, K, V and O forward, and of their gradients backward
        return (q + k + v + out) // 2 * (2 if problem.gradients else 1)
    # (W-1)(K+V) forward; the same backward, and W (dK+dV) in four bytes a number or more
    back = (k + v) * (1 + 2 * max(4, each) // each)
    return k + v + (back if problem.gradients else 0)


@pytest.mark.parametrize(
    ("row", "more"),
    [
        ("ring", {"phase": "train", "mask": CAUSAL, "dtype": "bfloat16", "lse": True}),
        ("ring", {}),
        *(
            pytest.param(row, {"phase": "train", **more}, marks=pytest.mark.slow)
            for row, more in (
                ("ring", {"mask": Mask.parse("none"), "kv_heads": 2, "heads": 4}),
                ("ulysses", {"dtype": "bfloat16", "v_head_dim": 16}),
            )
        ),
    ],
    ids=["log-sums", "forward", "grouped", "bfloat16"],
)
def test_what_is_right_is_measured_and_says_what_each_rank_did(planted, row, more):
    problem = planted.problem(**{"mask": CAUSAL, **more})
    ceilings = {"flops": {problem.dtype: 1e12}, "copy": {"1000000": 1e11}}
    asked = {"ceilings": ceilings, "energy": True, "bits_s": 0.3 * (row == "ulysses")}
    record = planted.measure(impls.table().find(f"{row}?world=2"), problem, **asked)
    assert (record.status, record.reason) == (Status.MEASURED, "")
    names = ALL if problem.gradients else ALL[:1]
    assert {*record.error} == {*names, *["lse"] * (problem.lse is True)}
    told, time = record.ranks, record.time
    assert (told.world, told.backend, told.sent_bytes) == (2, "gloo", [sent(row, problem)] * 2)
    assert (time.clock, time.audit_clock) == ("ranks", "e2e")
    assert 0 < max(told.time_s) <= time.median_s * 1.0001 and len(told.time_s) == 2
    assert record.memory.peak_bytes == max(told.peak_bytes) > 0
    assert (record.memory.saved_bytes is None) == (not problem.gradients)
    assert record.energy.joules is None
    assert row == "ring" or record.determinism.repeats is True
    if row == "ring":  # of two devices, each with these ceilings
        least = max(record.cost.flops / 1e12, record.cost.bytes / 1e11) / 2
        assert record.share_of_ceiling == pytest.approx(least / time.median_s)


@pytest.mark.slow
def test_two_variants_may_stand_ready_at_once(planted):
    problem = planted.problem(phase="train", mask=CAUSAL)
    rows = [impls.table().find(f"{name}?world=2") for name in ("ring", "ulysses")]
    sides = [planted.bench.ready(Job(row, problem)) for row in rows]
    for ready in (*sides, *sides[::-1]):
        timed = ready.timed()
        ready.clock().samples(timed.before, timed.run, 2)
        timed.settle()
        assert timed.wrong() is None


IN_RANK_1 = (
    "def build(problem, ranks):\n    inner = right(problem, ranks, 512)\n"
    "    def attend(q, k, v):\n        out = inner(q, k, v)\n"
    "        if ranks.rank == 1:\n            {deed}\n        return out\n    return attend\n"
)


@pytest.mark.slow  # a team that was in trouble is ended
@pytest.mark.parametrize(
    ("deed", "status", "says"),
    [
        ("os.kill(os.getpid(), 9)", "crashed", "rank 1 died of SIGKILL in its forward pass"),
        ("time.sleep(1000)", "timed_out", "its ranks were still at their forward pass"),
        ("raise ValueError('no')", "failed", "rank 1 raised ValueError at planted"),
        ("return out * 1.001", "wrong", "relative error of forward"),
        ("q.zero_().copy_(q)", "wrong", "rank 1: it changed its input q"),
        ("torch.set_num_threads(3)", "wrong", "rank 1: it left changed what other"),
    ],
)
def test_what_one_rank_does_is_said_of_it_and_the_next_cell_gets_new_ones(
    planted, monkeypatch, deed, status, says
):
    pids = ranks.team_for(2, "cpu").processes
    assert ranks.team_for(2, "cpu").processes == pids  # the same for all cells
    for pid in pids:  # other machines don't reach it
        assert b"\0GLOO_SOCKET_IFNAME=lo\0" in Path(f"/proc/{pid}/environ").read_bytes()
    if "sleep" in deed:
        monkeypatch.setattr(ranks, "CALL_LIMIT_S", 3.0)
    row, problem = row_of_two(planted, IN_RANK_1.format(deed=deed)), planted.problem(mask=CAUSAL)
    record = planted.measure(row, problem, timed="threads" in deed)
    assert record.status == status
    assert says in record.reason
    monkeypatch.undo()
    assert "1.001" in deed or all(map(gone, pids))
    if "kill" not in deed:  # starting them takes seconds
        assert planted.measure(row_of_two(planted), problem, timed=False).status is Status.MEASURED


def test_the_rank_at_fault_is_named():
    raised = {"failed": {"status": "failed", "reason": "it raised ValueError"}}
    died = WorkerLost("the worker died of SIGKILL", "", timed_out=False)
    stuck = WorkerLost("it was still running", "a stack", timed_out=True)
    left = ranks._Troubled({"failed": {**raised["failed"], "reason": "it raised Lost"}})
    for troubles, kind, says in (
        ({2: ranks._Troubled(raised), 0: left}, ranks.RankLost, "rank 2 raised ValueError"),
        ({0: left, 1: died}, ranks.RankLost, "rank 1 died of SIGKILL in its call"),
        ({0: stuck, 1: stuck}, ranks.RankLost, "its ranks were still at their call after 4 min"),
        ({1: ranks._Troubled({"wrong": "it is off"}), 0: left}, Wrong, "rank 1: it is off"),
        ({0: ranks._Troubled({"unsupported": "not so"})}, Unsupported, "not so"),
        ({0: ranks._Troubled({"unavailable": ["none", "get one"]})}, Unavailable, "none"),
    ):
        lost = ranks.fault(troubles, "call", 240.0)
        assert type(lost) is kind and str(lost).startswith(says)


class Scripted:
    """Ranks that spend what the script says at each call."""

    def __init__(self, *script):
        self._script, self.spent, self.checked = iter(script), [0.0, 0.0], 0

    def begin(self):
        self.spent = [0.0, 0.0]

    def check(self):
        self.checked += 1

    def call(self):
        self.spent = [sum(both) for both in zip(self.spent, next(self._script), strict=True)]


def test_what_goes_before_a_call_is_not_counted_even_of_the_next():
    ranks = Scripted((9.0, 9.0), (1.0, 2.0), (9.0, 9.0), (2.0, 1.0))
    clock = RanksClock(ranks)
    assert clock.samples(ranks.call, ranks.call, 2) == [2.0, 2.0]
    assert clock.taken == [[1.0, 2.0], [2.0, 1.0]]
