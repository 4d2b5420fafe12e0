"""The gate lets the honest pass: rows of the table, and approximations held to their own word."""

import itertools
import re
from functools import cache

import numpy as np
import pytest
import torch

import impls
from attnbench.gate import planted_calls, planted_deeds
from attnbench.gate.findings import Wrong
from attnbench.gate.gate import PATIENT_S, gate
from attnbench.gate.hygiene import WAIT_S
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem

TABLE = impls.table()
EXACT = (
    "einsum", "matmul", "matmul.prescale", "bmm", "baddbmm", "inplace", "numpy", "chunked?block=5",
    "online?q_block=7&k_block=4", "sdpa", "sdpa.math", "sdpa.flash",
)  # fmt: skip
MASKS = (
    "none", "causal", "window:3,2", "prefix:9", "document:5,12,7", "padding:0,11", "alibi",
    "causal+alibi",
)  # fmt: skip
SMALL = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 24, "kv_len": 24, "head_dim": 8,
    "v_head_dim": 8,
}  # fmt: skip


@cache
def judged(problem):
    return judge(problem, make(problem, 0), 0)


def honest(name, problem):
    """The gate's verdict on a row; asserts that the row takes the problem."""
    variant = TABLE.find(name)
    phase = problem.phase if problem.phase in variant.on("cpu", "phases") else "forward"
    problem = problem.with_(phase=phase)
    assert variant.supports(problem) is None
    attend = load_function(variant.build)(problem, **variant.chosen)
    define = None
    if variant.definition:
        define = load_function(variant.definition)(problem, **variant.chosen)
    return gate(judged(problem), attend, define, 0)


FOUR = ("matmul", "online?q_block=7&k_block=4", "sdpa.flash", "mean_v")
CASES = [  # names, a mask, and what else of the problem
    *((EXACT, mask, {}) for mask in MASKS),
    *((("mean_v",), mask, {}) for mask in MASKS if "alibi" not in mask),
    *(
        (("einsum", "baddbmm", "sdpa.flash", "chunked?block=5"), mask, {"dtype": dtype})
        for dtype in ("float64", "bfloat16", "float16")
        for mask in ("none", "causal+alibi")
    ),
    *((("mean_v",), "causal", {"dtype": dtype}) for dtype in ("float64", "bfloat16", "float16")),
    *((FOUR, "causal", {"inputs": kind}) for kind in ("peaky", "outliers", "equal_keys")),
    *(
        (("matmul", "sdpa", "chunked?block=5", "mean_v"), mask, {"q_len": q_len, "kv_len": kv_len})
        for q_len, kv_len in ((1, 24), (7, 24), (24, 7), (300, 40))
        for mask in ("none", "causal", "causal@upper-left")
    ),
    *(  # each query sees one key, so the true dq is zero
        (("sdpa", "sdpa.flash", "online"), mask, {"q_len": q_len, "kv_len": kv_len, "dtype": dtype})
        for mask, q_len, kv_len in (("window:0,0", 24, 24), ("none", 5, 1), ("padding:1", 24, 24))
        for dtype in ("float32", "bfloat16", "float16")
    ),
]


@pytest.mark.parametrize(("names", "mask", "changes"), CASES)
def test_honest_rows_pass(names, mask, changes):
    problem = Problem(**{**SMALL, **changes}, mask=Mask.parse(mask), phase="train")
    for name in names:
        verdict = honest(name, problem)
        assert verdict.reason is None, name
        trained = "train" in TABLE.find(name).on("cpu", "phases")
        assert set(verdict.error) == ({"forward", "dq", "dk", "dv"} if trained else {"forward"})
        assert verdict.truth[0].shape == problem.output_shape
        if name != "mean_v" and not changes:
            assert all(e.ratio is None or 0 <= e.ratio <= 4 for e in verdict.error.values())


def test_the_plain_form_itself_passes_where_its_worst_row_is_half_wrong():
    # bfloat16 rounds scores in the hundreds by one half, so some row weighs the wrong keys
    problem = Problem(**{**SMALL, "q_len": 300, "kv_len": 300}, dtype="bfloat16", inputs="peaky")
    assert judged(problem).softmax.plain["forward"].worst_row > 0.5
    assert honest("matmul", problem).reason is None


def test_honest_rows_pass_under_masks_from_files(tmp_path):
    rng = np.random.default_rng(0)
    seen = rng.random((2, 1, 24, 24)) < 0.4
    seen[..., 5, :] = False
    np.save(tmp_path / "dense.npy", seen)
    np.save(tmp_path / "bias.npy", rng.choice([-np.inf, 0.5, -1.25, 2.0], (4, 24, 24)))
    for mask in (f"dense:{tmp_path / 'dense.npy'}", f"bias:{tmp_path / 'bias.npy'}"):
        problem = Problem(**SMALL, mask=Mask.parse(mask), phase="train")
        for name in ("matmul", "sdpa.flash", *["mean_v"] * mask.startswith("dense")):
            assert honest(name, problem).reason is None


# ---- rows that are not sampled -------------------------------------------------------------------


def unsampled(problem, count=3):
    """A few rows in the middle that are not among the sampled."""
    sampled = set(judged(problem).softmax.rows.tolist())
    middle = range(problem.q_len // 2 - 100, problem.q_len)
    return [row for row in middle if row not in sampled][:count]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_a_fault_in_rows_that_are_not_sampled_is_refused(truth, mask, dtype):
    problem = truth.problem(mask, batch=1, q_len=1024, kv_len=1024, dtype=dtype)
    rows = unsampled(problem)
    factor = 1.01 if dtype == "float32" else 4.0  # a hundredth is bfloat16's own spacing

    def attend(q, k, v):
        out = truth.attention(problem)(q, k, v)
        out[:, :, rows] *= factor
        return out

    reason = gate(judged(problem), attend, None, 0).reason
    assert "not among the sampled" in reason
    assert any(f"row {row}" in reason for row in rows)


def test_the_fault_is_in_none_of_the_sampled_rows(truth):
    problem = truth.problem(batch=1, q_len=1024, kv_len=1024)
    rows = unsampled(problem)
    assert len(rows) == 3
    assert not set(rows) & set(judged(problem).softmax.rows.tolist())
    assert judged(problem).whole["forward"].shape == (1, 2, 1024, 8)


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["matmul", "sdpa.flash", "chunked", "online", "mean_v"])
def test_honest_rows_pass_where_not_all_rows_are_sampled(name, dtype, inputs):
    for mask in ("none", "causal"):
        problem = Problem(
            heads=2,
            kv_heads=1,
            q_len=600,
            kv_len=600,
            head_dim=16,
            v_head_dim=16,
            dtype=dtype,
            inputs=inputs,
            mask=Mask.parse(mask),
        )
        assert len(judged(problem).softmax.rows) < 600
        assert honest(name, problem).reason is None


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (Wrong("work was put off"), "work was put off"),
        (RuntimeError("it is spent"), "row 0 (batch 0, head 0) did not move"),
        (None, "row 0 (batch 0, head 0) did not move"),
    ],
    ids=["late", "fails", "in time"],
)
def test_who_is_wrong_is_looked_at_again_for_work_put_off(truth, monkeypatch, second, said):
    looks = iter([None, second])

    def look(*_):
        if (raised := next(looks)) is not None:
            raise raised

    monkeypatch.setattr("attnbench.gate.gate.check_nothing_goes_on", look)
    reason = truth.verdict(truth.problem(), lambda problem: lambda q, k, v: q * 0.0).reason
    assert reason.startswith(said)
    assert list(looks) == []


def test_work_put_off_that_comes_late_on_a_busy_machine_is_named_all_the_same(truth, monkeypatch):
    """Each call's comes long after the first look at the gate is over."""
    monkeypatch.setattr(planted_deeds, "LATE_S", 5 * WAIT_S)
    verdict = truth.verdict(truth.problem(), planted_deeds.build_standing_thread)
    assert verdict.reason == "its output changed after it had been returned: work was put off"


@pytest.mark.parametrize(
    ("spent", "waits"),
    [
        ([1.0, 1.0], [WAIT_S, WAIT_S]),
        ([1.0, 1.1], [WAIT_S, PATIENT_S, PATIENT_S]),
    ],
    ids=["nobody", "somebody"],
)
def test_it_is_waited_longer_only_where_other_threads_worked(truth, monkeypatch, spent, waits):
    waited, spent = [], iter(spent)

    def look(*given):
        waited.append(given[3] if given[3:] else WAIT_S)

    name = "attnbench.gate.gate."
    monkeypatch.setattr(name + "spent_elsewhere", lambda: next(spent))
    monkeypatch.setattr(name + "check_nothing_goes_on", look)
    monkeypatch.setattr(name + "wait_for_quiet", lambda wait_s, _: waited.append(wait_s))
    assert truth.verdict(truth.problem(), lambda problem: lambda q, k, v: q * 0.0).reason
    assert waited == waits


# ---- memory that calls share ---------------------------------------------------------------------


def in_turns(problem, buffers):
    """Right outputs in so many places, one after the other."""
    inner = load_function("impls.dense.matmul:build")(problem)
    places = itertools.cycle([torch.empty(problem.output_shape) for _ in range(buffers)])
    return lambda q, k, v: next(places).copy_(inner(q, k, v))


@pytest.mark.parametrize("buffers", [1, 2])
def test_outputs_that_later_calls_overwrite_are_wrong_unless_the_row_says_so(buffers):
    problem = Problem(**SMALL)
    verdict = gate(judged(problem), in_turns(problem, buffers), None, 0)
    assert "its output is overwritten by a later call" in verdict.reason
    assert "declare reuses_output" in verdict.reason
    verdict = gate(judged(problem), in_turns(problem, buffers), None, 0, reuses_output=True)
    assert verdict.reason is None


def test_a_workspace_of_one_call_for_all_is_wrong_whatever_the_row_says():
    problem = Problem(**SMALL, phase="train")
    verdict = gate(
        judged(problem), planted_calls.build_one_workspace(problem), None, 0, reuses_output=True
    )
    assert re.search("a later call changed what its d[qkv] is made from", verdict.reason)
