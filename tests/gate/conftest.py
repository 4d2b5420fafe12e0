"""Softmax attention as dense float64 NumPy, written from the docstrings, and ways to call the gate.

What a mask hides and adds is spelled out here pair by pair: ``hidden(b, h, i, j)`` and
``added(b, h, i, j)``, with i and j counted from the first query and the first key.
"""

import numpy as np
import pytest
import torch

from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge
from impls.masks import Mask
from impls.problem import Problem


class Truth:
    """Helpers for the tests of ``truth``."""

    @staticmethod
    def problem(mask="none", **changes):
        """A small problem: two batch elements, two heads, 24 queries and keys."""
        ordinary = {
            "batch": 2,
            "heads": 2,
            "kv_heads": 2,
            "q_len": 24,
            "kv_len": 24,
            "head_dim": 8,
            "v_head_dim": 8,
            "mask": Mask.parse(mask),
        }
        return Problem(**{**ordinary, **changes})

    @staticmethod
    def tables(problem, seen, added=None):
        """``seen(b, h, i, j)`` and ``added(b, h, i, j)`` as arrays [b, h, n, m]."""
        shape = (problem.batch, problem.heads, problem.q_len, problem.kv_len)
        visible, bias = np.zeros(shape, bool), np.zeros(shape)
        for at in np.ndindex(*shape):
            visible[at] = bool(seen(*at))
            bias[at] = added(*at) if added is not None else 0.0
        return visible, bias

    @staticmethod
    def dense(problem, inputs, dout, visible, bias):
        """Output, dq, dk, dv and entropy share of softmax attention, in float64 NumPy."""
        q, k, v = (x.double().numpy() for x in inputs)
        g = problem.heads // problem.kv_heads
        scale = problem.head_dim**-0.5
        out = np.zeros((*q.shape[:3], v.shape[3]))
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        shares = []
        for b in range(problem.batch):
            for h in range(problem.heads):
                for i in range(problem.q_len):
                    keys = np.flatnonzero(visible[b, h, i])
                    if len(keys) == 0:
                        continue
                    kk, vv = k[b, h // g, keys], v[b, h // g, keys]
                    s = kk @ q[b, h, i] * scale + bias[b, h, i, keys]
                    p = np.exp(s - s.max())
                    p /= p.sum()
                    out[b, h, i] = p @ vv
                    if len(keys) > 1:
                        some = p[p > 0]
                        shares.append(-(some * np.log(some)).sum() / np.log(len(keys)))
                    if dout is None:
                        continue
                    do = dout[b, h, i].double().numpy()
                    jacobian = np.diag(p) - np.outer(p, p)
                    ds = jacobian @ (vv @ do)
                    dq[b, h, i] = ds @ kk * scale
                    dk[b, h // g, keys] += np.outer(ds, q[b, h, i]) * scale
                    dv[b, h // g, keys] += np.outer(p, do)
        return out, dq, dk, dv, float(np.mean(shares)) if shares else 0.0

    @staticmethod
    def verdict(problem, build, define=None, seed=0):
        """What the gate says of a ``build(problem) -> attend``."""
        judged = judge(problem, make(problem, seed), seed)
        return gate(judged, build(problem), define, seed)

    @staticmethod
    def attention(problem, mask=None, *, scale=None, change=None):
        """A plain ``attend`` in torch, to plant faults in.

        ``mask``: what it takes for visible, a bool tensor; by default what the problem says.
        ``change(scores)``: done to the scores before the softmax.
        """
        seen = mask
        if seen is None:
            seen = torch.from_numpy(problem.mask.visible(problem.shape).copy())
        blind = ~seen.any(-1, keepdim=True)
        added = problem.mask.bias(problem.shape)
        added = None if added is None else torch.from_numpy(added).to(getattr(torch, problem.dtype))
        factor = problem.scale if scale is None else scale

        def attend(q, k, v):
            if problem.group > 1:
                k, v = (x.repeat_interleave(problem.group, 1) for x in (k, v))
            scores = q @ k.mT * factor
            scores = scores if added is None else scores + added
            scores = scores if change is None else change(scores)
            scores = scores.masked_fill(~(seen | blind), -torch.inf)
            return (scores.softmax(-1) @ v).masked_fill(blind, 0.0)

        return attend


@pytest.fixture(scope="session")
def truth():
    return Truth
