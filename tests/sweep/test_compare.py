"""Two variants on each problem of a grid: who is asked what, and what becomes of the answers."""

import pytest

import impls
from attnbench.core.machine import this_machine
from attnbench.core.record import Status
from attnbench.core.stats import Pairs, Verdict, paired
from attnbench.sweep.compare import compare_cells
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import Preset
from tests.sweep.build import ToldEngine

GRID = Preset("three", seq=("16", "32", "48"), heads=(1,), head_dim=(8,), phase=("forward",))


def cells(name, grid=GRID):
    return make_plan(impls.table(), [name], grid, this_machine()).cells


def pairs(log_ratio, spread=0.0, n=40):
    logs = [log_ratio + spread * (i % 9 - 4) for i in range(n)]
    return {"pairs": Pairs(paired(logs, 0.01), [1.0] * n, [1.0] * n, "decided").to_dict()}


def compare(engine, judged="einsum", against="matmul", **more):
    given = {"seed": 3, "margin": None, "floors": [], "budget_s": 5.0, "watch": lambda _: None}
    return compare_cells(cells(judged), cells(against), engine, **{**given, **more})


def test_the_worker_is_asked_about_the_reference_first_and_the_judged_second():
    engine = ToldEngine(*[pairs(-0.5)] * 3)
    floors = [{"call_s": 0.001, "floor": 0.02}]
    compare(engine, floors=floors, margin=0.03)
    for asked, length in zip(engine.asked, (16, 32, 48), strict=True):
        names = [job["variant"]["name"] for job in asked["compare"]]
        assert names == ["matmul", "einsum"]
        assert {job["problem"]["kv_len"] for job in asked["compare"]} == {length}
        assert {job["seed"] for job in asked["compare"]} == {3}
        assert (asked["margin"], asked["floors"], asked["budget_s"]) == (0.03, floors, 5.0)


def test_a_difference_that_is_one_by_itself_may_not_stand_among_many():
    """Of forty pairs 31 lie beyond the margin: by chance once in 1,400 times, on either side."""
    weak = {
        "pairs": Pairs(
            paired([0.02] * 31 + [0.0] * 9, 0.01), [1.0] * 40, [1.0] * 40, "decided"
        ).to_dict()
    }
    assert Pairs.from_dict(weak["pairs"]).comparison.verdict is Verdict.SLOWER
    alone = compare_cells(
        cells("einsum")[:1],
        cells("matmul")[:1],
        ToldEngine(weak),
        seed=0,
        margin=None,
        floors=[],
        budget_s=1.0,
        watch=lambda _: None,
    )
    assert alone[0].comparison.verdict is Verdict.SLOWER
    p = alone[0].comparison.p
    assert 0.01 / 40 < p < 0.01
    lengths = tuple(str(n) for n in range(16, 56))
    many = Preset("forty", seq=lengths, heads=(1,), head_dim=(8,), phase=("forward",))
    found = compare_cells(
        cells("einsum", many),
        cells("matmul", many),
        ToldEngine(weak, pairs(0.5), *[pairs(0.0)] * 38),
        seed=0,
        margin=None,
        floors=[],
        budget_s=1.0,
        watch=lambda _: None,
    )
    verdicts = [c.comparison.verdict for c in found]
    assert verdicts[:3] == [Verdict.INCONCLUSIVE, Verdict.SLOWER, Verdict.EQUIVALENT]


def test_a_worker_that_dies_costs_one_problem():
    lost = WorkerLost("the worker died of SIGSEGV", "", timed_out=False)
    late = WorkerLost("it was still running", "", timed_out=True)
    found = compare(ToldEngine(lost, pairs(-0.5), late))
    assert [c.status for c in found] == [Status.CRASHED, Status.MEASURED, Status.TIMED_OUT]
    assert found[0].why == "the worker died of SIGSEGV"
    assert found[1].comparison.verdict is Verdict.FASTER
    assert found[2].comparison is None


@pytest.mark.parametrize(
    ("judged", "against"), [("sdpa.cudnn", "einsum"), ("einsum", "sdpa.cudnn")]
)
def test_what_can_not_run_here_is_not_asked_for(judged, against):
    engine = ToldEngine()
    found = compare(engine, judged, against)
    assert engine.asked == []
    assert {c.status for c in found} == {Status.UNAVAILABLE}
    assert all(c.why.startswith("sdpa.cudnn: sdpa.cudnn runs on cuda") for c in found)
