"""Where time and memory go: operators by phase, lines of code, and the peak that all agree on."""

import json
import os
import subprocess
import sys

import pytest

from attnbench.core.settings import environment

CODE = """
import json, sys, torch, impls
from pathlib import Path
from attnbench.meter.cell import Bench
from attnbench.meter.timed import Job
from attnbench.meter.memory import observe, warm_profiler
from attnbench.meter.profile import answer
from impls.problem import Problem
from impls.masks import Mask

torch.set_num_threads(1)
warm_profiler()
found = {}
for name, phase in (("einsum", "train"), ("matmul", "train"), ("sdpa.flash", "train"),
                    ("matmul", "backward"), ("numpy", "forward"), ("linear.elu", "train"),
                    ("gla", "decode")):
    row = impls.table().find(name)
    n = 512
    p = Problem(heads=4, kv_heads=4, q_len=1 if phase == "decode" else n, kv_len=n, head_dim=32,
                v_head_dim=32, phase=phase, mask=Mask.parse("causal"))
    trace = Path(sys.argv[1]) / f"{name}-{phase}.json"
    bench, job = Bench(), Job(row, p, timed=False)
    made = answer(bench, job, str(trace))
    ready = bench.ready(job)
    inputs, dout = ready.values
    observe(p, ready.attend, inputs, dout, None)
    seen = observe(p, ready.attend, inputs, dout, None)
    found[f"{name} {phase}"] = {**made["profile"], "meter": seen.memory.to_dict()}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def profiles(folder):
    """Profiles made in one process that was started as a worker is."""
    path = os.pathsep.join(filter(None, sys.path))
    said = subprocess.run(
        [sys.executable, "-c", CODE, str(folder)],
        text=True,
        capture_output=True,
        timeout=240,
        env={**os.environ, **environment(1), "PYTHONPATH": path},
    )
    assert said.returncode == 0, said.stderr[-3000:]
    return json.loads(said.stdout.splitlines()[-1])


def phase_of(profile, name):
    return next(p for p in profile["phases"] if p["name"] == name)


def names(profile, phase):
    return [x["name"] for x in phase_of(profile, phase)["operators"]]


SCORES = 4 * 512 * 512 * 4
EVERYONE = (
    "einsum train",
    "matmul train",
    "sdpa.flash train",
    "matmul backward",
    "linear.elu train",
    "gla decode",
)


@pytest.mark.parametrize("which", EVERYONE)
def test_the_peak_is_the_memory_meters(profiles, which):
    p = profiles[which]
    assert p["memory"]["peak_bytes"] == pytest.approx(p["meter"]["peak_bytes"], rel=0.01)
    assert p["caveats"] == []


@pytest.mark.parametrize("which", ("einsum train", "matmul train", "sdpa.flash train"))
def test_what_is_kept_between_the_phases_is_the_memory_meters(profiles, which):
    p = profiles[which]
    output = 4 * 512 * 32 * 4
    kept = p["meter"]["saved_bytes"] + output
    assert p["memory"]["turn_bytes"] == pytest.approx(kept, rel=0.01)


@pytest.mark.parametrize("which", EVERYONE)
def test_what_is_alive_adds_up_to_the_peak_and_never_beyond(profiles, which):
    m = profiles[which]["memory"]
    totals = [sum(row) for row in m["alive"]]
    assert max(totals) == m["peak_bytes"] == sum(s["peak_bytes"] for s in m["sources"])
    assert all(value >= 0 for row in m["alive"] for value in row)
    assert m["at_ms"] == sorted(m["at_ms"])
    assert m["at_ms"][totals.index(m["peak_bytes"])] == pytest.approx(m["peak_ms"])


def test_allocations_have_the_lines_that_make_them(profiles):
    sources = profiles["matmul train"]["memory"]["sources"]
    softmax = next(s for s in sources if s["operator"] == "aten::_softmax")
    assert "softmax" in softmax["code"] and softmax["place"].startswith("matmul.py:")
    assert softmax["most_bytes"] == SCORES and not softmax["backward"]
    products = [s for s in sources if s["operator"] == "aten::bmm" and not s["backward"]]
    assert len({s["place"] for s in products}) == 2
    assert all("@" in s["code"] or "matmul" in s["code"] for s in products)


def test_a_gradients_allocations_have_the_line_of_its_forward(profiles):
    sources = profiles["matmul train"]["memory"]["sources"]
    back = {s["operator"]: s for s in sources if s["backward"]}
    assert "softmax" in back["aten::_softmax_backward_data"]["code"]
    weights = next(s for s in sources if s["operator"] == "aten::_softmax")
    assert back["aten::_softmax_backward_data"]["place"] == weights["place"]


def test_lines_of_a_helper_are_its_own(profiles):
    places = {x["place"].split(":")[0] for x in profiles["einsum train"]["lines"]}
    assert {"einsum.py", "score_mask.py"} <= places


def test_the_lines_name_the_function_of_their_gradient(profiles):
    softmax = next(x for x in profiles["matmul train"]["lines"] if "softmax" in x["code"])
    assert softmax["gradient"] == "SoftmaxBackward0"
    assert softmax["backward_share"] > 0


@pytest.mark.parametrize("which", EVERYONE)
def test_shares_of_lines_and_operators_stay_within_the_whole(profiles, which):
    p = profiles[which]
    lines = sum(x["forward_share"] + x["backward_share"] for x in p["lines"])
    assert 0 < lines <= 1 + 1e-9
    for phase in p["phases"]:
        inside = sum(x["self_s"] for x in phase["operators"])
        assert inside + phase["outside_s"] == pytest.approx(phase["profiled_s"], rel=1e-6)


def test_forward_and_backward_are_apart(profiles):
    p = profiles["einsum train"]
    assert "aten::_softmax" in names(p, "forward")
    assert "aten::_softmax" not in names(p, "backward")
    assert "aten::_softmax_backward_data" in names(p, "backward")
    assert "aten::_softmax_backward_data" not in names(p, "forward")
    calls = {
        ph["name"]: next(x["calls"] for x in ph["operators"] if x["name"] == "aten::bmm")
        for ph in p["phases"]
    }
    assert calls == {"forward": 2, "backward": 4}


def test_a_phase_without_gradients_has_no_backward(profiles):
    p = profiles["gla decode"]
    assert [x["name"] for x in p["phases"]] == ["forward"]
    assert p["plain"]["backward_s"] is None
    assert p["plain"]["total_s"] == p["plain"]["forward_s"]
    assert p["memory"]["turn_ms"] is None


def test_products_have_their_work_and_what_is_unknown_has_none(profiles):
    forward = phase_of(profiles["einsum train"], "forward")
    by = {x["name"]: x for x in forward["operators"]}
    assert by["aten::bmm"]["flops"] == 2 * (2 * 4 * 512 * 512 * 32)
    assert by["aten::_softmax"]["flops"] is None
    flash = {x["name"]: x for x in phase_of(profiles["sdpa.flash train"], "forward")["operators"]}
    fused = next(x for name, x in flash.items() if "flash_attention" in name)
    assert fused["flop_rate"] is None


def test_bytes_are_those_of_operands_and_results(profiles):
    forward = phase_of(profiles["einsum train"], "forward")
    by = {x["name"]: x for x in forward["operators"]}
    ends = 4 * 512 * 32 * 4
    assert by["aten::bmm"]["bytes"] == (2 * ends + SCORES) + (SCORES + 2 * ends)
    assert by["aten::_softmax"]["bytes"] == pytest.approx(2 * SCORES, rel=1e-4)
    assert by["aten::mul_"]["bytes"] == pytest.approx(2 * SCORES, rel=1e-4)
    assert by["aten::view"]["bytes"] is None
    backward = phase_of(profiles["einsum train"], "backward")
    by = {x["name"]: x for x in backward["operators"]}
    assert by["aten::empty_like"]["bytes"] is None  # copy_ fills it, and has the bytes
    assert by["aten::clone"]["bytes"] is None and by["aten::copy_"]["bytes"] > SCORES


def test_the_largest_allocation_is_a_score_matrix_where_one_is_made(profiles):
    dense, fused = (profiles[f"{x} train"]["memory"] for x in ("matmul", "sdpa.flash"))
    assert dense["largest"]["bytes"] == dense["scores_bytes"] == SCORES
    assert dense["largest"]["forward"] == 2 and dense["largest"]["count"] > 2
    assert fused["largest"]["bytes"] < SCORES / 4


def test_arrays_of_numpy_have_their_lines(profiles):
    p = profiles["numpy forward"]
    assert p["memory"]["peak_bytes"] == pytest.approx(p["meter"]["peak_bytes"], rel=0.05)
    first = p["memory"]["sources"][0]
    assert first["operator"] == "array" and first["place"].startswith("numpy_.py:")
    assert "@" in first["code"]


def test_the_trace_is_one_that_perfetto_reads(profiles, folder):
    trace = json.loads((folder / "einsum-train.json").read_text())
    ran = {e["name"] for e in trace["traceEvents"]}
    assert {"aten::bmm", "attnbench: forward", "attnbench: backward"} <= ran
    assert not any(name.startswith("attnbench line") for name in ran)
