"""Two run folders written by hand: the verdict and the change of status of each cell."""

import json
from pathlib import Path

import numpy as np
import pytest

from attnbench.answer.compare_runs import compare_runs
from attnbench.core.record import DamagedRun, Status
from attnbench.core.stats import Verdict
from impls.loading import load_file

folders = load_file(Path(__file__).with_name("run_folders.py"))
ended, samples, timed, verdicts = folders.ended, folders.samples, folders.timed, folders.verdicts

# ---- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "verdict", "status"),
    [(1.0, "EQUIVALENT", 0), (1.03, "EQUIVALENT", 0), (1.3, "SLOWER", 1), (0.7, "FASTER", 0)],
)
def test_a_cell_of_both_runs_gets_a_verdict(run, scale, verdict, status):
    other = [scale * s for s in samples(1)]
    found = compare_runs(run(timed()), run(timed(taken=other)))
    (cell,) = found.cells
    assert cell.comparison.verdict == verdict
    assert cell.comparison.ratio == pytest.approx(scale, rel=0.01)
    assert not cell.comparison.paired
    assert cell.comparison.margin == found.margin == 0.05
    assert found.exit_status == status
    assert found.counts()[verdict] == 1


def test_few_samples_decide_nothing(run):
    found = compare_runs(run(timed(taken=samples(n=19))), run(timed(taken=samples(n=500, scale=1))))
    assert verdicts(found) == [Verdict.INCONCLUSIVE]
    assert found.exit_status == 0


def test_samples_that_are_no_times_are_not_believed(run):
    for taken in ([0.0] * 30, [0.0, *samples()]):
        with pytest.warns(DamagedRun, match="line 1 .* can't be true"):
            found = compare_runs(run(timed(taken=taken)), run(timed()))
        assert verdicts(found) == [None]
        assert found.cells[0].status_a == "implausible"


@pytest.mark.parametrize(
    ("noise", "margin"),
    [
        (None, 0.05),
        (0.02, 0.05),
        (0.09, 0.09),
        ({"short": 0.01, "long": 0.08}, 0.08),
        (
            [
                {"call_s": 9.0, "floor": 0.07, "trials": 20, "pairs": 80},
                {"call_s": 1e-3, "floor": 0.06, "trials": 8, "pairs": 80},
            ],
            0.07,
        ),
        ({"cpu": [{"call_s": 9.0, "floor": 0.11}]}, 0.11),
        ("loud", 0.05),
    ],
)
def test_the_margin_is_a_twentieth_or_the_larger_noise_floor_of_either(run, noise, margin):
    a, b = run(timed(), noise=noise), run(timed(), noise=0.001)
    assert compare_runs(a, b).margin == pytest.approx(margin)
    assert compare_runs(b, a).margin == pytest.approx(margin)


def test_a_difference_among_many_cells_must_survive_the_correction(run):
    rng = np.random.default_rng(2)
    a = [timed(length=n, taken=list(rng.lognormal(0, 0.1, 25))) for n in range(1, 60)]
    b = [timed(length=n, taken=list(rng.lognormal(0.145, 0.1, 25))) for n in range(1, 60)]
    alone = [compare_runs(run(one), run(other)) for one, other in zip(a, b, strict=True)]
    together = compare_runs(run(*a), run(*b))
    separately = sum(v == [Verdict.SLOWER] for v in map(verdicts, alone))
    assert separately > verdicts(together).count(Verdict.SLOWER)


def test_a_cell_of_which_two_lines_say_different_things_is_not_compared(run):
    late, other = timed(taken=[2 * s for s in samples(3)]), timed("matmul")
    with pytest.warns(DamagedRun, match="lines 1, 2 .* none of them counts"):
        found = compare_runs(run(timed(), late, other), run(late, other))
    assert [cell.variant for cell in found.cells] == ["matmul"]


def test_memory_is_told_beside_time(run):
    found = compare_runs(run(timed(peak=1000)), run(timed(peak=1500)))
    assert found.cells[0].memory_ratio == 1.5
    assert compare_runs(run(timed(peak=0)), run(timed())).cells[0].memory_ratio is None


def test_what_was_amiss_while_timing_is_told(run):
    busy = timed(flags=["the machine was busy: 80 %"])
    found = compare_runs(run(timed()), run(busy))
    assert found.cells[0].notes == ("b: the machine was busy: 80 %", "so nothing is decided")
    twice = [2 * x for x in samples()]
    slower = timed(taken=twice, flags=["the machine was busy: 80 %"])
    assert compare_runs(run(timed()), run(timed(taken=twice))).exit_status == 1
    assert compare_runs(run(timed()), run(slower)).exit_status == 0
    other = compare_runs(run(timed()), run(timed(clock="e2e")))
    assert other.cells[0].notes == ("the clocks are not the same: host and e2e",)


# ---- statuses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.MEASURED])
def test_what_was_measured_and_is_no_more_is_a_finding(run, status):
    found = compare_runs(run(timed()), run(ended(status)))
    (cell,) = found.cells
    assert (cell.change, cell.comparison, found.exit_status) == ("worse", None, 1)
    assert cell.reason == "b: it was so"
    back = compare_runs(run(ended(status)), run(timed()))
    assert (back.cells[0].change, back.exit_status) == ("better", 0)
    assert back.cells[0].reason == "a: it was so"


@pytest.mark.parametrize(
    ("a", "b", "change"),
    [
        ("unsupported", "wrong", "worse"),
        ("failed", "wrong", "worse"),
        ("wrong", "failed", "better"),
        ("out_of_memory", "crashed", "worse"),
        ("unsupported", "unavailable", ""),
        ("timed_out", "out_of_memory", ""),
    ],
)
def test_one_failure_may_be_worse_than_another(run, a, b, change):
    found = compare_runs(run(ended(a)), run(ended(b)))
    assert [c.change for c in found.cells] == [change]
    assert found.exit_status == (change == "worse")


def test_cells_without_a_time_that_ended_alike_are_counted_and_not_shown(run):
    both = [ended("unsupported"), ended("failed", "other"), timed("third")]
    found = compare_runs(run(*both), run(*both))
    assert (found.alike, len(found.cells)) == (2, 1)
    assert found.exit_status == 0


# ---- written down --------------------------------------------------------------------------------


def test_all_of_it_can_be_sent(run):
    a = run(timed(), timed("y"), ended("wrong", "z"))
    b = run(timed(taken=samples(4, scale=2e-3)), timed("z"), machine__cores=4)
    sent = json.loads(json.dumps(compare_runs(a, b).to_dict(), allow_nan=False))
    assert sent["counts"]["SLOWER"] == 1
    assert sent["counts"]["better"] == 1
    assert sent["differences"] == [{"what": "cores", "a": "2", "b": "4"}]
    assert sent["cells"][0]["comparison"]["paired"] is False
    assert sent["cells"][1]["status_a"] == "wrong"
    assert (len(sent["only_a"]), sent["alike"], sent["margin"]) == (1, 0, 0.05)
    assert "samples" not in json.dumps(sent)


def test_a_mask_that_holds_something_else_is_a_difference(run):
    folders = [run(timed()), run(timed())]
    for folder, held in zip(folders, ("one", "other"), strict=True):
        header = json.loads((folder / "run.json").read_text())
        header["files"] = {"~/m.npy": held, f"~/{held}.py": "the same"}
        (folder / "run.json").write_text(json.dumps(header))
    assert [(d.what, d.a, d.b) for d in compare_runs(*folders).differences] == [
        ("~/m.npy", "one", "other")
    ]
