"""Where time goes: operators by phase, and what they allocate; from the command line's words to
profiles, and who is refused and why.
"""

import json

import pytest
from torch.autograd.profiler_util import FunctionEvent

import impls
from attnbench.core.machine import this_machine
from attnbench.core.record import Record, Status
from attnbench.core.wire import Job, plain
from attnbench.features.profile import profiler
from attnbench.features.profile.profiler import by_phase
from attnbench.features.profile.verb import NotProfiled, plan_cells, profile_cells
from attnbench.meter.cell import Bench
from attnbench.sweep.presets import PRESETS
from impls.masks import Mask
from impls.problem import Problem
from tests.sweep.build import ToldEngine

N = 256
SCORES = 4 * N * N * 4
SMALL = {"seq": ("48",), "heads": (2,), "head_dim": (8,)}
ASKED = ["einsum train", "sdpa.flash train", "numpy forward"]


def question(variant, problem, trace):
    return {"job": plain(Job(variant, problem, timed=False)), "trace": str(trace)}


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


@pytest.mark.slow
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
    assert dense["scores_bytes"] == SCORES
    assert dense["peak_bytes"] > 2 * SCORES > fused["peak_bytes"]
    trace = json.loads(profiles["einsum train"]["file"].read_text())  # as perfetto reads it
    names = {event["name"] for event in trace["traceEvents"]}
    assert {"aten::bmm", "attnbench: forward", "attnbench: backward"} <= names


def test_of_what_is_wrong_there_is_no_profile(cells, tmp_path):
    variant = cells.variant("def build(problem): return lambda q, k, v: v * 0\n")
    asked = question(variant, cells.problem(), tmp_path / "trace.json")
    assert profiler.answer(cells.bench, asked)["record"]["status"] == "wrong"


PLAIN = {"forward_s": 1.0, "backward_s": 2.0}
CALLS = (("attnbench: forward", 0, 10), ("attnbench: backward", 10, 20))


def event(name, start, end, kernels=(), flops=0):
    """An operator of torch's profiler, in microseconds."""
    made = FunctionEvent(
        id=0, name=name, thread=1, start_us=start, end_us=end, flops=flops,
        is_user_annotation=name.startswith("attnbench"),
    )  # fmt: skip
    for kernel, length in kernels:
        made.append_kernel(kernel, 0, length)
    return made


def calls(count):
    return [event(n, 20 * k + a, 20 * k + b) for k in range(count) for n, a, b in CALLS]


def test_operators_fall_into_the_phase_that_they_start_in_and_the_first_call_is_warm_up():
    starts = (-1, 0, 19, 20, 29, 30, 39, 40, 49, 60)
    found = by_phase([*calls(3), *(event("aten::a", t, t + 1) for t in starts)], PLAIN, cuda=False)
    rows = {p["name"]: p["operators"][0] for p in found}
    assert rows["forward"]["calls"] == 2 and rows["backward"]["calls"] == 1  # a call, of two
    assert rows["forward"]["self_s"] == pytest.approx(2e-6)
    assert [p["outside_s"] for p in found] == pytest.approx([8e-6, 9e-6])


def test_kernels_belong_to_the_phase_of_what_launched_them():
    launch = event("aten::mm", 25, 27, [("gemm", 6)], flops=100)
    phases = calls(2)
    phases[2].append_kernel("attnbench: forward", 0, 9)  # the device's own mark of the phase
    forward, backward = by_phase([*phases, launch], PLAIN, cuda=True)
    (row,) = forward["operators"]
    assert (row["name"], row["self_s"], row["flops"]) == ("gemm", pytest.approx(6e-6), 100)
    assert forward["profiled_s"] == pytest.approx(6e-6) and backward["operators"] == []


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
        profile_cells([cell], ToldEngine({"record": plain(record)}), 0, tmp_path)
    assert stopped.value.status == ends
