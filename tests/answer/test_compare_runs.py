"""Two run folders written by hand: verdicts, changes of status, and how the two differ."""

import itertools

import numpy as np
import pytest

from attnbench.answer.compare_runs import Incomparable, change_of, compare_runs
from attnbench.core.record import PROTOCOL, Status, read_record
from attnbench.core.stats import Verdict
from attnbench.core.wire import plain
from tests.answer import build
from tests.calling import told
from tests.report.page import runs
from tests.times import figures

BUSY = "the machine was busy: 80 %"
GPU = {"name": "NVIDIA H100", "driver": "570.1", "capability": 9.0}


def samples(seed=0, n=40, spread=0.005, scale=1e-3):
    return list(scale * np.random.default_rng(seed).lognormal(0, spread, n))


def timed(variant="sdpa", taken=None, *, peak=1000, device="cpu", **more):
    record = build.timed(variant, 8, 1.0, device=device)
    time = record.time.with_(**{**figures(samples() if taken is None else taken), **more})
    return record.with_(time=time, memory=build.memory(peak))


@pytest.fixture
def run(tmp_path):
    """Writes a run folder: records, and what its header has otherwise (``machine__cores=8``)."""
    numbers = itertools.count()

    def written(*records, **changes):
        path = runs.written(tmp_path / str(next(numbers)), records)
        told(path, **changes)
        return path

    return written


def verdicts(found):
    return [c.comparison and c.comparison.verdict for c in found.cells]


@pytest.mark.parametrize(
    ("scale", "verdict", "status"),
    [(1.03, "EQUIVALENT", 0), (1.3, "SLOWER", 1), (0.7, "FASTER", 0)],
)
def test_a_cell_of_both_runs_gets_a_verdict(run, scale, verdict, status):
    other = timed(taken=[scale * s for s in samples(1)], peak=1500)
    found = compare_runs(run(timed(peak=1000)), run(other))
    (cell,) = found.cells
    assert cell.comparison.verdict == verdict
    assert cell.comparison.ratio == pytest.approx(scale, rel=0.01)
    assert not cell.comparison.paired and cell.memory_ratio == 1.5
    assert cell.comparison.margin == found.margin == 0.05
    assert (found.exit_status, found.counts()[verdict]) == (status, 1)
    assert found.apart == pytest.approx((max(scale, 1 / scale) - 1,) * 2, rel=0.1)


def test_what_was_amiss_while_timing_is_told_and_decides_nothing(run):
    twice = [2 * x for x in samples()]
    found = compare_runs(run(timed()), run(timed(taken=twice, flags=[BUSY])))
    assert found.cells[0].notes == (f"b: {BUSY}", "so nothing is decided")
    assert found.exit_status == 0
    other = compare_runs(run(timed()), run(timed(clock="e2e")))
    assert other.cells[0].notes == ("the clocks are not the same: host and e2e",)
    few = compare_runs(run(timed(taken=samples(n=19))), run(timed(taken=samples(n=500, scale=1))))
    assert verdicts(few) == [Verdict.INCONCLUSIVE]
    assert few.cells[0].notes == ("fewer than 20 samples on a side decide nothing",)
    enough = compare_runs(run(timed(taken=samples(n=20))), run(timed(taken=samples(n=20, scale=1))))
    assert verdicts(enough) == [Verdict.SLOWER] and enough.cells[0].notes == ()


def test_the_margin_is_a_twentieth_or_the_larger_noise_floor_of_either(run):
    floors = [{"call_s": 9.0, "floor": 0.11}, {"call_s": 1e-3, "floor": 0.02}]
    for noise, margin in ((None, 0.05), (floors, 0.11)):
        a, b = run(timed(), noise=noise), run(timed(), noise=[])
        assert compare_runs(a, b).margin == compare_runs(b, a).margin == pytest.approx(margin)


@pytest.mark.parametrize(
    ("a", "b", "change"),
    [
        *(("measured", status, "worse") for status in Status if status != "measured"),
        ("unsupported", "wrong", "worse"),
        ("wrong", "failed", "better"),
        ("out_of_memory", "crashed", "worse"),
        ("unsupported", "unavailable", ""),
        ("timed_out", "out_of_memory", ""),
    ],
)
def test_what_ended_otherwise_is_better_or_worse(run, a, b, change):
    some = (timed() if x == "measured" else build.untimed("sdpa", 8, x) for x in (a, b))
    found = compare_runs(*map(run, some))
    (cell,) = found.cells
    assert (change_of(cell), cell.comparison) == (change, None), (a, b)
    assert cell.why == "the reason"
    assert found.exit_status == (change == "worse")


@pytest.mark.parametrize(
    ("header", "records", "said"),
    [
        (1, [1], "1"),
        (None, [], "None"),
        (PROTOCOL, [1, PROTOCOL], f"1 and {PROTOCOL}"),
    ],
)
def test_runs_of_unlike_protocols_are_refused(run, header, records, said):
    old = [read_record({**plain(timed(f"v{p}")), "protocol": p}) for p in records]
    old = run(*old, protocol=header)
    with pytest.raises(Incomparable) as caught:
        compare_runs(old, run(timed()))
    assert str(caught.value).startswith(f"{old} was measured with protocol {said}")


def test_runs_of_unlike_allocators_are_refused(run):
    old, plain, kept = (
        run(timed(), **more)
        for more in ({}, {"settings__allocator": "plain"}, {"settings__allocator": "kept"})
    )
    for one in (old, plain):
        with pytest.raises(Incomparable, match=r"--allocator kept; .* --allocator plain: a dense"):
            compare_runs(kept, one)
    compare_runs(old, plain)
    compare_runs(kept, kept)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("machine__name", "bax", ("machine", "slow-box-2c", "bax")),
        ("machine__versions__torch", "2.12.0", ("torch", "2.13.0+cpu", "2.12.0")),
        ("settings__environment__NEW", "4", ("NEW", "nothing", "4")),
        ("machine__gpus", [GPU], ("gpu 0 name", "nothing", "NVIDIA H100")),
        ("files", {"~/m.npy": "one"}, ("~/m.npy", "not read", "one")),
        ("legs", [{"changes": ["torch 2.1"]}], ("later legs", "none", "torch 2.1")),
        ("started", "another day", None),
    ],
)
def test_each_thing_that_the_headers_have_otherwise_is_said(run, path, value, said):
    found = compare_runs(run(timed()), run(timed(), **{path: value}))
    assert [(d.what, d.a, d.b) for d in found.differences][:1] == ([said] if said else [])


def test_a_variant_that_was_tuned_in_one_run_alone_is_said_with_its_options(run):
    default, tuned = (timed("chunked").with_(options={"block": n}) for n in (256, 64))
    found = compare_runs(run(default), run(tuned, tuned={"chunked": {"block=64": ["n8"]}}))
    assert found.cells[0].notes == ("the options are not the same: block=256 and block=64",)
    (one,) = found.differences
    assert (one.what, one.a, one.b) == ("tuned chunked block=64", "nothing", "n8")


def test_what_ran_on_another_device_is_told(run):
    gpu, both = timed(device="cuda", clock="host"), [timed(), timed(device="cuda")]
    found = compare_runs(run(timed()), run(gpu, machine__gpus=[GPU]))
    assert verdicts(found) == [Verdict.EQUIVALENT]
    assert found.cells[0].notes[0].endswith(" and NVIDIA H100")
    found = compare_runs(run(timed()), run(timed(), machine__cpu="Other"))
    assert found.cells[0].notes[0].startswith("the devices are not the same: ")
    found = compare_runs(run(*both, machine__gpus=[GPU]), run(timed()))  # matched by the device
    assert len(found.cells) == 1 and found.only_a[0].endswith("forward cuda")
    assert not found.cells[0].notes
