"""Every way a cell can end without a time. The variants stand in files of their own."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.core.record import Status
from attnbench.meter import memory as room
from impls.loading import load_file, load_function
from impls.masks import Mask

codes = load_file(Path(__file__).with_name("codes.py"))
COST, FROZEN, HONEST = codes.COST, codes.FROZEN, codes.HONEST
raising, unmeasured = codes.raising, codes.unmeasured


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
@pytest.mark.parametrize(
    "error",
    [
        "raise MemoryError",
        "raise MemoryError('too much')",
        "raise torch.OutOfMemoryError('CUDA')",
        "return torch.empty(1 << 58)",
        "import numpy; return numpy.empty(1 << 58)",
    ],
)
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
    monkeypatch.setattr(room, "free_bytes", lambda device: 1000)
    fits = cells.variant(HONEST + COST.format(peak=900), cost=True)
    too_large = cells.variant(HONEST + COST.format(peak=901), cost=True)
    assert cells.measure(fits).status is Status.MEASURED
    assert cells.measure(too_large).status is Status.OUT_OF_MEMORY


@pytest.mark.parametrize(("error", "gone"), [("MemoryError", ["cpu"]), ("ValueError", [])])
def test_what_lacked_memory_leaves_none_behind(cells, monkeypatch, error, gone):
    asked = []
    monkeypatch.setattr(room, "release", asked.append)
    cells.run(raising(f"raise {error}('no')", "attend"))
    assert asked == gone


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
    when = "while (it was timed|its memory was observed)"
    assert re.match(f"{when} its output was not what it was when it was judged", record.reason)
    unmeasured(record)


@pytest.mark.parametrize(
    "deed",
    [
        "return inner(q, k, v) * (1.001 if late else 1.0)",
        "return torch.zeros_like(v) if late else inner(q, k, v)",
        "return inner(q, k, v) if not late else inner(q, k, v).fill_(torch.nan)",
        "return inner(*(x.bfloat16() for x in (q, k, v))).float() if late else inner(q, k, v)",
        "return buffer if late else buffer.copy_(inner(q, k, v))",
    ],
    ids=["scaled", "zeros", "nan", "half", "stale buffer"],
)
def test_a_variant_that_changes_after_fifteen_calls_is_wrong(cells, deed):
    changed(cells.run(AFTER.format(deed=deed), reuses_output="buffer" in deed))


@pytest.mark.parametrize("phase", ["forward", "train", "backward", "decode"])
@pytest.mark.parametrize("late", [10, 15])
def test_a_variant_that_returns_one_result_whatever_its_inputs_is_wrong(cells, phase, late):
    code = f"{FROZEN}\ndef build(problem): return frozen(right(problem), {late})"
    changed(cells.run(code, cells.problem(phase=phase)))


def test_the_same_result_is_right_where_the_other_values_are_the_same(cells):
    one = cells.problem(heads=1, kv_heads=1, q_len=1, v_head_dim=1)
    assert cells.run(HONEST, one).status is Status.MEASURED


def test_a_variant_that_hands_out_a_buffer_of_its_own_is_honest(cells):
    code = AFTER.format(deed="return buffer.copy_(inner(q, k, v))")
    record = cells.run(code, reuses_output=True)
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


@pytest.mark.parametrize(
    ("kept", "what"),
    [
        ("q * 0.0", "output"),
        ("inner(q, k, v.detach() + 0.0 * v)", "dv"),
        ("inner(q, k, v).double()", "the output is float64, not float32"),
    ],
)
def test_what_differs_while_its_memory_is_observed_is_wrong(cells, kept, what):
    code = f"""
import torch
def build(problem):
    inner = right(problem)
    def attend(q, k, v):
        return {kept} if torch.autograd._profiler_enabled() else inner(q, k, v)
    return attend
"""
    record = cells.run(code, cells.problem(phase="train"))
    unmeasured(record)
    assert record.status is Status.WRONG
    assert record.reason.startswith("while its memory was observed ")
    assert what in record.reason


@pytest.mark.parametrize("looked_at", [True, False])
def test_memory_taken_only_where_no_profiler_is_on_is_seen(cells, looked_at):
    code = f"""
import mmap, torch
def build(problem):
    inner = right(problem)
    def attend(q, k, v):
        if torch.autograd._profiler_enabled() is {looked_at}:
            with mmap.mmap(-1, 96 << 20) as taken:
                for page in range(0, 96 << 20, 4096): taken[page] = 1
        return inner(q, k, v)
    return attend
"""
    memory = cells.run(code).memory
    assert memory.method == "high-water mark"
    assert memory.peak_bytes > 90 << 20
