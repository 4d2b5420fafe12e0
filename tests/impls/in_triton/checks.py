"""Shared by the tests of the Triton rows: a problem, the row built, and it against the truth."""

import torch

import impls
from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.small import inputs

SHAPE = {"batch": 1, "heads": 2, "kv_heads": 1, "q_len": 37, "kv_len": 37, "head_dim": 16}
FAR = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}
"""Relative errors, by the norm."""


def problem(mask="none", length=37, **changes):
    """Extents that no block divides, unless the test says otherwise."""
    extents = {**SHAPE, "q_len": length, "kv_len": length, "phase": "train", **changes}
    return Problem(**{"v_head_dim": extents["head_dim"], **extents}, mask=Mask.parse(mask))


def build(row, p, **options):
    """Built directly: a run would refuse the row on a CPU, as it should."""
    variant = impls.table().rows[row]
    assert variant.supports(p.with_(device="cuda")) is None
    return load_function(variant.build)(p, **{**variant.options, **options})


def judged(row, p, attend, seed=3, **options):
    """The verdict of the ruler's own gate, in float64, with every gradient."""
    variant = impls.table().rows[row]
    define = variant.definition and load_function(variant.definition)(
        p, **{**variant.options, **options}
    )
    return gate(judge(p, make(p, seed), seed), attend, define or None, seed)


def failing(row, p, attend, seed=3):
    """The gate's reason to refuse it: None where all holds."""
    return judged(row, p, attend, seed).reason


def draw(p, seed=7):
    """q, k and v as leaves, in the problem's dtype."""
    tensors = [*inputs(p, seed=seed)]
    if p.sinks:
        tensors.append(torch.linspace(-1, 2, p.heads, dtype=tensors[0].dtype))
    return [x.requires_grad_(p.gradients) for x in tensors]


def softmax(p, q, k, v, sinks=None):
    """By the mask's own dense form; rows that see nothing give zeros."""
    visible = torch.from_numpy(p.mask.visible(p.shape))
    blind = ~visible.any(-1, keepdim=True)
    scores = q @ k.mT * p.scale
    if p.softcap:
        scores = p.softcap * torch.tanh(scores / p.softcap)
    scores = scores.masked_fill(~(visible | blind), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)
    return (scores.softmax(-1)[..., : p.kv_len] @ v).masked_fill(blind, 0.0)


def check(p, attend, exact=softmax):
    """The output and, where there are any, the gradients, against float64, by the norm."""
    leaves = draw(p)
    twins = [x.detach().double().requires_grad_(p.gradients) for x in leaves]
    out = attend(*leaves[:3], **({"sinks": leaves[3]} if p.sinks else {}))
    by_head = (x.repeat_interleave(p.group, 1) for x in twins[1:3])
    want = exact(p, twins[0], *by_head, *twins[3:])
    pairs = [(out, want)]
    if p.gradients:
        dout = torch.randn(want.shape, generator=torch.Generator().manual_seed(8)).to(out.dtype)
        got = torch.autograd.grad(out, leaves, dout)
        pairs += zip(got, torch.autograd.grad(want, twins, dout.double()), strict=True)
    for one, other in pairs:
        assert one.shape == other.shape and one.dtype == getattr(torch, p.dtype)
        off = (one.detach().double() - other.detach()).norm() / other.detach().norm().clamp(min=1.0)
        assert off < FAR[p.dtype], float(off)


def read_in_place(p, attend):
    """The same bits where tokens, or the upstream gradient, do not lie next to each other."""
    leaves = draw(p)
    want = attend(*leaves)
    dout = torch.ones(()).expand(want.shape)  # no two numbers at different places
    gradients = torch.autograd.grad(want, leaves, dout.contiguous())
    by_token = [x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in leaves]
    sliced = [torch.stack([x.detach(), x.detach()], -1)[..., 0] for x in leaves]
    for others in (by_token, sliced):
        others = [x.requires_grad_() for x in others]
        out = attend(*others)
        assert torch.equal(out, want)
        assert all(map(torch.equal, torch.autograd.grad(out, others, dout), gradients))
