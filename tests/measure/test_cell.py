"""One cell, one record: every way it can end. The variants stand in files of their own."""

import json
import re
from dataclasses import replace

import pytest

import impls
from attnbench.measure import cell
from attnbench.measure.cell import Bench, Job
from attnbench.record import Status
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem

HONEST = "build = right\n"
COST = "from impls.cost import Cost\ndef cost(problem): return Cost(1000, 2000, {peak})\n"


def raising(text, where="build"):
    if where == "build":
        return f"def build(problem):\n    {text}\n"
    return f"def build(problem):\n    def attend(q, k, v):\n        {text}\n    return attend\n"


def unmeasured(record):
    assert record.time is None
    assert record.memory is None
    assert record.reason


# ---- measured ------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["forward", "train", "backward", "decode"])
def test_what_passes_is_measured_and_says_everything(cells, phase):
    problem = cells.problem(phase=phase, mask=Mask.parse("causal"), kv_heads=1)
    ceilings = {"flops": {"float32": 1e12}, "copy": {"1000000": 1e11}}
    variant = cells.variant(HONEST + COST.format(peak=12345), cost=True)
    record = cells.measure(variant, problem, ceilings=ceilings, seed=3)
    assert (record.status, record.reason) == (Status.MEASURED, "")
    assert record.time.median_s > 0
    assert record.time.clock == "host"
    assert record.time.n == len(record.time.samples_s) >= 7
    assert record.memory.peak_bytes > 0
    assert record.memory.expected_bytes == 12345
    trained = phase in ("train", "backward")
    assert (record.memory.saved_bytes is not None) == trained
    assert set(record.error) == ({"forward", "dq", "dk", "dv"} if trained else {"forward"})
    assert (record.cost.flops, record.cost.bytes) == (1000, 2000)
    assert record.share_of_ceiling == pytest.approx(2e-8 / record.time.median_s)
    assert record.setup_s > 0
    assert any("aten::" in name for name in record.kernels)
    assert 0 < record.entropy < 1
    assert (record.seed, record.variant, record.family) == (3, "planted", "dense")
    assert Problem.from_dict(record.problem) == problem


def test_an_approximation_is_measured_with_its_distance(cells):
    record = cells.measure(impls.table().find("mean_v"))
    assert record.status is Status.MEASURED
    assert record.distance.skill == pytest.approx(0, abs=1e-6)
    assert record.time is not None


def test_checking_alone_gives_no_time(cells):
    record = cells.measure(cells.variant(HONEST), timed=False)
    assert record.status is Status.MEASURED
    assert record.time is None
    assert record.error["forward"].relative < 1e-6
    assert "sampling" not in record.spent_s


def test_without_ceilings_or_a_cost_there_is_no_share_of_them(cells):
    record = cells.measure(cells.variant(HONEST), ceilings={})
    assert record.share_of_ceiling is None
    assert record.cost is None
    assert record.memory.expected_bytes is None


def test_options_reach_the_code_and_the_label(cells):
    code = (
        "def build(problem, swap):\n"
        "    if swap != 4: raise ValueError(f'swap is {swap}')\n    return right(problem)\n"
    )
    variant = cells.variant(code, options={"swap": 2}).with_options({"swap": "4"})
    record = cells.measure(variant)
    assert record.status is Status.MEASURED
    assert record.variant == "planted?swap=4"
    assert record.options == {"swap": 4}


def test_what_a_variant_notes_is_in_the_record(cells):
    code = (
        "def build(problem):\n    inner = right(problem)\n"
        "    def attend(q, k, v): return inner(q, k, v)\n"
        "    attend.note = lambda: 'two blocks'\n    return attend\n"
    )
    assert cells.run(code).note == "two blocks"


def test_building_is_paid_in_the_setup_and_not_in_the_time(cells):
    code = (
        "import time\n"
        "def build(problem):\n    time.sleep(0.1)\n    inner, first = right(problem), []\n"
        "    def attend(q, k, v):\n"
        "        if not first: time.sleep(0.1); first.append(1)\n"
        "        return inner(q, k, v)\n    return attend\n"
    )
    record = cells.run(code)
    assert record.setup_s > 0.19
    assert record.time.median_s < 0.05
    assert 0.09 < record.spent_s["setup"] < record.setup_s  # building alone


@pytest.mark.parametrize("code", [HONEST, raising("raise ValueError('no')")])
def test_the_parts_of_the_time_spent_add_up_to_the_total(cells, code):
    spent = dict(cells.run(code).spent_s)
    total = spent.pop("total")
    assert {"inputs", "setup", "own"} <= set(spent)
    assert sum(spent.values()) == pytest.approx(total, abs=1e-5)
    assert all(seconds >= 0 for seconds in spent.values())


# ---- not measured --------------------------------------------------------------------------------


def test_a_problem_that_the_row_refuses_is_unsupported_and_nothing_is_run(cells):
    variant = cells.variant(raising("raise SystemError"), masks=("none",))
    record = cells.measure(variant, cells.problem(mask=Mask.parse("causal")))
    assert record.status is Status.UNSUPPORTED
    assert record.reason == "planted takes the masks none on cpu, not causal"
    unmeasured(record)


@pytest.mark.parametrize("where", ["build", "attend"])
def test_code_that_refuses_the_problem_is_unsupported(cells, where):
    said = "from impls.spec import Unsupported; raise Unsupported('only odd lengths')"
    record = cells.run(raising(said, where))
    assert (record.status, record.reason) == (Status.UNSUPPORTED, "only odd lengths")
    unmeasured(record)


def test_what_this_machine_lacks_is_unavailable_with_a_remedy(cells):
    said = "from impls.spec import Unavailable; raise Unavailable('no compiler', 'install one')"
    record = cells.run(raising(said))
    assert record.status is Status.UNAVAILABLE
    assert (record.reason, record.remedy) == ("no compiler", "install one")
    unmeasured(record)


@pytest.mark.parametrize("where", ["build", "attend"])
def test_an_exception_is_failed_with_the_end_of_its_traceback(cells, where):
    record = cells.run(raising("raise ValueError('boom')", where))
    assert record.status is Status.FAILED
    assert re.fullmatch(r"it raised ValueError at planted0\.py:\d+: boom", record.reason)
    assert record.detail.rstrip().endswith("ValueError: boom")
    assert "planted0.py" in record.detail
    assert len(record.detail) <= 4000
    unmeasured(record)


def test_an_exception_without_words_still_has_a_reason(cells):
    assert "KeyError" in cells.run(raising("raise KeyError")).reason


def test_code_that_cannot_be_found_is_failed(cells, tmp_path):
    variant = replace(cells.variant(HONEST), build=f"{tmp_path / 'nowhere.py'}:build")
    record = cells.measure(variant)
    assert record.status is Status.FAILED
    assert "nowhere.py" in record.reason


@pytest.mark.parametrize("where", ["build", "attend"])
@pytest.mark.parametrize("error", [
    "raise MemoryError", "raise MemoryError('too much')", "raise torch.OutOfMemoryError('CUDA')",
    "return torch.empty(1 << 58)", "import numpy; return numpy.empty(1 << 58)",
])  # fmt: skip
def test_memory_that_runs_out_is_out_of_memory_with_a_remedy(cells, error, where):
    record = cells.run(raising(error, where))
    assert record.status is Status.OUT_OF_MEMORY
    assert "shorten the sequence" in record.remedy
    unmeasured(record)


def test_what_cannot_fit_is_predicted_and_not_run(cells):
    code = raising("raise ValueError('it was run')") + COST.format(peak=1 << 60)
    record = cells.run(code, cost=True)
    assert record.status is Status.OUT_OF_MEMORY
    assert record.reason.startswith(
        f"predicted, not run: it needs {2**30:.1f} GiB above its inputs"
    )
    unmeasured(record)


def test_what_may_just_fit_is_run(cells, monkeypatch):
    monkeypatch.setattr(cell, "_free_bytes", lambda device: 1000)
    fits = cells.variant(HONEST + COST.format(peak=900), cost=True)
    too_large = cells.variant(HONEST + COST.format(peak=901), cost=True)
    assert cells.measure(fits).status is Status.MEASURED
    assert cells.measure(too_large).status is Status.OUT_OF_MEMORY


def test_a_wrong_variant_has_its_errors_and_no_time(cells):
    code = (
        "def build(problem):\n    inner = right(problem)\n"
        "    return lambda q, k, v: inner(q, k, v) * 1.01\n"
    )
    record = cells.run(code)
    assert record.status is Status.WRONG
    assert "relative error of forward is 0.01" in record.reason
    assert record.error["forward"].relative == pytest.approx(0.01, rel=0.01)
    assert record.setup_s is None
    unmeasured(record)


@pytest.mark.parametrize("form", ["None", "(q, k)", "q.double()", "q[:, :1]", "q.to_sparse()"])
@pytest.mark.parametrize("phase", ["forward", "train"])
def test_an_output_of_the_wrong_form_is_wrong_and_not_failed(cells, form, phase):
    code = f"def build(problem): return lambda q, k, v: {form}\n"
    record = cells.run(code, cells.problem(phase=phase))
    assert record.status is Status.WRONG
    assert record.reason.startswith("the output ")


# ---- what changes once it is timed ---------------------------------------------------------------

AFTER = """
def build(problem):
    inner, calls = right(problem), []
    buffer = torch.empty(problem.batch, problem.heads, problem.q_len, problem.v_head_dim)
    def attend(q, k, v):
        calls.append(1)
        late = len(calls) > 15
        {deed}
    return attend
"""


def changed(record):
    """The variant was found out while it was timed."""
    assert record.status is Status.WRONG
    assert record.reason.startswith("while it was timed its output was not what it was when it was")
    unmeasured(record)


@pytest.mark.parametrize("deed", [
    "return inner(q, k, v) * (1.001 if late else 1.0)",
    "return torch.zeros_like(v) if late else inner(q, k, v)",
    "return inner(q, k, v) if not late else inner(q, k, v).fill_(torch.nan)",
    "return inner(q.bfloat16(), k.bfloat16(), v.bfloat16()).float() if late else inner(q, k, v)",
    "return buffer if late else buffer.copy_(inner(q, k, v))",
], ids=["scaled", "zeros", "nan", "half", "stale buffer"])  # fmt: skip
def test_a_variant_that_changes_after_fifteen_calls_is_wrong(cells, deed):
    changed(cells.run(AFTER.format(deed=deed)))


HOLDING = """
def build(problem):
    inner, held, calls = right(problem), [], []
    def attend(q, k, v):
        calls.append(1)
        out = inner(q, k, v)
        if len(calls) > {late} and not held: held.append(out.detach().clone())
        return held[0] + (out - out.detach()) if held else out
    return attend
"""


@pytest.mark.parametrize("phase", ["forward", "train", "backward", "decode"])
@pytest.mark.parametrize("late", [10, 15])
def test_a_variant_that_returns_one_result_whatever_its_inputs_is_wrong(cells, phase, late):
    changed(cells.run(HOLDING.format(late=late), cells.problem(phase=phase)))


def test_the_same_result_is_right_where_the_other_values_are_the_same(cells):
    one = cells.problem(heads=1, kv_heads=1, q_len=1, v_head_dim=1)
    assert cells.run(HONEST, one).status is Status.MEASURED


def test_a_variant_that_hands_out_a_buffer_of_its_own_is_honest(cells):
    record = cells.run(AFTER.format(deed="return buffer.copy_(inner(q, k, v))"))
    assert record.status is Status.MEASURED


def test_a_variant_that_leaves_threads_running_is_wrong(cells):
    code = """
import threading
done = threading.Event()
def build(problem):
    inner = right(problem)
    def attend(q, k, v):
        threading.Thread(target=done.wait, args=(60,), name="straggler", daemon=True).start()
        return inner(q, k, v)
    return attend
def release(): done.set()
"""
    variant = cells.variant(code)
    try:
        record = cells.measure(variant)
    finally:
        load_function(variant.build.replace(":build", ":release"))()
    assert record.status is Status.WRONG
    assert "straggler" in record.reason


# ---- the bench and its jobs ----------------------------------------------------------------------


def test_the_truth_of_a_problem_is_made_once_for_all_its_variants(cells, monkeypatch):
    made = []
    make = cell.make
    monkeypatch.setattr(cell, "make", lambda p, seed: made.append((p, seed)) or make(p, seed))
    one, two = cells.problem(), cells.problem(q_len=16)
    for problem, seed in ((one, 0), (one, 0), (one, 1), (two, 1), (one, 0)):
        cells.measure(cells.variant(HONEST), problem, seed=seed, timed=False)
    assert made == [(one, 0), (one, 1), (two, 1), (one, 0)]


def test_a_variant_that_spoils_its_inputs_does_not_spoil_the_next_ones(cells):
    spoil = (
        "def build(problem):\n    inner = right(problem)\n    def attend(q, k, v):\n"
        "        out = inner(q, k, v)\n        k.zero_()\n        return out\n    return attend\n"
    )
    assert cells.run(spoil).status is Status.WRONG
    assert cells.run(HONEST).status is Status.MEASURED


def test_the_bench_goes_on_after_any_ending(cells):
    for code in (raising("raise MemoryError"), raising("raise ValueError"), HONEST):
        last = cells.run(code)
    assert last.status is Status.MEASURED


def test_a_job_travels_as_json(cells):
    variant = cells.variant(HONEST, options={"block": 4}, head_dims=(1, 64))
    job = Job(
        variant, cells.problem(mask=Mask.parse("causal+alibi")), 5, 0.25, False, {"flops": {}}
    )
    assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job


def test_inputs_that_cannot_be_read_fail_the_cell_and_not_the_bench(cells, tmp_path):
    problem = cells.problem(inputs=f"captured:{tmp_path / 'none.npz'}")
    record = Bench().measure(Job(cells.variant(HONEST), problem))
    assert record.status is Status.FAILED
    assert "none.npz" in record.reason
