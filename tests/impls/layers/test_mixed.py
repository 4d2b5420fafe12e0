"""Scores with edges: against loops over pairs."""

import numpy as np
import pytest
import torch

from impls.layers.mixed import _edges
from tests.impls.small import layer as problem
from tests.impls.small import made

FORMS = ["graph", "full", "matnet"]


def by_loops(form, x, z, weights, heads, d):
    """Pair by pair, from the formulas at the top of the file."""
    w = {name: weight.numpy() for name, weight in weights.items()}
    width = heads * d
    biases = np.concatenate([w["q_bias"], w["k_bias"], w["v_bias"]])
    flat = x.numpy() @ w["in_weight"].T + biases
    q, k, v = (flat[:, i * width : (i + 1) * width].reshape(-1, heads, d) for i in range(3))
    z, out = z.numpy(), np.zeros((len(x), heads, d))
    for h in range(heads):
        for n in range(len(x)):
            scores = []
            for m in range(len(x)):
                if form == "matnet":
                    unit = w["score_weight"][h] * (q[n, h] @ k[m, h]) / np.sqrt(d)
                    unit = unit + w["edge_weight"][h] @ z[n, m] + w["mix1_bias"][h]
                    scores.append(np.maximum(unit, 0) @ w["mix_weight"][h])
                    continue
                of_key = w["edge_key_weight"][h] @ z[n, m]
                of_query = w["edge_query_weight"][h] @ z[n, m]
                score = q[n, h] @ k[m, h] + q[n, h] @ of_key + k[m, h] @ of_query
                score += of_query @ of_key if form == "full" else 0.0
                scores.append(score / np.sqrt(d))
            p = np.exp(np.array(scores) - max(scores))
            out[n, h] = p @ v[:, h] / p.sum()
    return torch.from_numpy(out.reshape(len(x), width) @ w["out_weight"].T + w["out_bias"])


@pytest.mark.parametrize("form", FORMS)
def test_the_definition_and_the_fast_form_are_loops_over_pairs(form):
    asked = problem(dtype="float64", q_len=7, kv_len=7, heads=2, kv_heads=2, head_dim=4)
    attend, define = made(f"mixed?form={form}&edges=3&hidden=5", asked)
    x, z = torch.randn(1, 7, 8).double(), _edges(asked, 3, 0)
    want = by_loops(form, x[0], z, define.weights, 2, 4)
    rows = torch.tensor([6, 1])
    torch.testing.assert_close(define(x, rows, define.weights)[0], want[rows], atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(attend(x)[0], want, atol=1e-12, rtol=0)
