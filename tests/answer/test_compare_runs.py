"""Two run folders written by hand: what is said of them together, and what is refused."""

import itertools
import json

import numpy as np
import pytest

from attnbench.answer.compare_runs import Incomparable, compare_runs
from attnbench.comparison import Verdict
from attnbench.record import PROTOCOL, Memory, Record, Status, Time
from attnbench.store import RunFolder, StoreError
from impls.problem import Problem

HEADER = {
    "protocol": PROTOCOL, "seed": 0, "budget_s": 0.12, "tables": [],
    "machine": {"name": "box", "cpu": "Some CPU", "cores": 2, "gpus": [], "torch_cuda": None,
                "versions": {"torch": "2.13.0", "numpy": "2.4.6"}},
    "settings": {"threads": 1, "environment": {"OMP_NUM_THREADS": "1"}},
    "code": {"commit": "aaaa", "dirty": False},
}  # fmt: skip
GPU = {"name": "NVIDIA H100", "driver": "570.1", "capability": 9.0}


def samples(seed=0, n=40, spread=0.005, scale=1e-3):
    return list(scale * np.random.default_rng(seed).lognormal(0, spread, n))


def timed(variant="sdpa", taken=None, *, peak=1000, length=8, device="cpu", **more):
    taken = samples() if taken is None else taken
    median = float(np.median(taken)) if taken else 1.0
    time = Time(**{
        "median_s": median, "low_s": median, "high_s": median, "q25_s": median, "q75_s": median,
        "min_s": median, "n": len(taken), "clock": "host", "stop": "budget", "samples_s": taken,
        **more,
    })  # fmt: skip
    memory = Memory(peak_bytes=peak, saved_bytes=None, expected_bytes=None, method="made up")
    problem = Problem(q_len=length, kv_len=length, device=device)
    return Record(status=Status.MEASURED, variant=variant, problem=problem.to_dict(), time=time,
                  memory=memory)  # fmt: skip


def ended(status, variant="sdpa", reason="it was so"):
    problem = Problem(q_len=8, kv_len=8).to_dict()
    said = "" if status == "measured" else reason
    return Record(status=Status(status), variant=variant, problem=problem, reason=said)


@pytest.fixture
def run(tmp_path):
    """Writes a run folder: records, and what its header has otherwise (``machine.cores=8``)."""

    numbers = itertools.count()

    def written(*records, **changes):
        header = json.loads(json.dumps(HEADER))
        for path, value in changes.items():
            *rooms, last = path.split("__")
            place = header
            for room in rooms:
                place = place[room]
            place[last] = value
        folder = RunFolder.create(tmp_path / str(next(numbers)), "box", header)
        for record in records:
            folder.append(record)
        folder.close()
        return folder.path

    return written


def verdicts(found):
    return [c.comparison and c.comparison.verdict for c in found.cells]


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


def test_samples_that_have_no_logarithm_are_left_out(run):
    found = compare_runs(run(timed(taken=[0.0] * 30)), run(timed()))
    assert verdicts(found) == [None]
    assert found.cells[0].notes == ("one has no samples above nought",)
    mixed = compare_runs(run(timed(taken=[0.0, *samples()])), run(timed()))
    assert mixed.cells[0].comparison.n == 40


@pytest.mark.parametrize(
    ("noise", "margin"),
    [
        (None, 0.05), (0.02, 0.05), (0.09, 0.09), ({"short": 0.01, "long": 0.08}, 0.08),
        ([{"call_s": 9.0, "floor": 0.07, "trials": 20, "pairs": 80},
          {"call_s": 1e-3, "floor": 0.06, "trials": 8, "pairs": 80}], 0.07),
        ({"cpu": [{"call_s": 9.0, "floor": 0.11}]}, 0.11), ("loud", 0.05),
    ],
)  # fmt: skip
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


def test_a_cell_measured_twice_counts_as_it_was_last(run):
    late = timed(taken=[2 * s for s in samples(3)])
    found = compare_runs(run(timed(), late), run(late))
    assert verdicts(found) == [Verdict.EQUIVALENT]


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
    [("unsupported", "wrong", "worse"), ("failed", "wrong", "worse"), ("wrong", "failed", "better"),
     ("out_of_memory", "crashed", "worse"), ("unsupported", "unavailable", ""),
     ("timed_out", "out_of_memory", "")],
)  # fmt: skip
def test_one_failure_may_be_worse_than_another(run, a, b, change):
    found = compare_runs(run(ended(a)), run(ended(b)))
    assert [c.change for c in found.cells] == [change]
    assert found.exit_status == (change == "worse")


def test_cells_without_a_time_that_ended_alike_are_counted_and_not_shown(run):
    both = [ended("unsupported"), ended("failed", "other"), timed("third")]
    found = compare_runs(run(*both), run(*both))
    assert (found.alike, len(found.cells)) == (2, 1)
    assert found.exit_status == 0


# ---- which cells ---------------------------------------------------------------------------------


def test_cells_of_one_side_alone_are_listed(run):
    a, b = run(timed("x"), timed("y")), run(timed("x"), timed("x", length=16))
    found = compare_runs(a, b)
    assert found.only_a == ("y on forward, mask none, 8 tokens, b1 h8/8 d64 float32",)
    assert found.only_b == ("x on forward, mask none, 16 tokens, b1 h8/8 d64 float32",)
    assert len(found.cells) == 1


def test_runs_without_a_cell_in_common_are_refused(run):
    a, b = run(timed("x")), run(timed("y"))
    with pytest.raises(Incomparable) as caught:
        compare_runs(a, b)
    said = str(caught.value)
    assert f"{a} and {b} have no cell in common: the first has x on forward" in said
    assert said.endswith("measure the same grid twice")
    with pytest.raises(Incomparable, match="the second no record"):
        compare_runs(a, run())
    assert issubclass(Incomparable, StoreError)


@pytest.mark.parametrize("where", ["header", "record"])
def test_runs_of_unlike_protocols_are_refused(run, where):
    if where == "header":
        old = run(timed(), protocol=1)
    else:
        old = run(Record.from_dict({**timed().to_dict(), "protocol": 1}))
    with pytest.raises(Incomparable) as caught:
        compare_runs(old, run(timed()))
    assert f"{old} was measured with protocol 1" in str(caught.value)
    assert "numbers of unlike protocols are never compared; measure again" in str(caught.value)


def test_a_run_whose_own_records_are_of_two_protocols_is_refused_even_against_itself(run):
    mixed = run(timed(), Record.from_dict({**timed("b").to_dict(), "protocol": 1}))
    with pytest.raises(Incomparable, match="protocol 1 and 2"):
        compare_runs(mixed, mixed)


def test_what_is_no_run_is_refused_in_the_stores_words(run, tmp_path):
    with pytest.raises(StoreError, match="there is no run folder"):
        compare_runs(run(timed()), tmp_path / "nowhere")


# ---- how the runs differ -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("machine__name", "bax", ("machine", "box", "bax")),
        ("machine__cpu", "Other", ("cpu", "Some CPU", "Other")),
        ("machine__cores", 8, ("cores", "2", "8")),
        ("machine__versions__torch", "2.12.0", ("torch", "2.13.0", "2.12.0")),
        ("machine__torch_cuda", "13.0", ("torch's CUDA", "nothing", "13.0")),
        ("settings__threads", 2, ("threads", "1", "2")),
        ("settings__environment__OMP_NUM_THREADS", "4", ("OMP_NUM_THREADS", "1", "4")),
        ("settings__environment__NEW", "4", ("NEW", "nothing", "4")),
        ("code__commit", "bbbb", ("commit", "aaaa", "bbbb")),
        ("code__dirty", True, ("uncommitted changes", "False", "True")),
        ("seed", 5, ("seed", "0", "5")), ("budget_s", 0.3, ("budget", "0.12", "0.3")),
        ("tables", ["/a.py"], ("tables", "nothing", "/a.py")),
    ],
)  # fmt: skip
def test_each_thing_that_the_headers_have_otherwise_is_said(run, path, value, said):
    found = compare_runs(run(timed()), run(timed(), **{path: value}))
    assert [(d.what, d.a, d.b) for d in found.differences] == [said]


def test_boards_are_told_one_by_one(run):
    a = run(timed(device="cuda"), machine__gpus=[GPU])
    b = run(timed(device="cuda"), machine__gpus=[{**GPU, "driver": "580.2"}])
    found = compare_runs(a, b)
    assert [(d.what, d.a, d.b) for d in found.differences] == [("gpu 0 driver", "570.1", "580.2")]
    assert not found.across_devices


def test_when_and_where_they_were_taken_is_no_difference(run):
    a = run(timed(), started="one day", command="attnbench run")
    b = run(timed(), started="another", command="attnbench run --out x", folder="elsewhere")
    assert compare_runs(a, b).differences == ()


def test_a_cpu_and_a_gpu_are_compared_and_marked(run):
    a = run(timed())
    b = run(timed(device="cuda", clock="events"), machine__gpus=[GPU])
    found = compare_runs(a, b)
    assert verdicts(found) == [Verdict.EQUIVALENT]
    assert found.cells[0].across_devices and found.across_devices
    assert found.cells[0].notes == ("the clocks are not the same: host and events",)


def test_runs_that_share_a_device_are_matched_by_it(run):
    both = [timed(), timed(device="cuda")]
    found = compare_runs(run(*both, machine__gpus=[GPU]), run(timed()))
    assert len(found.cells) == 1
    assert found.only_a[0].endswith("float32 cuda")


@pytest.mark.parametrize("path", ["machine__cpu", "machine__gpus"])
def test_another_model_of_the_same_kind_is_another_device(run, path):
    device, value = ("cpu", "Other") if path == "machine__cpu" else ("cuda", [GPU])
    a, b = run(timed(device=device)), run(timed(device=device), **{path: value})
    assert compare_runs(a, b).across_devices
    assert not compare_runs(a, a).across_devices


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
