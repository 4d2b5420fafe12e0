"""Cells whose work is done by two ranks, from the gate to the record; real processes over gloo."""

import pytest

import impls
from attnbench.core.record import Status
from attnbench.meter import ranks as team
from attnbench.meter.timed import Job
from impls.masks import Mask

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


@pytest.mark.parametrize("row", [RING, ULYSSES], ids=["ring", "ulysses"])
@pytest.mark.parametrize(
    ("phase", "more"),
    [
        ("forward", {"mask": Mask.parse("none"), "kv_heads": 2, "heads": 4}),
        ("train", {"dtype": "bfloat16", "v_head_dim": 16}),
        ("train", {"mask": Mask.parse("none"), "kv_heads": 2, "heads": 4}),
        ("backward", {}),
    ],
    ids=["forward", "bfloat16", "grouped", "backward"],
)
def test_what_is_right_is_measured_and_says_what_each_rank_did(planted, row, phase, more):
    problem = planted.problem(phase=phase, **more)
    ceilings = {"flops": {"float32": 1e12}, "copy": {"1000000": 1e11}}
    record = planted.measure(row, problem, ceilings=ceilings, energy=True, bits=phase == "train")
    assert (record.status, record.reason) == (Status.MEASURED, "")
    assert set(record.error) == set(ALL if problem.gradients else ALL[:1])
    sent = (sent_by_ring if row is RING else sent_by_ulysses)(problem)
    ranks, time = record.ranks, record.time
    assert (ranks.world, ranks.backend, ranks.sent_bytes) == (2, "gloo", [sent, sent])
    assert time.clock == "ranks"
    assert time.audit_clock == "e2e"
    assert 0 < max(ranks.time_s) <= time.median_s * 1.0001
    assert len(ranks.time_s) == 2
    assert record.memory.peak_bytes == max(ranks.peak_bytes) > 0
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


def test_ranks_are_started_once_for_all_cells(planted):
    planted.measure(RING, timed=False)
    before = team.team_for(2, "cpu").processes
    planted.measure(ULYSSES, timed=False)
    planted.measure(planted.row(), timed=False)
    assert team.team_for(2, "cpu").processes == before


def test_two_variants_may_stand_ready_at_once(planted):
    problem = planted.problem(phase="train")
    sides = [planted.bench.ready(Job(row, problem)) for row in (RING, ULYSSES, RING)]
    for ready in (*sides, *sides[::-1]):
        timed = ready.timed()
        ready.clock().samples(timed.before, timed.run, 2)
        timed.settle()
        assert timed.wrong() is None


# ---- faults in the ranks -------------------------------------------------------------------------

DEEDS = {
    "one rank is off": (
        "        return inner(q, k, v) * (1.001 if ranks.rank else 1)\n", "error",
    ),
    "a result is kept": (
        "        seen.append(inner(q, k, v)) if not seen else None\n        return seen[0]\n",
        "",
    ),
    "an input is changed": (
        "        out = inner(q, k, v)\n"
        "        if ranks.rank: k.data.zero_()\n        return out\n",
        "rank 1: it changed its input k",
    ),
    "an input is written to and put back": (
        "        out, kept = inner(q, k, v), v.clone()\n"
        "        v.zero_().copy_(kept)\n        return out\n",
        "rank 0: it wrote to its input v and put it back",
    ),
    "the share has another shape": (
        "        return inner(q, k, v)[:, :, :-1]\n", "rank 0: the output has the shape",
    ),
    "what others share is changed": (
        "        torch.set_num_threads(3)\n        return inner(q, k, v)\n",
        "rank 0: it left changed what other variants share: threads (1 → 3)",
    ),
}  # fmt: skip


def code_of(deed):
    return (
        "def build(problem, ranks):\n    inner, seen = right(problem, ranks, 512), []\n"
        f"    def attend(q, k, v):\n{deed}    return attend\n"
    )


@pytest.mark.slow  # a team that was in trouble is ended: each takes another's start
@pytest.mark.parametrize("what", DEEDS)
def test_a_fault_in_a_rank_is_caught(planted, what):
    deed, says = DEEDS[what]
    record = planted.run(code_of(deed))
    assert record.status is Status.WRONG, (record.status, record.reason, record.detail)
    assert says in record.reason


def test_a_rank_that_is_a_little_off_does_not_pass(planted):
    record = planted.run(code_of(DEEDS["one rank is off"][0]), timed=False)
    assert record.status is Status.WRONG


@pytest.mark.slow
def test_three_ranks_are_as_right_as_two(planted):
    for name in ("ring", "ulysses"):
        row = impls.table().find(f"{name}?world=3")
        problem = planted.problem(q_len=36, kv_len=36, heads=6, kv_heads=3, phase="train")
        record = planted.measure(row, problem)
        assert (record.status, record.reason) == (Status.MEASURED, "")
        assert len(record.ranks.time_s) == 3
