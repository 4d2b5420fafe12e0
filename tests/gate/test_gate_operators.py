"""The gate on approximations and other operators: held to their own word, their distance told."""

import numpy as np
import pytest
import torch

from attnbench.gate.gate import _secret_rows
from attnbench.gate.inputs import make, other_set
from impls.lowrank import mean_v


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
