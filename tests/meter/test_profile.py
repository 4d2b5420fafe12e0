"""Where time goes: operators by phase, and what they allocate; from the command line's words to
profiles, and who is refused and why.
"""

import json
from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

import impls
from attnbench.core.job import Job
from attnbench.core.machine import this_machine
from attnbench.core.record import Record, Status
from attnbench.features.profile import profiler
from attnbench.features.profile.profiler import Window, by_phase, kernels, operators
from attnbench.features.profile.profiles import NotProfiled, plan_cells, profile_cells
from attnbench.meter.cell import Bench
from attnbench.meter.memory import own_of
from attnbench.sweep.presets import PRESETS
from impls.masks import Mask
from impls.problem import Problem
from tests.sweep.build import ToldEngine

N = 256
SCORES, ENDS = 4 * N * N * 4, 4 * N * 32 * 4
SMALL = {"seq": ("48",), "heads": (2,), "head_dim": (8,)}
ASKED = ["einsum train", "sdpa.flash train", "numpy forward"]


def question(variant, problem, trace):
    return {"job": Job(variant, problem, timed=False).to_dict(), "trace": str(trace)}


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("traces"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiler, "PLAIN_S", 0.1)
        patch.setattr(profiler, "PROFILED_S", 0.1)
        for asked in ASKED:
            name, phase = asked.split()
            sizes = {"heads": 4, "kv_heads": 4, "q_len": N, "kv_len": N, "head_dim": 32}
            problem = Problem(**sizes, v_head_dim=32, phase=phase, mask=Mask.parse("causal"))
            trace = folder / f"{asked}.json"
            made = profiler.answer(Bench(), question(impls.table().find(name), problem, trace))
            assert made["spoiled"]
            found[asked] = json.loads(json.dumps(made["profile"], allow_nan=False))
            found[asked]["file"] = trace
    return found


def ran(profile, phase):
    (found,) = [p for p in profile["phases"] if p["name"] == phase]
    return {row["name"].removeprefix("aten::"): row for row in found["operators"]}


@pytest.mark.parametrize("asked", ASKED)
def test_no_share_exceeds_the_whole(profiles, asked):
    for phase in profiles[asked]["phases"]:
        inside = sum(x["self_s"] for x in phase["operators"])
        assert inside + phase["outside_s"] == pytest.approx(phase["profiled_s"], rel=1e-6)
        assert sum(x["share"] for x in phase["operators"]) <= 1 + 1e-9


def test_phases_are_apart_and_work_is_that_of_operands(profiles):
    forward, backward = (ran(profiles["einsum train"], phase) for phase in ("forward", "backward"))
    assert "_softmax" in forward.keys() - backward.keys()
    assert "_softmax_backward_data" in backward.keys() - forward.keys()
    assert (forward["bmm"]["calls"], backward["bmm"]["calls"]) == (2, 4)
    p = profiles["numpy forward"]
    assert [x["name"] for x in p["phases"]] == ["forward"]
    assert (p["plain"]["backward_s"], p["memory"]["saved_bytes"]) == (None, None)
    assert p["plain"]["total_s"] == p["plain"]["forward_s"]
    assert forward["bmm"]["flops"] == 2 * (2 * 4 * N * N * 32)
    assert forward["_softmax"]["flops"] is None
    dense, fused = (profiles[f"{x} train"]["memory"] for x in ("einsum", "sdpa.flash"))
    assert dense["largest"]["bytes"] == dense["scores_bytes"] == SCORES
    assert dense["largest"]["count"] > 2 and dense["peak_bytes"] > 2 * SCORES > fused["peak_bytes"]
    assert fused["largest"]["bytes"] < SCORES / 4
    trace = json.loads(profiles["einsum train"]["file"].read_text())  # as perfetto reads it
    names = {event["name"] for event in trace["traceEvents"]}
    assert {"aten::bmm", "attnbench: forward", "attnbench: backward"} <= names


def test_of_what_is_wrong_there_is_no_profile(cells, tmp_path):
    variant = cells.variant("def build(problem): return lambda q, k, v: v * 0\n")
    asked = question(variant, cells.problem(), tmp_path / "trace.json")
    assert profiler.answer(cells.bench, asked)["record"]["status"] == "wrong"


DEFAULTS = {
    "start_thread_id": 1, "nbytes": 0, "flops": 0, "device_type": DeviceType.CPU,
    "correlation_id": 0, "linked_correlation_id": 0,
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
        event("aten::next", 100, 5),
        event("aten::elsewhere", 20, 50, start_thread_id=2),
        event("autograd::engine", 0, 200),
    ]
    made = list(own_of([(e.name(), e) for e in events]))
    found = {own.name[6:]: own.nanoseconds for own in made}
    assert found == {"outer": 70, "inner": 30, "next": 5, "elsewhere": 50}


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


def planned(names, **changes):
    return plan_cells(names, impls.table(), PRESETS["compare-cpu"], changes, this_machine())


def test_what_cannot_run_says_why_and_asks_no_worker(tmp_path):
    with pytest.raises(NotProfiled, match=r"unsupported.*no backward") as stopped:
        profile_cells(planned(["numpy"], **SMALL, phase=("train",)), None, 0, tmp_path / "new")
    assert stopped.value.status == 2 and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("status", "words", "ends"),
    [
        (Status.FAILED, r"^einsum is not profiled \(failed\): it is so → do that$", 1),
        (Status.OUT_OF_MEMORY, r"^einsum is not profiled \(out of memory\): it is so → ", 2),
    ],
)
def test_the_reason_is_the_workers(tmp_path, status, words, ends):
    (cell,) = planned(["einsum"], **SMALL)
    record = Record.of(cell.variant, cell.problem, status, "it is so", remedy="do that")
    with pytest.raises(NotProfiled, match=words) as stopped:
        profile_cells([cell], ToldEngine({"record": record.to_dict()}), 0, tmp_path)
    assert stopped.value.status == ends
