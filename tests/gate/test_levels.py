"""The gate on layers, which have weights, and on decoders that keep a memory of their own."""

from functools import partial

import pytest
import torch

from attnbench.gate.gate import gate
from attnbench.gate.inputs import Call, make
from attnbench.gate.oracle import sample_rows
from attnbench.gate.reference import judge
from impls.masks import Mask
from impls.operators import inputs as inputs_of
from impls.problem import INPUTS, Problem
from tests.impls.small import TABLE, both_forms

LAYER = Problem(
    batch=2, heads=2, kv_heads=2, q_len=19, kv_len=19, head_dim=8, v_head_dim=8, level="layer",
    mask=Mask.parse("causal"),
)  # fmt: skip
TRAIN = LAYER.with_(phase="train")
DECODE = LAYER.with_(level="core", phase="decode", q_len=2)
CORE = TRAIN.with_(level="core", q_len=300, kv_len=300)


def layer(problem, q_bne, source_bme, weights, rows=None):
    """Softmax attention over projected tokens, written once, plainly."""
    rows = torch.arange(problem.q_len) if rows is None else rows

    def heads(x):
        return x.unflatten(-1, (problem.heads, problem.head_dim)).transpose(1, 2)

    q = heads(q_bne @ weights["q"])
    k, v = heads(source_bme @ weights["k"] + weights["k_bias"]), heads(source_bme @ weights["v"])
    seen = torch.from_numpy(problem.mask.visible(problem.shape))[:, :, rows]
    scores = (q[:, :, rows] @ k.mT * problem.scale).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Layer:
    """The layer as a variant, or ``edit(self, x)`` in its place."""

    def __init__(self, problem, edit=None):
        self.problem, self.edit, e = problem, edit, problem.width
        generator = torch.Generator().manual_seed(5)
        both_forms = {name: torch.randn(e, e, generator=generator) / e**0.5 for name in "qkv"}
        both_forms["k_bias"] = torch.randn(e, generator=generator)
        dtype = getattr(torch, problem.dtype)
        self.weights = {n: w.to(dtype).requires_grad_() for n, w in both_forms.items()}

    def right(self, x, context=None, rows=None, **weights):
        source = x if context is None else context
        return layer(self.problem, x, source, {**self.weights, **weights}, rows)

    def __call__(self, *tokens):
        return self.edit(self, *tokens) if self.edit else self.right(*tokens)


def defined(problem):
    def define(x, *rest):
        *context, rows, weights = rest
        return layer(problem, x, context[0] if context else x, weights, rows)

    define.weights = Layer(problem).weights
    return define


def verdict(attend, problem, define=None):
    return gate(judge(problem, make(problem, 0), 0), attend, define or defined(problem), 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "forward"},
        {"dtype": "float64"},
        {"q_len": 7, "dtype": "bfloat16"},
        {"q_len": 1, "kv_len": 1},
        {"q_len": 300, "kv_len": 300},
        *({"inputs": x, "q_len": 90, "kv_len": 90} for x in INPUTS[1:]),
    ],
)
def test_an_honest_layer_passes_with_an_error_for_each_weight(changes):
    problem = TRAIN.with_(**changes)
    found = verdict(Layer(problem), problem)
    assert found.reason is None and found.distance is None
    shared = judge(problem, make(problem, 0), 0).softmax  # all but the rows is its own
    assert (shared.tried, shared.want, shared.plain, shared.cancels) == (0, {}, {}, {})
    ends = ["dx"] + ["dcontext"] * problem.crosses
    trained = [*ends, "d:q", "d:k", "d:v", "d:k_bias"] * problem.gradients
    assert sorted(found.error) == sorted(["forward", *trained])


def other_weights(problem):
    one = Layer(problem)
    one.weights["v"].data[0, 0] += 1e-3
    return one


def most_detached(layer, x):
    v = layer.weights["v"]
    return layer.right(x, v=torch.cat([v[:3], v[3:].detach()]))


def looks_ahead(layer_, x):
    return layer(layer_.problem.with_(mask=Mask.parse("window:400,1")), x, x, layer_.weights)


LAYERS = [  # what is called in place of the layer, and what is said of it
    (looks_ahead, "moved when key"),
    (most_detached, "relative error of d:v"),
    (lambda s, x: s.right(x).unflatten(-1, (2, 8)).transpose(1, 2), "the output has the shape"),
    (lambda s, x: s.right(x)[..., :8], "the shape (2, 19, 8), not (2, 19, 16)"),
    (lambda s, x: s.right(x) + (x - x.detach()).sum(1, keepdim=True), "has a dx from row"),
]


def scaled_mean(problem):
    """The mean of the visible values, as a definition of some rows, or of all."""

    def define(q, k, v, rows=slice(None)):
        counts = torch.arange(1, problem.kv_len + 1, dtype=v.dtype)[:, None]
        return (v.cumsum(2) / counts)[:, :, rows] + 0.0 * q[:, :, rows].sum()

    return define


def sampled_only(problem):
    """Right where it knows that it is looked at, and nothing elsewhere."""
    kept = torch.zeros(problem.q_len, 1)
    kept[sample_rows(problem.q_len, 256, 0)] = 1.0
    return lambda q, k, v: scaled_mean(problem)(q, k, v) * kept


class _LazyBackward(torch.autograd.Function):
    """Right gradients while few rows have an upstream one, as when it is judged."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        dense = int((grad != 0).any(-1).sum()) > 256 * grad.shape[0] * grad.shape[1]
        return torch.zeros_like(grad) if dense else grad


def nothing_backward(problem):
    return lambda q, k, v: _LazyBackward.apply(scaled_mean(problem)(q, k, v))


def sums(problem):
    def define(q, k, v, rows):
        return v.cumsum(2)[:, :, rows + problem.kv_len - problem.q_len]

    return define


class Summing:
    """Values summed so far: its own operator, with a state of one row."""

    last = None

    def __init__(self, problem):
        self.problem = problem

    def remember(self, k, v):
        return v.sum(2, keepdim=True)

    def step(self, q, k, v, memory):
        out = memory + v.cumsum(2)
        return out, out[:, :, -1:]


def stepping(after):
    """``after(memory, out)`` is what a step returns."""

    class Faulty(Summing):
        def step(self, q, k, v, memory):
            return after(memory, memory + v.cumsum(2))

    return Faulty


class Fickle(Summing):
    """Changes its memory only where other tokens come than those before."""

    def remember(self, k, v):
        self.last = None
        return super().remember(k, v)

    def step(self, q, k, v, memory):
        out, after = super().step(q, k, v, memory)
        if self.last is not None and not torch.equal(v, self.last):
            memory.add_(1)
        self.last = v.clone()
        return out, after


class Peeking(Summing):
    """Looks the new values up where the last call left them, and answers before it is asked."""

    def remember(self, k, v):
        state = super().remember(k, v)
        return state if self.last is None else (state + self.last.cumsum(2),)

    def step(self, q, k, v, memory):
        self.last = v
        return (memory[0], memory) if isinstance(memory, tuple) else super().step(q, k, v, memory)


@pytest.mark.parametrize(
    ("fault", "problem", "define", "says"),
    [
        *((partial(Layer, edit=edit), TRAIN, None, says) for edit, says in LAYERS),
        (other_weights, TRAIN, None, "its weight v is not that of its definition"),
        (scaled_mean, CORE, scaled_mean, None),
        (sampled_only, CORE, scaled_mean, "relative error of forward"),
        (nothing_backward, CORE, scaled_mean, "relative error of dv"),
        (Summing, DECODE, sums, None),
        (Summing, DECODE.with_(q_len=2, kv_len=2), sums, None),  # remembers nothing
        (
            stepping(lambda m, out: (out, m.copy_(out[:, :, -1:]))),
            DECODE,
            sums,
            "changed the memory",
        ),
        (Fickle, DECODE, sums, "changed the memory"),
        (stepping(lambda m, out: out), DECODE, sums, "something else than (out, memory)"),
        (Peeking, DECODE, sums, "moved when key"),
        (stepping(lambda m, out: (out, m)), DECODE, sums, "two steps are not as one"),
        (stepping(lambda m, out: (out, None)), DECODE, sums, "can't go on from the memory"),
    ],
)
def test_what_is_faulty_is_wrong_and_the_reason_names_the_deed(fault, problem, define, says):
    found = verdict(fault(problem), problem, define and define(problem)).reason
    assert found is None if says is None else says in found


def places(memory):
    if isinstance(memory, torch.Tensor):
        return [memory.data_ptr()]
    return [x for part in memory for x in places(part)] if isinstance(memory, (list, tuple)) else []


DECODERS = [
    name
    for name in TABLE.rows
    if (row := TABLE.find(name)).supports(DECODE.with_(level=row.level, q_len=1)) is None
    and not row.requires
    and not name.startswith("window.")
]


@pytest.mark.parametrize("name", DECODERS)
def test_what_a_decoder_of_ours_remembers_stays_at_its_address(name):
    row = TABLE.find(name)
    problem = DECODE.with_(level=row.level, q_len=1)
    specs = inputs_of(row.operator, problem)
    call = Call(problem, both_forms(name, problem)[0], make(problem, 0, specs))
    first, before = places(call.memory), call.forward()
    assert bool(first) == call.steps
    call.load(make(problem, 1, specs))
    assert places(call.memory) == first and not call.moves
    assert not torch.equal(call.forward(), before)
    call.load(make(problem, 0, specs))
    assert torch.equal(call.forward(), before)


class Elsewhere(Summing):
    """What it remembers is nothing that could be put anywhere."""

    def remember(self, k, v):
        return {"sum": v.sum(2, keepdim=True), "by": object()}

    def step(self, q, k, v, memory):
        out, new = super().step(q, k, v, memory["sum"])
        return out, {**memory, "sum": new}


@pytest.mark.parametrize("decoder", [Summing, Elsewhere])
def test_a_decoder_is_handed_the_new_tokens_and_a_memory_that_may_lie_elsewhere(decoder):
    call, other = Call(DECODE, decoder(DECODE), make(DECODE, 0)), make(DECODE, 1)
    torch.testing.assert_close(call.forward(), call.leaves["v"].cumsum(2)[:, :, -2:])
    call.load(other)
    assert call.moves is (decoder is Elsewhere)
    torch.testing.assert_close(call.forward(), other["v"].cumsum(2)[:, :, -2:])
