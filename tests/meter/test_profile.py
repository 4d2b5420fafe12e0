"""Where time and memory go: operators by phase, lines of code, and the peak that all agree on; from
the command line's words to profiles, and who is refused and why.
"""

import json
from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

import impls
from attnbench.core.job import Job
from attnbench.core.machine import this_machine
from attnbench.core.record import Record, Status
from attnbench.features.profile.profiles import NotProfiled, plan_cells, profile_cells
from attnbench.meter import profile
from attnbench.meter.cell import Bench
from attnbench.meter.memory import own_of
from attnbench.meter.profile import Source, Window, by_phase, kernels, moments, operators
from attnbench.sweep.presets import PRESETS
from impls.masks import Mask
from impls.problem import Problem
from tests.sweep.build import ToldEngine

N = 256
SCORES, ENDS = 4 * N * N * 4, 4 * N * 32 * 4
SMALL = {"seq": ("48",), "heads": (2,), "head_dim": (8,)}
ASKED = ["einsum train", "sdpa.flash train", "numpy forward"]


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("traces"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "PLAIN_S", 0.1)
        patch.setattr(profile, "PROFILED_S", 0.1)
        for asked in ASKED:
            name, phase = asked.split()
            sizes = {"heads": 4, "kv_heads": 4, "q_len": N, "kv_len": N, "head_dim": 32}
            problem = Problem(**sizes, v_head_dim=32, phase=phase, mask=Mask.parse("causal"))
            trace = folder / f"{asked}.json"
            job = Job(impls.table().find(name), problem, timed=False)
            made = profile.answer(Bench(), job, str(trace))
            assert made["spoiled"]
            found[asked] = json.loads(json.dumps(made["profile"], allow_nan=False))
            found[asked]["file"] = trace
    return found


def ran(profile, phase):
    (found,) = [p for p in profile["phases"] if p["name"] == phase]
    return {row["name"].removeprefix("aten::"): row for row in found["operators"]}


@pytest.mark.parametrize("asked", ASKED)
def test_the_peak_is_the_memory_meters_and_no_share_exceeds_the_whole(profiles, asked):
    p = profiles[asked]
    m, seen, arrays = p["memory"], p["observed"], "numpy" in asked
    assert m["peak_bytes"] == pytest.approx(seen["peak_bytes"], rel=0.05 if arrays else 0.01)
    if seen["saved_bytes"] is not None:
        assert m["turn_bytes"] == pytest.approx(seen["saved_bytes"] + ENDS, rel=0.01)
    assert arrays or p["caveats"] == []
    totals = [sum(row) for row in m["alive"]]
    assert max(totals) == m["peak_bytes"] == sum(s["peak_bytes"] for s in m["sources"])
    assert all(value >= 0 for row in m["alive"] for value in row)
    assert m["at_ms"] == sorted(m["at_ms"])
    assert m["at_ms"][totals.index(m["peak_bytes"])] == pytest.approx(m["peak_ms"])
    assert 0 < sum(x["forward_share"] + x["backward_share"] for x in p["lines"]) <= 1 + 1e-9
    for phase in p["phases"]:
        inside = sum(x["self_s"] for x in phase["operators"])
        assert inside + phase["outside_s"] == pytest.approx(phase["profiled_s"], rel=1e-6)


def test_allocations_have_the_lines_that_make_them_and_gradients_that_of_their_forward(profiles):
    sources = profiles["einsum train"]["memory"]["sources"]
    forward = [s for s in sources if not s["backward"]]
    softmax = next(s for s in forward if s["operator"] == "aten::_softmax")
    assert "softmax" in softmax["code"] and softmax["place"].startswith("einsum.py:")
    assert softmax["most_bytes"] == SCORES
    assert len({s["place"] for s in forward if s["operator"] == "aten::bmm"}) == 2
    back = {s["operator"]: s for s in sources if s["backward"]}
    assert back["aten::_softmax_backward_data"]["place"] == softmax["place"]
    line = next(x for x in profiles["einsum train"]["lines"] if "softmax" in x["code"])
    assert line["gradient"] == "SoftmaxBackward0" and line["backward_share"] > 0
    first = profiles["numpy forward"]["memory"]["sources"][0]
    assert first["operator"] == "array" and first["place"].startswith("numpy_.py:")
    assert "@" in first["code"]


def test_phases_are_apart_and_work_and_bytes_are_those_of_operands_and_results(profiles):
    forward, backward = (ran(profiles["einsum train"], phase) for phase in ("forward", "backward"))
    assert "_softmax" in forward.keys() - backward.keys()
    assert "_softmax_backward_data" in backward.keys() - forward.keys()
    assert (forward["bmm"]["calls"], backward["bmm"]["calls"]) == (2, 4)
    p = profiles["numpy forward"]
    assert [x["name"] for x in p["phases"]] == ["forward"]
    assert (p["plain"]["backward_s"], p["memory"]["turn_ms"]) == (None, None)
    assert p["plain"]["total_s"] == p["plain"]["forward_s"]
    assert forward["bmm"]["flops"] == 2 * (2 * 4 * N * N * 32)
    assert forward["_softmax"]["flops"] is None
    assert forward["bmm"]["bytes"] == (2 * ENDS + SCORES) + (SCORES + 2 * ENDS)
    assert forward["_softmax"]["bytes"] == pytest.approx(2 * SCORES, rel=1e-4)
    assert forward["mul_"]["bytes"] == pytest.approx(2 * SCORES, rel=1e-4)
    assert forward["view"]["bytes"] is None
    assert backward["empty_like"]["bytes"] is None  # copy_ fills it, and has the bytes
    assert backward["clone"]["bytes"] is None and backward["copy_"]["bytes"] > SCORES
    dense, fused = (profiles[f"{x} train"]["memory"] for x in ("einsum", "sdpa.flash"))
    assert dense["largest"]["bytes"] == dense["scores_bytes"] == SCORES
    assert dense["largest"]["forward"] == 2 and dense["largest"]["count"] > 2
    assert fused["largest"]["bytes"] < SCORES / 4
    trace = json.loads(profiles["einsum train"]["file"].read_text())  # as perfetto reads it
    names = {event["name"] for event in trace["traceEvents"]}
    assert {"aten::bmm", "attnbench: forward", "attnbench: backward"} <= names
    assert not any(name.startswith("attnbench line") for name in names)


def test_of_what_is_wrong_there_is_no_profile(cells):
    job = Job(cells.variant("def build(problem): return lambda q, k, v: v * 0\n"), cells.problem())
    assert profile.answer(cells.bench, job, "")["record"]["status"] == "wrong"


DEFAULTS = {
    "start_thread_id": 1, "nbytes": 0, "flops": 0, "shapes": [], "dtypes": [],
    "device_type": DeviceType.CPU, "correlation_id": 0, "linked_correlation_id": 0,
    "is_user_annotation": False,
}  # fmt: skip
PLAIN = {"forward_s": 1.0, "backward_s": 2.0}


def event(name, start, length, **more):
    """An event of the profiler's: each value is a method."""
    values = {"name": name, "start_ns": start, "duration_ns": length, **DEFAULTS, **more}
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


def test_an_operators_own_is_without_those_inside_it():
    events = [
        event("aten::outer", 0, 100),
        event("aten::inner", 10, 30),
        event("[memory]", 15, 0, nbytes=64),
        event("[memory]", 60, 0, nbytes=8),
        event("[memory]", 70, 0, nbytes=-8),
        event("aten::next", 100, 5),
        event("aten::elsewhere", 20, 50, start_thread_id=2),
        event("autograd::engine", 0, 200),
    ]
    made = list(own_of([(e.name(), e) for e in events], allocations=True))
    inside = {own.name: [one.name() for one in own.called] for own in made}
    assert {name for name in inside if inside[name]} == {"aten::outer"}
    assert inside["aten::outer"] == ["aten::inner"]
    found = {own.name[6:]: (own.nanoseconds, own.allocated) for own in made}
    assert found == {"outer": (70, 8), "inner": (30, 64), "next": (5, 0), "elsewhere": (50, 0)}


def test_operators_fall_into_the_phase_that_they_start_in():
    windows = [Window(0, 10, "forward"), Window(10, 20, "backward"), Window(30, 40, "forward")]
    starts = (-1, 0, 9, 10, 19, 20, 25, 30, 40)
    found = by_phase(operators([event("aten::a", t, 1) for t in starts]), windows, PLAIN, cuda=0)
    rows = {p["name"]: p["operators"][0] for p in found}
    assert rows["forward"]["calls"] == 1.5 and rows["backward"]["calls"] == 2  # of two and of one
    assert rows["forward"]["self_s"] == pytest.approx(1.5e-9)
    assert [p["outside_s"] for p in found] == pytest.approx([8.5e-9, 8e-9])


def test_kernels_belong_to_the_phase_of_what_launched_them():
    cuda = DeviceType.CUDA
    linked = {"device_type": cuda, "linked_correlation_id": 7}
    events = [
        event("aten::mm", 5, 2, correlation_id=7, flops=100),
        event("gemm", 15, 6, **linked),
        event("attnbench: forward", 5, 10, **linked, is_user_annotation=True),
        event("stray", 15, 6, device_type=cuda, linked_correlation_id=99),
    ]
    windows = [Window(0, 10, "forward"), Window(10, 20, "backward")]
    forward, backward = by_phase(kernels(events), windows, PLAIN, cuda=True)
    (row,) = forward["operators"]
    assert (row["name"], row["self_s"], row["flops"]) == ("gemm", pytest.approx(6e-9), 100)
    assert backward["operators"] == []


def test_arrays_belong_to_the_line_that_ended_and_the_last_is_freed_first():
    place, mib = "a.py:{}", 1 << 20
    marks = [SimpleNamespace(start_time_ns=10 * n, extra_fields=None) for n in range(1, 6)]
    for n, mark in enumerate(marks, 1):
        mark.name = profile.MARK + place.format(n)
    readings = [(0, 0), (4 * mib, 4 * mib), (5 * mib, 9 * mib), (2 * mib, 5 * mib), (0, 2 * mib)]
    one, two = (Source(place.format(n), "array", False) for n in (1, 2))
    found = profile.Timeline(marks, "cpu", readings).steps
    assert found == [
        (10, one, 4 * mib),
        (20, two, 4 * mib),  # while the line ran, and gone at its end
        (20, two, mib),
        (30, two, -4 * mib),
        (40, two, -mib),
        (40, one, -2 * mib),
        (50, one, -2 * mib),
    ]


def test_thinning_out_keeps_the_peak_and_the_end():
    totals = [8 if n % 2 == 0 else 0 for n in range(10_000)]
    totals[6001] = 108
    kept = moments(totals, 100)
    assert len(kept) <= 110 and 6001 in kept and kept[-1] == 9999
    assert moments(totals[:50], 100) == list(range(50)) and moments([], 100) == []


def planned(names, **changes):
    return plan_cells(names, impls.table(), PRESETS["compare-cpu"], changes, this_machine())


def test_phase_and_mask_are_the_first_that_all_of_them_serve():
    for names, phase, mask in (
        (["einsum"], "train", "causal"),
        (["einsum", "numpy"], "forward", "causal"),
        (["mha"], "train", "causal"),
        (["einsum", "lsh"], "train", "none"),
    ):
        cells = planned(names)
        assert {(c.problem.phase, str(c.problem.mask)) for c in cells} == {(phase, mask)}
        assert all(c.left_out is None for c in cells)


def test_what_cannot_run_says_why_and_asks_no_worker(tmp_path):
    with pytest.raises(NotProfiled, match=r"unsupported.*no backward") as stopped:
        profile_cells(planned(["numpy"], **SMALL, phase=("train",)), None, 0, tmp_path / "new")
    assert stopped.value.status == 2 and not (tmp_path / "new").exists()


def test_the_reason_is_the_workers(tmp_path):
    for status, words, ends in (
        (Status.FAILED, r"^einsum is not profiled \(failed\): it is so → do that$", 1),
        (Status.OUT_OF_MEMORY, r"^einsum is not profiled \(out of memory\): it is so → ", 2),
    ):
        (cell,) = planned(["einsum"], **SMALL)
        record = Record.of(cell.variant, cell.problem, status, "it is so", remedy="do that")
        with pytest.raises(NotProfiled, match=words) as stopped:
            profile_cells([cell], ToldEngine({"record": record.to_dict()}), 0, tmp_path)
        assert stopped.value.status == ends
