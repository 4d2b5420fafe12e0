"""Shared by the tests of the adapters: problems, inputs, and an output held against the truth."""

import torch

from attnbench.gate.oracle import exact
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem
from tests.impls import small

SHAPE = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 11, "kv_len": 11, "head_dim": 16,
    "v_head_dim": 16, "phase": "train",
}  # fmt: skip
"""Every extent is another number, so that a layout that is mixed up fails."""
MASKS = ("none", "causal", "window:3,2", "causal+window:4,1")
DOCUMENTS = ("document:4,6,1", "causal+document:4,6,1", "causal+document:4,6,1+window:2,5")
UNEQUAL = {"q_len": 5, "kv_len": 13}
DECODE = {"q_len": 1, "kv_len": 13, "phase": "decode"}


def build(row, p, what="build", **options):
    variant = small.TABLE.rows[row]
    return load_function(getattr(variant, what))(p, **{**variant.options, **options})


def problem(mask="none", **changes):
    return Problem(**{**SHAPE, **changes}, mask=Mask.parse(mask))


def inputs(p):
    return [x.requires_grad_(p.gradients) for x in small.inputs(p, seed=7)]


def check(p, attend):
    """The output and, where there are any, the gradients, against the oracle."""
    leaves, every = inputs(p), torch.arange(p.q_len)
    out = attend(*leaves)
    dout = torch.randn(p.output_shape, generator=torch.Generator().manual_seed(8))
    ends = (x.detach() for x in leaves)
    want = exact(p, *ends, every, dout if p.gradients else None)
    assert out.shape == want.out.shape
    torch.testing.assert_close(out.double(), want.out, atol=2e-6, rtol=2e-6)
    if p.gradients:
        got = torch.autograd.grad(out, leaves, dout)
        for one, other in zip(got, (want.dq, want.dk, want.dv), strict=True):
            torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)
    return leaves
