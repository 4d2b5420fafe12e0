"""Latent attention: against loops written from the paper, and one form against the other."""

import math

import numpy as np
import pytest
import torch

from tests.impls.small import layer as problem
from tests.impls.small import made


def by_loops(x, weights, heads, d, latent, rope, causal):
    """arXiv:2405.04434, equations 9 to 19, pair by pair; turns as complex numbers."""
    x, w = x.numpy(), {name: weight.numpy() for name, weight in weights.items()}
    down, up = w["down_weight"], w["up_weight"]
    half = rope // 2
    rates = 10000.0 ** (-2 * np.arange(half) / rope)

    def turned(vector, at):
        pairs = (vector[:half] + 1j * vector[half:]) * np.exp(1j * at * rates)
        return np.concatenate((pairs.real, pairs.imag))

    out = np.zeros((len(x), heads * d))
    for n in range(len(x)):
        query = (w["query_weight"] @ x[n]).reshape(heads, d + rope)
        for h in range(heads):
            scores, values = [], []
            for m in range(n + 1 if causal else len(x)):
                c, key = down[:latent] @ x[m], turned(down[latent:] @ x[m], m)
                score = query[h, :d] @ (up[0, h] @ c) + turned(query[h, d:], n) @ key
                scores.append(score / math.sqrt(d + rope))
                values.append(up[1, h] @ c)
            p = np.exp(np.array(scores) - max(scores))
            out[n, h * d : (h + 1) * d] = p @ np.array(values) / p.sum()
    return torch.from_numpy(out @ w["out_weight"].T)


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("name", ["mla?latent=5&rope=6", "mla?latent=5&rope=6&absorbed=true"])
def test_both_forms_and_the_definition_are_the_papers_loops(name, mask):
    asked = problem(mask, dtype="float64", q_len=9, kv_len=9, heads=2, kv_heads=2, head_dim=4)
    attend, define = made(name, asked)
    x = torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(1)).double()
    want = by_loops(x[0], define.weights, 2, 4, 5, 6, mask == "causal")
    rows = torch.tensor([8, 2, 0])
    torch.testing.assert_close(define(x, rows, define.weights)[0], want[rows], atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(attend(x)[0], want, atol=1e-12, rtol=0)
