"""Softmax attention as dense float64 NumPy, from the docstrings, and ways to call the gate."""

import numpy as np
import pytest
import torch

from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge
from impls.masks import Mask
from impls.problem import Problem


class Truth:
    @staticmethod
    def problem(mask="none", **changes):
        """A small problem: two batch elements, two heads, 24 queries and keys."""
        extent = {"batch": 2, "heads": 2, "kv_heads": 2, "head_dim": 8, "v_head_dim": 8}
        extent |= {"q_len": 24, "kv_len": 24, "mask": Mask.parse(mask)}
        return Problem(**{**extent, **changes})

    @staticmethod
    def dense(problem, inputs, dout, visible, bias):
        """Output, dq, dk, dv and entropy share of softmax attention, in float64 NumPy."""
        group, scale = problem.heads // problem.kv_heads, problem.head_dim**-0.5
        q, k, v = (x.double().numpy() for x in inputs.values())
        k, v = (np.repeat(x, group, 1) for x in (k, v))

        def t(x):
            return x.swapaxes(-1, -2)

        p = np.where(visible, q @ t(k) * scale + bias, -1e300)  # all equal where nothing is seen
        p = np.exp(p - p.max(-1, keepdims=True)) * visible
        p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)
        count = visible.sum(-1)
        shares = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)[count > 1] / np.log(count[count > 1])
        entropy = float(shares.mean()) if shares.size else 0.0
        if dout is None:
            return p @ v, None, None, None, entropy
        dout = dout.double().numpy()
        dp = dout @ t(v)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
        dk, dv = (
            x.reshape(problem.batch, problem.kv_heads, group, *x.shape[2:]).sum(2)
            for x in (t(ds) @ q, t(p) @ dout)
        )
        return p @ v, ds @ k, dk, dv, entropy

    @staticmethod
    def verdict(problem, build, define=None, seed=0):
        """What the gate says of a ``build(problem) -> attend``."""
        judged = judge(problem, make(problem, seed), seed)
        return gate(judged, build(problem), define, seed)

    @staticmethod
    def attention(problem, mask=None):
        """A plain ``attend``, to plant faults in; ``mask`` is what it takes for visible."""
        seen = torch.from_numpy(problem.mask.visible(problem.shape).copy())
        seen = seen if mask is None else mask
        blind = ~seen.any(-1, keepdim=True)
        added = problem.mask.bias(problem.shape)
        dtype = getattr(torch, problem.dtype)
        added = 0.0 if added is None else torch.from_numpy(added).to(dtype)

        def attend(q, k, v):
            k, v = (x.repeat_interleave(problem.group, 1) for x in (k, v))
            scores = q @ k.mT * problem.scale + added
            scores = scores.masked_fill(~(seen | blind), -torch.inf)
            return (scores.softmax(-1) @ v).masked_fill(blind, 0.0)

        return attend


@pytest.fixture(scope="session")
def truth():
    return Truth
