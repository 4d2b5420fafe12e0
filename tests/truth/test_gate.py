"""The gate lets the honest pass: rows of the table, and approximations held to their own word."""

from functools import cache

import numpy as np
import pytest
import torch

import impls
from attnbench.truth.findings import Wrong
from attnbench.truth.gate import _secret_rows, gate
from attnbench.truth.inputs import make, other_set
from attnbench.truth.reference import judge
from impls.loading import load_function
from impls.lowrank import mean_v
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


@pytest.mark.parametrize("name", [*EXACT, "mean_v"])
@pytest.mark.parametrize("mask", MASKS)
def test_honest_rows_pass_under_every_mask(name, mask):
    if name == "mean_v" and "alibi" in mask:
        pytest.skip("a mean has no scores to add to")
    verdict = honest(name, Problem(**SMALL, mask=Mask.parse(mask), phase="train"))
    assert verdict.reason is None
    trained = "train" in TABLE.find(name).on("cpu", "phases")
    assert set(verdict.error) == ({"forward", "dq", "dk", "dv"} if trained else {"forward"})
    assert verdict.truth[0].shape == (2, 4, 24, 8)
    if name != "mean_v":
        assert all(e.ratio is None or 0 <= e.ratio <= 4 for e in verdict.error.values())


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["einsum", "baddbmm", "sdpa.flash", "chunked?block=5", "mean_v"])
def test_honest_rows_pass_in_every_dtype(name, dtype):
    for mask in ("none", "causal" if name == "mean_v" else "causal+alibi"):
        problem = Problem(**SMALL, mask=Mask.parse(mask), dtype=dtype, phase="train")
        assert honest(name, problem).reason is None


@pytest.mark.parametrize("inputs", ["peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("name", ["matmul", "online?q_block=7&k_block=4", "sdpa.flash", "mean_v"])
def test_honest_rows_pass_on_every_kind_of_inputs(name, inputs):
    problem = Problem(**SMALL, mask=Mask.parse("causal"), inputs=inputs, phase="train")
    assert honest(name, problem).reason is None


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 24), (7, 24), (24, 7), (300, 40)])
@pytest.mark.parametrize("mask", ["none", "causal", "causal@upper-left"])
@pytest.mark.parametrize("name", ["matmul", "sdpa", "chunked?block=5", "mean_v"])
def test_honest_rows_pass_where_queries_and_keys_are_not_as_many(name, mask, q_len, kv_len):
    problem = Problem(**{**SMALL, "q_len": q_len, "kv_len": kv_len}, mask=Mask.parse(mask),
                      phase="train")  # fmt: skip
    assert honest(name, problem).reason is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["sdpa", "sdpa.flash", "online"])
@pytest.mark.parametrize(
    ("mask", "kv_len"), [("window:0,0", 24), ("none", 1), ("padding:1", 24)],
    ids=["window of one", "one key", "padding to one key"],
)  # fmt: skip
def test_honest_rows_pass_where_each_query_sees_one_key_and_the_true_dq_is_zero(
    name, mask, kv_len, dtype
):
    q_len = 5 if kv_len == 1 else kv_len
    problem = Problem(**{**SMALL, "kv_len": kv_len, "q_len": q_len}, mask=Mask.parse(mask),
                      dtype=dtype, phase="train")  # fmt: skip
    assert honest(name, problem).reason is None


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


def test_inputs_kept_in_a_static_buffer_and_a_static_output_pass(truth):
    problem = truth.problem("causal")

    def build(problem):
        inner, buffer = truth.attention(problem), torch.empty(2, 2, 24, 8)
        return lambda q, k, v: buffer.copy_(inner(q, k, v))

    assert truth.verdict(problem, build).reason is None


# ---- approximations and other operators ----------------------------------------------------------


def test_exact_softmax_has_no_distance_to_report(truth):
    assert truth.verdict(truth.problem("causal"), truth.attention).distance is None


@pytest.mark.parametrize("mask", ["none", "causal", "window:3,2", "padding:20,3"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_mean_of_the_values_passes_and_has_no_skill(truth, mask, dtype):
    problem = truth.problem(mask, dtype=dtype)
    verdict = truth.verdict(problem, mean_v.build, mean_v.definition(problem))
    assert verdict.reason is None
    assert verdict.distance.skill == pytest.approx(0.0, abs=1e-6)
    assert verdict.distance.relative > 0.1
    assert verdict.error["forward"].relative < 1e-6


def test_skill_is_not_a_number_where_the_mean_is_the_answer(truth):
    problem = truth.problem("window:0,0")
    verdict = truth.verdict(problem, mean_v.build, mean_v.definition(problem))
    assert verdict.reason is None
    assert verdict.distance.skill is None


def squared(problem, sharpen=1.0):
    """Weights in proportion to (1 + q.k d^-1/2)^2: near softmax for small scores, and no nearer."""
    seen = torch.from_numpy(problem.mask.visible(problem.shape).copy())

    def define(q, k, v, rows):
        weights = (1 + q[:, :, rows] @ k.mT * (problem.scale * sharpen)).square()
        weights = weights * seen[:, :, rows]
        return weights / weights.sum(-1, keepdim=True) @ v

    return define


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_an_approximation_is_held_to_its_definition_and_its_distance_only_told(truth, mask):
    problem = truth.problem(mask, phase="train")
    define, everything = squared(problem), torch.arange(24)
    verdict = truth.verdict(problem, lambda p: lambda q, k, v: define(q, k, v, everything), define)
    assert verdict.reason is None
    assert set(verdict.error) == {"forward", "dq", "dk", "dv"}
    inputs = make(problem, 0)
    visible, bias = truth.tables(problem, lambda b, h, i, j: mask == "none" or j <= i)
    want = truth.dense(problem, inputs, None, visible, bias)[0]
    mean = visible / visible.sum(-1, keepdims=True) @ inputs.v.double().numpy()
    far = define(*(x.double() for x in inputs), everything).numpy()
    distance = np.linalg.norm(far - want) / np.linalg.norm(want)
    trivial = np.linalg.norm(mean - want) / np.linalg.norm(want)
    assert verdict.distance.relative == pytest.approx(distance, rel=1e-4)
    assert verdict.distance.skill == pytest.approx(1 - distance / trivial, abs=1e-4)
    assert verdict.distance.max == pytest.approx(np.abs(far - want).max(), rel=1e-4)
    assert distance > 0.05


def test_softmax_by_another_name_has_the_skill_of_one(truth):
    problem = truth.problem("causal")

    def define(q, k, v, rows):
        return truth.attention(problem)(q, k, v)[:, :, rows]

    verdict = truth.verdict(problem, truth.attention, define)
    assert verdict.reason is None
    assert verdict.distance.skill == pytest.approx(1.0, abs=1e-5)


def test_an_approximation_that_is_off_its_own_definition_is_refused(truth):
    problem = truth.problem("causal")
    off, everything = squared(problem, 1.001), torch.arange(24)
    verdict = truth.verdict(
        problem, lambda p: lambda q, k, v: off(q, k, v, everything), squared(problem)
    )
    assert "relative error of forward" in verdict.reason


def test_an_approximation_may_not_look_at_hidden_keys_either(truth):
    problem = truth.problem("causal")
    everything = torch.arange(24)
    open_define = squared(truth.problem())
    verdict = truth.verdict(
        problem, lambda p: lambda q, k, v: open_define(q, k, v, everything), open_define
    )
    assert "which the mask causal hides from it" in verdict.reason


def test_an_approximation_that_answers_from_a_cache_by_shape_is_refused(truth):
    problem, kept = truth.problem(), {}

    def build(problem):
        inner = mean_v.build(problem)
        return lambda q, k, v: kept.setdefault(q.shape, inner(q, k, v))

    assert "of forward is" in truth.verdict(problem, build, mean_v.definition(problem)).reason


def test_an_approximation_is_held_to_its_definition_on_other_values_too(truth):
    problem = truth.problem()
    other = other_set(make(problem, 0))

    def build(problem):
        inner = mean_v.build(problem)
        return lambda q, k, v: inner(q, k, v) * (1.01 if torch.equal(q, other.q) else 1.0)

    reason = truth.verdict(problem, build, mean_v.definition(problem)).reason
    assert "relative error of forward" in reason


def test_nobody_knows_the_rows_that_are_held_against_the_definition(truth):
    problem = truth.problem(q_len=256, kv_len=256)
    drawn = {tuple(_secret_rows(problem).tolist()) for _ in range(4)}
    assert len(drawn) == 4
    assert {len(rows) for rows in drawn} == {16}


def test_an_input_that_is_changed_on_the_problems_own_values_alone_is_named(truth):
    problem = truth.problem()
    own = make(problem, 0).q

    def build(problem):
        inner = truth.attention(problem)

        def attend(q, k, v):
            out = inner(q, k, v)
            if torch.equal(q, own):
                v.add_(1)
            return out

        return attend

    assert truth.verdict(problem, build).reason == "it changed its input v"


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
            heads=2, kv_heads=1, q_len=600, kv_len=600, head_dim=16, v_head_dim=16, dtype=dtype,
            inputs=inputs, mask=Mask.parse(mask),
        )  # fmt: skip
        assert len(judged(problem).softmax.rows) < 600
        assert honest(name, problem).reason is None


@pytest.mark.parametrize(("second", "said"), [
    (Wrong("work was put off"), "work was put off"),
    (RuntimeError("it is spent"), "row 0 (batch 0, head 0) did not move"),
    (None, "row 0 (batch 0, head 0) did not move"),
], ids=["late", "fails", "in time"])  # fmt: skip
def test_who_is_wrong_is_looked_at_again_for_work_put_off(truth, monkeypatch, second, said):
    looks = iter([None, second])

    def look(*_):
        if (raised := next(looks)) is not None:
            raise raised

    monkeypatch.setattr("attnbench.truth.gate.check_nothing_goes_on", look)
    reason = truth.verdict(truth.problem(), lambda problem: lambda q, k, v: q * 0.0).reason
    assert reason.startswith(said)
    assert list(looks) == []
