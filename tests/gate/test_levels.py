"""The gate on layers, which have weights, and on decoders that keep a memory of their own."""

from pathlib import Path

import pytest
import torch

from attnbench.gate.inputs import Crossed, Tokens, make
from attnbench.gate.oracle import sample_rows
from impls.loading import load_file
from impls.masks import Mask

layers = load_file(Path(__file__).with_name("layers.py"))
layer = layers.layer
problem_of = layers.problem_of
verdict = layers.verdict
weights_of = layers.weights_of


class Honest:
    """The layer as a variant."""

    def __init__(self, problem):
        self.problem, self.weights = problem, weights_of(problem)

    def __call__(self, x, context=None):
        return layer(self.problem, x, x if context is None else context, self.weights)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("lengths", [(19, 19), (7, 19), (1, 1), (400, 400)])
def test_an_honest_layer_passes_with_an_error_for_each_weight(lengths, phase, dtype):
    problem = problem_of(q_len=lengths[0], kv_len=lengths[1], phase=phase, dtype=dtype)
    found = verdict(Honest(problem), problem)
    assert found.reason is None
    ends = ["dx"] + ["dcontext"] * problem.crosses
    trained = [*ends, "d:q", "d:k", "d:v", "d:k_bias"] * (phase == "train")
    assert sorted(found.error) == sorted(["forward", *trained])
    assert found.distance is None


@pytest.mark.parametrize("kind", ["peaky", "outliers", "equal_keys"])
def test_an_honest_layer_passes_on_all_kinds_of_tokens(kind):
    problem = problem_of(inputs=kind, phase="train", q_len=150, kv_len=150)
    assert verdict(Honest(problem), problem).reason is None


def test_tokens_are_those_of_the_kind_asked_and_as_many_as_the_problem_has():
    both = make(problem_of(q_len=5), 0)
    assert isinstance(both, Crossed)
    assert (both.x.shape, both.context.shape) == ((2, 1, 5, 16), (2, 1, 19, 16))
    same = make(problem_of(), 0)
    assert isinstance(same, Tokens) and same.x.shape == (2, 1, 19, 16)
    assert make(problem_of(q_len=1, phase="decode"), 0).x.shape == (2, 1, 19, 16)
    runs = make(problem_of(inputs="equal_keys", q_len=130, kv_len=130), 0).x
    assert torch.equal(runs[:, :, 0], runs[:, :, 63])
    assert not torch.equal(runs[:, :, 63], runs[:, :, 64])


class Leaky(Honest):
    """A layer that lets every row see the token after its own."""

    def __call__(self, x, context=None):
        mask = Mask.parse("window:400,1")
        return layer(self.problem.with_(mask=mask), x, x, self.weights)


class OwnWeights(Honest):
    """A layer with a weight that is not its definition's."""

    def __init__(self, problem):
        super().__init__(problem)
        with torch.no_grad():
            self.weights["v"][0, 0] += 1e-3


class Fewer(Honest):
    """A layer that does not say all that it trains."""

    def __init__(self, problem):
        super().__init__(problem)
        self._all = dict(self.weights)
        del self.weights["v"]

    def __call__(self, x, context=None):
        return layer(self.problem, x, x, self._all)


class Frozen(Honest):
    """A layer that trains nothing."""

    def __init__(self, problem):
        super().__init__(problem)
        self.weights = {n: w.detach() for n, w in self.weights.items()}


class HalfTrained(Honest):
    """A layer that spares itself most of one weight's gradient."""

    def __call__(self, x, context=None):
        v = self.weights["v"]
        v = torch.cat([v[:3], v[3:].detach()])
        return layer(self.problem, x, x, {**self.weights, "v": v})


class Flat(Honest):
    """A layer that gives its heads side by side."""

    def __call__(self, x, context=None):
        return super().__call__(x).unflatten(-1, (2, 8)).transpose(1, 2)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Leaky, "moved when key"),
        (OwnWeights, "its weight v is not that of its definition"),
        (Fewer, "its weights and those of its definition differ: v"),
        (Frozen, "its weight q takes no gradient"),
        (HalfTrained, "relative error of d:v"),
        (Flat, "the output has the shape"),
    ],
)
def test_a_faulty_layer_is_wrong_and_the_reason_names_the_deed(fault, says):
    problem = problem_of(phase="train")
    found = verdict(fault(problem), problem)
    assert found.reason is not None and says in found.reason


class LeakyGradient(Honest):
    """Right forward, but a hidden token gets a gradient from an earlier row."""

    def __call__(self, x, context=None):
        out = super().__call__(x)
        return out + 0.0 * x.sum(1, keepdim=True) * 1.0 + (x - x.detach()).sum(1, keepdim=True)


def test_a_gradient_that_reaches_a_hidden_token_is_wrong():
    problem = problem_of(phase="train")
    found = verdict(LeakyGradient(problem), problem)
    assert found.reason is not None and "has a dx from row" in found.reason


# ---- what a definition of its own does not excuse ------------------------------------------------

CORE = problem_of(level="core", phase="train", q_len=300, kv_len=300)


def scaled_mean(problem):
    """Its own operator: the mean of the visible values, as a definition of some rows."""

    def define(q, k, v, rows):
        counts = torch.arange(1, problem.kv_len + 1, dtype=v.dtype)[:, None]
        return (v.cumsum(2) / counts)[:, :, rows] + 0.0 * q[:, :, rows].sum()

    return define


class Mean:
    """The same as a variant, in full."""

    def __init__(self, problem):
        self.problem, self.calls = problem, 0

    def __call__(self, q, k, v):
        self.calls += 1
        return scaled_mean(self.problem)(q, k, v, torch.arange(self.problem.q_len))


class SampledOnly(Mean):
    """Right where it knows that it is looked at, and nothing elsewhere."""

    def __call__(self, q, k, v):
        out = super().__call__(q, k, v)
        kept = torch.zeros(self.problem.q_len, 1)
        kept[sample_rows(self.problem.q_len, 256, 0)] = 1.0
        return out * kept


class _LazyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        dense = int((grad != 0).any(-1).sum()) > 256 * grad.shape[0] * grad.shape[1]
        return torch.zeros_like(grad) if dense else grad


class NothingBackward(Mean):
    """Right gradients while few rows have an upstream one, as when it is judged."""

    def __call__(self, q, k, v):
        return _LazyBackward.apply(super().__call__(q, k, v))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Mean, None),
        (SampledOnly, "not among the sampled"),
        (NothingBackward, "a row of dv that is not among the sampled"),
    ],
)
def test_every_row_and_its_gradient_counts_for_an_operator_of_its_own(fault, says):
    found = verdict(fault(CORE), CORE, scaled_mean(CORE)).reason
    assert found is None if says is None else says in found
