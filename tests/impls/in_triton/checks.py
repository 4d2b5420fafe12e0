"""Shared by the tests of the Triton rows: a problem, the row built, and it against the truth."""

import torch

import impls
from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.small import draw

SHAPE = {"batch": 1, "heads": 2, "kv_heads": 1, "q_len": 37, "kv_len": 37, "head_dim": 16}


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
