"""What the tests of the adapters share: problems, inputs, and an output held against the truth."""

import torch

import impls
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


def build(row, p, **options):
    found = impls.table().rows[row]
    return load_function(found.build)(p, **{**found.options, **options})


def problem(mask="none", **changes):
    return Problem(**{**SHAPE, **changes}, mask=Mask.parse(mask))


def inputs(p):
    return [x.requires_grad_(p.gradients) for x in small.inputs(p, seed=7)]


def truth(p, q, k, v):
    """Softmax attention from the mask's own dense form, in float64."""
    q, k, v = (x.detach().double().requires_grad_(p.gradients) for x in (q, k, v))
    seen = torch.from_numpy(p.mask.visible(p.shape))
    bias = p.mask.bias(p.shape)
    keys, values = (x.repeat_interleave(p.group, 1) for x in (k, v))
    scores = q @ keys.transpose(-1, -2) * p.scale + (0.0 if bias is None else torch.tensor(bias))
    blind = ~seen.any(-1, keepdim=True)
    weights = scores.masked_fill(~(seen | blind), -torch.inf).softmax(-1)
    return (q, k, v), (weights @ values).masked_fill(blind, 0.0)


def check(p, attend):
    """The output and, where there are any, the gradients; and that no layout was a copy."""
    leaves = inputs(p)
    out = attend(*leaves)
    twins, want = truth(p, *leaves)
    assert out.shape == want.shape
    torch.testing.assert_close(out.double(), want, atol=2e-6, rtol=2e-6)
    if p.gradients:
        dout = torch.randn(want.shape, generator=torch.Generator().manual_seed(8))
        got = torch.autograd.grad(out, leaves, dout)
        expected = torch.autograd.grad(want, twins, dout.double())
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)
    return leaves


def views(tensors, leaves):
    """True where each tensor lies in the memory of the leaf that it came from."""
    return all(
        t.untyped_storage().data_ptr() == leaf.untyped_storage().data_ptr()
        for t, leaf in zip(tensors, leaves, strict=True)
    )
