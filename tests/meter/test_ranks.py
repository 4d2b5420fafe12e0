"""Cells that several ranks share, real processes over gloo: how they end, and their parts."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import impls
from attnbench.core.record import Status
from attnbench.gate.findings import Wrong
from attnbench.meter import ranks
from attnbench.meter.cell import CALLS, audit_ranks
from attnbench.meter.ranks import RanksClock, pages
from attnbench.meter.timed import Job
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Unavailable, Unsupported

TOP = "import os, time\nfrom impls.parallel.ring import build as right\n"
HONEST = "def build(problem, ranks):\n    return right(problem, ranks, 512)\n"
CAUSAL = Mask.parse("causal")


@pytest.fixture(scope="module")
def planted(cells_in, tmp_path_factory):
    """Cells; whatever ranks their rows have started are gone afterwards."""
    yield cells_in(tmp_path_factory.mktemp("planted"))
    for team in ranks._teams.values():
        pids = team.processes
        team.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids if pid)
    ranks._teams.clear()


def row_of_two(cells, code=HONEST):
    """A row of two ranks whose code is the given text."""
    shared = {"cross": False, "ranks": True, "shares": "impls.parallel.shares:ring"}
    more = {"masks": ("none", "causal"), "options": {"world": 1}}
    return cells.variant(TOP + code, **shared, **more).with_options({"world": "2"})


RING, ULYSSES = (impls.table().find(f"{name}?world=2") for name in ("ring", "ulysses"))
ALL = ("forward", "dq", "dk", "dv")


def sizes(problem):
    """Bytes of one of two ranks' share of q, k, v and the output."""
    b, n, each = problem.batch, problem.q_len // 2, problem.item_bytes
    d, e = problem.head_dim, problem.v_head_dim
    q, k = (b * heads * n * d * each for heads in (problem.heads, problem.kv_heads))
    return q, k, b * problem.kv_heads * n * e * each, b * problem.heads * n * e * each


def sent_by_ring(problem):
    """(W-1)(K+V) forward; the same again backward, and W (dK+dV) in four bytes a number or more."""
    _, k, v, _ = sizes(problem)
    wide = max(4, problem.item_bytes) // problem.item_bytes
    back = (k + v) + 2 * wide * (k + v)
    return {"forward": k + v, "backward": back, "train": k + v + back}[problem.phase]


def sent_by_ulysses(problem):
    """(W-1)/W of Q, K, V and O forward, and of their gradients backward."""
    once = sum(sizes(problem)) // 2
    return once * {"forward": 1, "backward": 1, "train": 2}[problem.phase]


@pytest.mark.parametrize(
    ("row", "phase", "more"),
    [
        (RING, "train", {"mask": Mask.parse("none"), "kv_heads": 2, "heads": 4}),
        (ULYSSES, "train", {"dtype": "bfloat16", "v_head_dim": 16}),
        (RING, "forward", {}),
    ],
    ids=["grouped", "bfloat16", "forward"],
)
def test_what_is_right_is_measured_and_says_what_each_rank_did(planted, row, phase, more):
    problem = planted.problem(**{"phase": phase, "mask": CAUSAL, **more})
    ceilings = {"flops": {"float32": 1e12}, "copy": {"1000000": 1e11}}
    more_asked = {"ceilings": ceilings, "energy": True, "bits": phase == "train"}
    record = planted.measure(row, problem, **more_asked)
    assert (record.status, record.reason) == (Status.MEASURED, "")
    assert set(record.error) == set(ALL if problem.gradients else ALL[:1])
    sent = (sent_by_ring if row is RING else sent_by_ulysses)(problem)
    told, time = record.ranks, record.time
    assert (told.world, told.backend, told.sent_bytes) == (2, "gloo", [sent, sent])
    assert (time.clock, time.audit_clock) == ("ranks", "e2e")
    assert 0 < max(told.time_s) <= time.median_s * 1.0001
    assert len(told.time_s) == 2
    assert record.memory.peak_bytes == max(told.peak_bytes) > 0
    assert record.memory.method.startswith("the largest of 2 ranks")
    assert (record.memory.saved_bytes is None) == (not problem.gradients)
    assert record.energy.joules is None
    assert "several processes" in record.energy.why
    assert record.note == "2 ranks of 1 thread each over gloo"
    if phase == "train":
        assert record.determinism.repeats is True
    if "dtype" not in more:  # of two devices, each with these ceilings
        least = max(record.cost.flops / 1e12, record.cost.bytes / 1e11) / 2
        assert record.share_of_ceiling == pytest.approx(least / time.median_s)


def test_two_variants_may_stand_ready_at_once(planted):
    problem = planted.problem(phase="train", mask=CAUSAL)
    sides = [planted.bench.ready(Job(row, problem)) for row in (RING, ULYSSES, RING)]
    for ready in (*sides, *sides[::-1]):
        timed = ready.timed()
        ready.clock().samples(timed.before, timed.run, 2)
        timed.settle()
        assert timed.wrong() is None


@pytest.mark.slow
def test_three_ranks_are_as_right_as_two(planted):
    for name in ("ring", "ulysses"):
        row = impls.table().find(f"{name}?world=3")
        problem = planted.problem(
            q_len=36, kv_len=36, heads=6, kv_heads=3, phase="train", mask=CAUSAL
        )
        record = planted.measure(row, problem)
        assert (record.status, record.reason) == (Status.MEASURED, "")
        assert len(record.ranks.time_s) == 3


# ---- how ranks end ----


def gone(pids, within_s=5.0):
    """Whether none of them is there any more."""
    until = time.monotonic() + within_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


IN_RANK_1 = (
    "def build(problem, ranks):\n    inner = right(problem, ranks, 512)\n"
    "    def attend(q, k, v):\n        out = inner(q, k, v)\n"
    "        if ranks.rank == 1:\n            {deed}\n        return out\n    return attend\n"
)


@pytest.mark.parametrize(
    ("deed", "status", "says"),
    [
        ("os.kill(os.getpid(), 9)", "crashed", "rank 1 died of SIGKILL in its forward pass"),
        *(
            pytest.param(*row, marks=pytest.mark.slow)  # a team that was in trouble is ended
            for row in [
                ("time.sleep(1000)", "timed_out", "rank 1 was still at its forward pass after 3 s"),
                ("raise ValueError('no')", "failed", "rank 1 raised ValueError at planted"),
                ("return out * 1.001", "wrong", "relative error of forward"),
                ("q.zero_().copy_(q)", "wrong", "rank 1: it changed its input q"),
                ("torch.set_num_threads(3)", "wrong", "rank 1: it left changed what other"),
            ]
        ),
    ],
)
def test_what_one_rank_does_is_said_of_it_and_the_next_cell_gets_new_ones(
    planted, monkeypatch, deed, status, says
):
    pids = ranks.team_for(2, "cpu").processes
    assert ranks.team_for(2, "cpu").processes == pids  # the same for all cells
    if "sleep" in deed:
        monkeypatch.setattr(ranks, "CALL_LIMIT_S", 3.0)
    row, problem = row_of_two(planted, IN_RANK_1.format(deed=deed)), planted.problem(mask=CAUSAL)
    record = planted.measure(row, problem, timed="threads" in deed)
    assert record.status == status
    assert says in record.reason
    monkeypatch.undo()
    assert "1.001" in deed or gone(pids)
    if "kill" not in deed:  # starting them takes seconds
        assert planted.measure(row_of_two(planted), problem, timed=False).status is Status.MEASURED


# ---- who is to blame, without any process --------------------------------------------------------

WAITS = '  File "/x/impls/parallel/ranks.py", line 30 in wait\n  File "/x/ring.py", line 9 in go'
WORKS = '  File "/x/ring.py", line 7 in attend'


AFTER = " in their forward pass after 240 s"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((WAITS, WORKS),
         "rank 1 was still at its forward pass after 240 s, and rank 0 was waiting"),
        ((WORKS, WAITS, WORKS),
         "ranks 0 and 2 were still at their forward pass after 240 s, and rank 1 was waiting"),
        ((WAITS, WAITS), "ranks 0 and 1 were waiting for each other" + AFTER),
        ((WAITS,), "rank 0 was still waiting for others in its forward pass after 240 s"),
    ],
)  # fmt: skip
def test_those_that_are_stuck_are_named_and_those_that_wait(words, reason):
    lost = ranks.silent(dict(enumerate(words)), "forward pass", 240.0)
    assert str(lost) == lost.fields["reason"] == reason
    assert lost.fields["status"] is Status.TIMED_OUT


LEFT = {"failed": {"status": "failed", "reason": "it raised Lost"}, "exchanging": True}
RAISED = {"failed": {"status": "failed", "reason": "it raised ValueError"}, "exchanging": False}


@pytest.mark.parametrize(
    ("troubles", "kind", "says"),
    [
        ({0: LEFT, 2: RAISED}, ranks.RankLost, "rank 2 raised ValueError"),
        ({0: LEFT}, ranks.RankLost, "rank 0 raised Lost"),
        ({1: {"wrong": "it is off"}, 0: LEFT}, Wrong, "rank 1: it is"),
        ({0: {"unsupported": "not so"}}, Unsupported, "not so"),
        ({0: {"unavailable": ["no such thing", "get one"]}}, Unavailable, "no such thing"),
    ],
)
def test_one_that_was_left_in_the_lurch_is_not_blamed(troubles, kind, says):
    told = {rank: ranks._Troubled(answer) for rank, answer in troubles.items()}
    lost = ranks.fault(told, "call", 1.0)
    assert type(lost) is kind
    assert str(lost).startswith(says)


# ---- the parts that need no rank ----

PROBLEM = Problem(
    batch=2, heads=4, kv_heads=2, q_len=6, kv_len=6, head_dim=3, v_head_dim=5, phase="train"
)


def test_pages_are_the_same_memory_wherever_they_are_mapped():
    with ranks.shared_file("pages") as (file, place):
        made = pages(PROBLEM, file)
        other_file = os.open(place, os.O_RDWR)
        other = pages(PROBLEM, other_file)
        os.close(other_file)
    assert list(made) == ["q", "k", "v", "out", "dout", "dq", "dk", "dv"]
    for number, tensor in enumerate(made.values()):
        tensor.fill_(number)
    for number, tensor in enumerate(other.values()):
        assert bool((tensor == number).all())  # each has a place of its own
    assert (other["out"].shape, other["dk"].shape) == ((2, 4, 6, 5), (2, 2, 6, 3))


class Scripted:
    """Ranks that spend what the script says at each call."""

    def __init__(self, *script):
        self._script, self.spent, self.checked = iter(script), [0.0, 0.0], 0

    def begin(self):
        self.spent = [0.0, 0.0]

    def check(self):
        self.checked += 1

    def call(self):
        more = next(self._script)
        for rank, seconds in enumerate(more):
            self.spent[rank] += seconds


def test_what_goes_before_a_call_is_not_counted_even_of_the_next():
    ranks = Scripted((9.0, 9.0), (1.0, 2.0), (9.0, 9.0), (2.0, 1.0))
    clock = RanksClock(ranks)
    assert clock.samples(ranks.call, ranks.call, 2) == [2.0, 2.0]
    assert clock.taken == [[1.0, 2.0], [2.0, 1.0]]


def test_no_rank_can_have_taken_longer_than_the_call_from_end_to_end():
    said = "rank 1 says that it took 1e+05 ms of a call that took"
    for each, implausible in (((1e-9, 2e-9), ""), ((0.0, 100.0), said)):
        ranks = Scripted(*[each] * CALLS)
        timed = SimpleNamespace(before=lambda: None, run=ranks.call, settle=lambda: None)
        audit = audit_ranks(timed, ranks)
        assert (audit.implausible or "").startswith(implausible) and audit.clock == "e2e"
        assert bool(audit.implausible) == bool(implausible) and ranks.checked == 1
