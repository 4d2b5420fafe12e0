"""Records of one run that contradict each other."""

import pytest

from attnbench.core.record import Ranks, Record, Status, Work
from attnbench.sweep.start import RunRecords
from impls.problem import Problem
from tests.sweep.build import timed


def record(
    seconds, phase="forward", n=512, flops=None, variant="a", status=Status.MEASURED, **more
):
    problem = Problem(q_len=n, kv_len=n, phase=phase, **more)
    time = timed(seconds).with_(
        low_s=seconds * 0.99, high_s=seconds * 1.01, min_s=seconds * 0.98, n=20
    )
    cost = Work(flops=n * n if flops is None else flops, bytes=n)
    return Record(status=status, variant=variant, problem=problem.to_dict(), time=time, cost=cost)


TWO = Ranks(world=2, time_s=[1.0] * 2, peak_bytes=[0] * 2, sent_bytes=[0] * 2, backend="gloo")


def doubted(*records):
    known = RunRecords()
    return [known.doubt(r) for r in records]


@pytest.mark.parametrize("order", [1, -1])
def test_what_contradicts_an_earlier_record_is_not_believed(order):
    last = doubted(*[record(0.010), record(0.005, "train")][::order])[-1]
    assert (last.status, last.time) == (Status.IMPLAUSIBLE, None)
    assert last.reason == "a training step took 5 ms and its forward pass alone 10 ms"
    last = doubted(*[record(0.010, n=512), record(0.0102, n=1024)][::order])[-1]
    assert last.status is Status.IMPLAUSIBLE
    assert "its time stands still from 512 to 1024 tokens" in last.reason
    assert "while its work grows 4-fold" in last.reason


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *((record(0.010), record(s, "train")) for s in (0.00875, 0.0095, 0.010, 0.030)),
        (record(0.010, variant="b"), record(0.005, "train")),
        (record(0.010, n=256, flops=512 * 512), record(0.005, "train")),
        (record(0.010, batch=2), record(0.005, "train")),
        (record(0.010, dtype="bfloat16"), record(0.005, "train")),
        (record(0.010, n=512), record(0.011, n=1024)),  # it grew
        (record(0.0005, n=512), record(0.0005, n=1024)),  # short enough to be all overhead
        (record(0.010, n=512, flops=100), record(0.010, n=1024, flops=200)),  # work only doubled
        (record(0.010, n=512), record(0.010, n=1024, phase="train")),  # another phase
        (record(0.010), record(0.005, "backward")),  # a backward pass holds no forward pass
        (record(0.00005, device="cuda"), record(0.00005, n=1024, device="cuda")),
        (record(0.010).with_(cost=None), record(0.010, n=1024)),  # nobody knows of its work
        (record(0.010), record(0.010, n=1024).with_(cost=None)),
        [each.with_(ranks=TWO) for each in (record(0.010), record(0.010, n=1024))],  # they wait
    ],
)
def test_what_can_be_true_is_believed(first, second):
    assert doubted(first, second)[-1].status is Status.MEASURED


def test_a_record_without_a_time_is_left_alone_and_contradicts_nobody():
    failed = Record(status=Status.FAILED, reason="why", variant="a", problem=Problem().to_dict())
    assert doubted(failed, record(0.005, "train"))[0] is failed
    assert doubted(record(0.005, "train"), failed)[1] is failed


def test_a_record_that_is_not_believed_is_not_held_against_others():
    found = doubted(record(0.010), record(0.005, "train"), record(0.007, "train", n=1024))
    assert [r.status for r in found[1:]] == [Status.IMPLAUSIBLE, Status.MEASURED]
