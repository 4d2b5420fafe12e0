"""The gate lets the honest pass: rows of the table, and approximations held to their own word."""

import itertools
import re

import numpy as np
import pytest
import torch

from attnbench.gate import hygiene, mask_probe, plant_code
from attnbench.gate.findings import Wrong
from attnbench.gate.gate import gate
from attnbench.gate.inputs import Call, make, other_set
from attnbench.gate.reference import judge
from impls.lowrank import mean_v
from impls.operators import OPERATORS, QKV, Operator, TensorSpec
from tests.brute import visible
from tests.impls import small
from tests.impls.small import judged

CASES = [  # that impls/test_gate_cells has not: names, a mask, and what else of the problem
    (("matmul", "sdpa", "mean_v"), "causal", {"q_len": 300, "kv_len": 40}),
    *(  # each query sees one key, so the true dq is zero
        (("sdpa.flash", "online"), mask, {"q_len": q_len, "kv_len": kv_len, "dtype": dtype})
        for mask, q_len, kv_len in (("window:0,0", 24, 24), ("none", 5, 1), ("padding:1", 24, 24))
        for dtype in ("float32", "bfloat16")
    ),
    *(  # where not all rows are sampled
        (("matmul", "mean_v"), mask,
         {"q_len": 300, "kv_len": 300, "inputs": inputs, "dtype": dtype, "phase": "forward"})
        for mask, inputs, dtype in (("none", "peaky", "bfloat16"), ("causal", "normal", "float32"))
    ),
]  # fmt: skip


@pytest.mark.parametrize(("names", "mask", "changes"), CASES)
def test_honest_rows_pass(truth, names, mask, changes):
    problem = truth.problem(mask, **{"phase": "train", "heads": 4, **changes})
    for name in names:
        verdict = small.verdict(name, problem)
        assert verdict.reason is None, name
        trained = {"dq", "dk", "dv"} if problem.gradients else set()
        assert set(verdict.error) == {"forward", *trained}
        assert verdict.truth[0].shape == problem.output_shape
        assert (verdict.distance is not None) is (name == "mean_v")
        assert all(e.ratio is None or 0 <= e.ratio <= 4 for e in verdict.error.values())


@pytest.mark.parametrize("buffers", [1, 2])
def test_outputs_that_later_calls_overwrite_are_wrong_unless_the_row_says_so(truth, buffers):
    problem = truth.problem()
    inner = truth.attention(problem)
    places = itertools.cycle([torch.empty(problem.output_shape) for _ in range(buffers)])

    def attend(q, k, v):
        return next(places).copy_(inner(q, k, v))

    verdict = gate(judged(problem), attend, None, 0)
    assert "its output is overwritten by a later call" in verdict.reason
    assert "declare reuses_output" in verdict.reason
    assert gate(judged(problem), attend, None, 0, reuses_output=True).reason is None
    problem = problem.with_(phase="train")
    workspace = plant_code.build_one_workspace(problem)
    reason = gate(judged(problem), workspace, None, 0, reuses_output=True).reason
    assert re.search("a later call changed what its d[qkv] is made from", reason)


def squared(problem, sharpen=1.0):
    """Weights in proportion to (1 + q.k d^-1/2)^2: near softmax for small scores, and no nearer."""
    seen = torch.from_numpy(problem.mask.visible(problem.shape).copy())

    def define(q, k, v, rows=slice(None)):
        weights = (1 + q[:, :, rows] @ k.mT * (problem.scale * sharpen)).square()
        weights = weights * seen[:, :, rows]
        return weights / weights.sum(-1, keepdim=True) @ v

    return define


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_an_approximation_is_held_to_its_definition_and_its_distance_only_told(truth, mask):
    problem = truth.problem(mask, phase="train")
    define = squared(problem)
    verdict = truth.verdict(problem, squared, define)
    assert verdict.reason is None
    assert set(verdict.error) == {"forward", "dq", "dk", "dv"}
    inputs = make(problem, 0)
    seen = visible(mask, problem.shape)
    want = truth.dense(problem, inputs, None, seen, 0.0)[0]
    mean = seen / seen.sum(-1, keepdims=True) @ inputs["v"].double().numpy()
    far = define(*inputs.map(torch.Tensor.double).qkv).numpy()
    distance = np.linalg.norm(far - want) / np.linalg.norm(want)
    trivial = np.linalg.norm(mean - want) / np.linalg.norm(want)
    assert verdict.distance.relative == pytest.approx(distance, rel=1e-4)
    assert verdict.distance.skill == pytest.approx(1 - distance / trivial, abs=1e-4)
    assert verdict.distance.max == pytest.approx(np.abs(far - want).max(), rel=1e-4)
    assert distance > 0.05


def test_what_is_off_its_own_definition_is_refused_on_whichever_values_and_keys(truth):
    problem, kept = truth.problem("causal"), {}
    mean, wide = mean_v.build(problem), squared(truth.problem())
    other = other_set(make(problem, 0))

    def on_others(q, k, v):
        return mean(q, k, v) * (1.01 if torch.equal(q, other["q"]) else 1.0)

    def by_shape(q, k, v):
        return kept.setdefault(q.shape, mean(q, k, v))

    for attend, define, said in (
        (squared(problem, 1.001), squared(problem), "relative error of forward"),
        (wide, wide, "which the mask causal hides from it"),
        (by_shape, mean_v.definition(problem), "of forward is"),
        (on_others, mean_v.definition(problem), "relative error of forward"),
    ):
        assert said in truth.verdict(problem, lambda _, attend=attend: attend, define).reason


def test_nobody_knows_the_rows_that_are_held_against_the_definition(truth):
    problem, drawn = truth.problem(q_len=256), set()

    def define(q, k, v, rows):
        drawn.add(tuple(rows.tolist()))
        return mean_v.definition(problem)(q, k, v, rows)

    for _ in range(4):
        assert gate(judged(problem), mean_v.build(problem), define, 0).reason is None
    assert sum(len(rows) == 16 for rows in drawn) == 4


def probed(problem, attend, *, exact=True):
    """The mask probe alone."""
    mild = mask_probe.mild(problem, 0, QKV)
    call = Call(problem, attend, mild)
    mask_probe.probe(call, call.forward(), mild, 0, hygiene.Pages(None), exact=exact)


EXTENTS = [
    {"batch": 1, "heads": 1, "kv_heads": 1},
    {"batch": 1, "heads": 4, "kv_heads": 2},
    {"batch": 2, "heads": 6, "kv_heads": 3},
]


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize(
    ("mask", "key"), [("none", "between"), ("none", 0), ("none", 23), ("causal+alibi", 23)]
)
def test_a_single_key_that_nobody_sees_is_named(truth, extent, mask, key):
    between = int(np.random.default_rng(0).integers(24))
    assert 0 < between < 23
    key, problem = between if key == "between" else key, truth.problem(mask, **extent)
    seen = torch.from_numpy(problem.mask.visible(problem.shape).copy())
    seen[..., key] = False
    with pytest.raises(Wrong, match=f"did not move when key {key} changed"):
        probed(problem, truth.attention(problem, seen))


def test_a_hidden_key_that_only_takes_its_share_of_the_weights_is_named(truth):
    problem = truth.problem("causal")
    seen = torch.from_numpy(problem.mask.visible(problem.shape).copy())

    def attend(q, k, v):
        return ((q @ k.mT * problem.scale).softmax(-1) * seen) @ v

    for exact in (True, False):
        with pytest.raises(Wrong, match=r"moved when key \d+ changed, which the mask causal hides"):
            probed(problem, attend, exact=exact)
    few = truth.problem("causal", q_len=4, kv_len=4)
    inner = truth.attention(few)
    with pytest.raises(Wrong, match="moved when key"):  # by its value alone
        probed(few, lambda *qkv: inner(*qkv) + qkv[2].sum(2, True), exact=False)
    with pytest.raises(Wrong, match="not finite in the output on mild inputs"):
        probed(truth.problem(), lambda q, k, v: q * torch.nan)


@pytest.fixture
def key_bias(monkeypatch):
    """An operator with a number a key and head, which all of a batch shares, and its definition."""
    spec = TensorSpec(("heads", "kv_len"), keyword=True)
    operator = Operator("biased", "its own operator", {**QKV, "bias": spec}, ("scale",))
    monkeypatch.setitem(OPERATORS, "biased", operator)
    p = small.problem("causal", phase="train", dtype="float32")
    hidden = torch.ones(p.q_len, p.kv_len, dtype=torch.bool).triu(1)

    def define(q, k, v, rows, *, bias):
        k, v = (x.repeat_interleave(p.heads // p.kv_heads, 1) for x in (k, v))
        scores = q[:, :, rows] @ k.mT * p.scale + bias[:, None]
        return scores.masked_fill(hidden[rows], -torch.inf).softmax(-1) @ v

    return p, define


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda bias: bias, None),
        (torch.zeros_like, "error of forward"),
        (torch.Tensor.detach, "error of dbias"),
        (lambda bias: bias.roll(1, 0), "moved when|error of forward"),
        (lambda bias: bias + 1e-3 * bias[:, -1:], "moved when key 44 changed"),
    ],
    ids=["right", "ignored", "detached", "another head's", "a hidden key's"],
)
def test_an_input_along_the_keys_may_be_shared_by_the_batch(key_bias, change, reason):
    p, define = key_bias
    found = judge(p, make(p, 3), 3).of("biased")

    def attend(q, k, v, bias):
        return define(q, k, v, torch.arange(p.q_len), bias=change(bias))

    said = gate(found, attend, define, 3).reason
    assert (said is None) if reason is None else re.search(reason, said), said
