"""gated_delta and kda against two other projects' token-by-token forms, and the gate on faults."""

import importlib
import math

import pytest
import torch

import impls
from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge
from impls.linear.gated_chunks import GatedDelta
from impls.loading import load_function
from impls.masks import Mask
from impls.operators import inputs as inputs_of
from impls.problem import Problem

TABLE = impls.table()


def problem(length=67, **changes):
    """A length that no chunk divides, heads of values two to each of keys."""
    extents = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": length, "kv_len": length}
    changes = {"head_dim": 16, "v_head_dim": 24, "phase": "train", "dtype": "float64", **changes}
    return Problem(**extents, mask=Mask.parse("causal"), **changes)


def built(name, p):
    """A row's attend and definition."""
    row = TABLE.find(name)
    return [load_function(path)(p, **row.chosen) for path in (row.build, row.definition)]


def drawn(name, p, seed=3):
    """Inputs as leaves, those by place and those by name."""
    leaves = {n: x.requires_grad_() for n, x in make(p, seed, inputs_of(name, p)).items()}
    return leaves, [leaves[n] for n in "qkv"], {n: x for n, x in leaves.items() if n not in "qkv"}


def by_attn_gym(name, p, q, k, v, g, beta, state=None):
    """attn-gym's, where a state is [values, keys] and kda's decays are powers of two."""
    q, k, v, g, beta = (x.transpose(1, 2) for x in (q, k, v, g, beta))
    state = None if state is None else state.mT
    more = {"scale": p.scale, "output_final_state": True}
    if name == "gated_delta":
        gdn = importlib.import_module("attn_gym.linear.gdn").recurrent_gdn
        out, after = gdn(q, k, v, g, beta, state, impl="reference", **more)
    else:
        kda = importlib.import_module("attn_gym.linear.kda.naive").naive_recurrent_kda
        q, k = (x.repeat_interleave(p.group, 2) for x in (q, k))
        out, after = kda(q, k, v, g / math.log(2), beta, initial_state=state, **more)
    return out.transpose(1, 2), after.mT


def by_transformers(name, p, q, k, v, g, beta, state=None):
    """transformers', which computes in float32 and knows one scale."""
    q, k, v, g, beta = (x.transpose(1, 2) for x in (q, k, v, g, beta))
    module, function = {
        "gated_delta": ("qwen3_next.modeling_qwen3_next", "torch_recurrent_gated_delta_rule"),
        "kda": ("kimi_linear.modeling_kimi_linear", "recurrent_kimi_delta_attention"),
    }[name]
    if name == "kda":
        q, k = (x.repeat_interleave(p.group, 2) for x in (q, k))
    call = getattr(importlib.import_module(f"transformers.models.{module}"), function)
    out, after = call(q, k, v, g, beta, initial_state=state, output_final_state=True)
    return out.transpose(1, 2), after


def check(got, want, most):
    """Equal by the norm."""
    off = (got.detach().double() - want.detach().double()).norm() / want.detach().norm()
    assert off < most, float(off)


@pytest.mark.slow
@pytest.mark.parametrize("state", [None, True])
@pytest.mark.parametrize("length", [1, 45, 64, 67, 200])
@pytest.mark.parametrize("name", ["gated_delta", "kda"])
@pytest.mark.parametrize("oracle", [by_attn_gym, by_transformers])
def test_output_state_and_gradients_are_those_of_others(oracle, name, length, state):
    one_scale = oracle is by_transformers
    p = problem(length, state=state, **({} if one_scale else {"scale": 0.7}))
    most = 1e-6 if one_scale else 1e-12
    leaves, by_place, by_name = drawn(name, p)
    attend, define = built(name, p)
    out, after = attend(*by_place, **by_name, return_state=True)
    twins = {n: x.detach().requires_grad_() for n, x in leaves.items()}
    want, want_after = oracle(name, p, **twins)
    plain = define(*by_place, torch.arange(length), **by_name)
    for got, other in ((out, want), (plain, want), (after, want_after)):
        check(got, other, most)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    gradients = torch.autograd.grad(want, list(twins.values()), dout.to(want.dtype))
    for mine in (out, plain):
        for x, y in zip(
            torch.autograd.grad(mine, list(leaves.values()), dout), gradients, strict=True
        ):
            if length > 1 or float(y.norm()) > 0:  # of one token without a state g has none
                check(x, y, most)


@pytest.mark.parametrize("name", ["gated_delta", "kda"])
def test_a_state_handed_on_continues_a_sequence(name):
    whole, half = problem(90), problem(45, state=True)
    _, by_place, by_name = drawn(name, whole)
    want, last = built(name, whole)[0](*by_place, **by_name, return_state=True)
    attend, state = built(name, half)[0], torch.zeros_like(last)
    outs = []
    for part in (slice(0, 45), slice(45, 90)):
        out, state = attend(
            *(x[:, :, part] for x in by_place), state=state, return_state=True,
            **{n: x[:, :, part] for n, x in by_name.items()},
        )  # fmt: skip
        outs.append(out)
    check(torch.cat(outs, 2), want, 1e-13)
    check(state, last, 1e-13)


class LastChunkDropped(GatedDelta):
    """The output of a chunk does not see what the chunk before it wrote."""

    def _after(self, q, k, v, first, *gates):
        parts, outs, state = [x.split(self.length, 2) for x in (q, k, v, *gates)], [], first
        for of_q, of_k, of_v, *of_gates in zip(*parts, strict=True):
            out, state = super()._after(of_q, of_k, of_v, torch.zeros_like(first), *of_gates)
            outs.append(out)
        return torch.cat(outs, 2), state


FAULTS = {
    "a decay off by log 2": lambda p: changed(p, lambda g: g * math.log(2)),
    "a detached decay": lambda p: changed(p, torch.Tensor.detach),
    "a rate that is left out": lambda p: changed(p, beta=torch.ones_like),
    "a state that is lost": lambda p: changed(p, state=torch.zeros_like),
    "the state before is dropped": lambda p: LastChunkDropped(p, 32),
}


def changed(p, g=lambda g: g, beta=lambda beta: beta, state=lambda state: state):
    """The row with one of its inputs changed on the way in."""
    honest = GatedDelta(p, 64)
    return lambda *x, **more: honest(
        *x, g=g(more["g"]), beta=beta(more["beta"]), state=state(more["state"])
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_refuses(fault):
    p = problem(state=True)
    judged = judge(p, make(p, 3), 3).of("gated_delta")
    honest, define = built("gated_delta", p)
    assert gate(judged, honest, define, 3).reason is None
    assert gate(judged, FAULTS[fault](p), define, 3).reason is not None


@pytest.mark.parametrize("name", ["gated_delta", "kda"])
def test_chunks_cost_in_proportion_to_the_length(name):
    """By the additions and multiplications that torch counts."""
    from torch.utils.flop_counter import FlopCounterMode

    def work(length):
        p = problem(length, phase="forward", dtype="float32")
        _, by_place, by_name = drawn(name, p)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            built(name, p)[0](*by_place, **by_name)
        return counter.get_total_flops()

    assert work(1024) < 4.1 * work(256)
