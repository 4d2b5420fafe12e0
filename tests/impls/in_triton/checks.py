"""What the tests of the Triton rows share: a problem, the row built, and it against the truth."""

import torch

import impls
from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.small import inputs

SHAPE = {
    "batch": 1,
    "heads": 2,
    "kv_heads": 1,
    "q_len": 37,
    "kv_len": 37,
    "head_dim": 16,
    "v_head_dim": 16,
    "phase": "train",
}


def problem(mask="none", **changes):
    """Extents that no block divides, unless the test says otherwise."""
    if "head_dim" in changes:
        changes = {"v_head_dim": changes["head_dim"], **changes}
    return Problem(**{**SHAPE, **changes}, mask=Mask.parse(mask))


def build(row, p, **options):
    """Built directly: a run would refuse the row on a CPU, as it should."""
    found = impls.table().rows[row]
    assert found.supports(p.with_(device="cuda")) is None
    return load_function(found.build)(p, **{**found.options, **options})


def failing(row, p, attend, seed=3):
    """What the ruler's own gate finds, in float64, with every gradient: None where all holds."""
    found = impls.table().rows[row]
    define = found.definition and load_function(found.definition)(p, **found.options)
    return gate(judge(p, make(p, seed), seed), attend, define or None, seed).reason


def draw(p, seed=7):
    """q, k and v as leaves, in the problem's dtype."""
    return [x.requires_grad_(p.gradients) for x in inputs(p, seed=seed)]


FAR = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}
"""Relative errors, by the norm."""


def truth(p, q, k, v):
    """Softmax attention from the mask's own dense form, in float64, and its leaves."""
    q, k, v = (x.detach().double().requires_grad_(p.gradients) for x in (q, k, v))
    seen = torch.from_numpy(p.mask.visible(p.shape))
    keys, values = (x.repeat_interleave(p.group, 1) for x in (k, v))
    blind = ~seen.any(-1, keepdim=True)
    weights = (q @ keys.mT * p.scale).masked_fill(~(seen | blind), -torch.inf).softmax(-1)
    return (q, k, v), (weights @ values).masked_fill(blind, 0.0)


def close(p, got, want):
    """Of one tensor: as near as the dtype lets it be, by the norm of the difference."""
    assert got.shape == want.shape and got.dtype == getattr(torch, p.dtype)
    off = (got.detach().double() - want.detach()).norm() / want.detach().norm().clamp(min=1.0)
    assert off < FAR[p.dtype], float(off)


def check(p, attend, leaves=None, exact=truth):
    """The output and, where there are any, the gradients, against float64."""
    leaves = leaves or draw(p)
    out = attend(*leaves)
    twins, want = exact(p, *leaves)
    close(p, out, want)
    if p.gradients:
        dout = torch.randn(want.shape, generator=torch.Generator().manual_seed(8)).to(out.dtype)
        got = torch.autograd.grad(out, leaves, dout)
        for one, other in zip(got, torch.autograd.grad(want, twins, dout.double()), strict=True):
            close(p, one, other)


def read_in_place(p, attend):
    """The same bits where tokens, or the upstream gradient, do not lie next to each other."""
    leaves = draw(p)
    want = attend(*leaves)
    dout = torch.ones(()).expand(want.shape)  # no two numbers at different places
    wanted = torch.autograd.grad(want, leaves, dout.contiguous())
    by_token = [x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in leaves]
    sliced = [torch.stack([x.detach(), x.detach()], -1)[..., 0] for x in leaves]
    for others in (by_token, sliced):
        others = [x.requires_grad_() for x in others]
        out = attend(*others)
        assert torch.equal(out, want)
        for one, other in zip(torch.autograd.grad(out, others, dout), wanted, strict=True):
            assert torch.equal(one, other)
