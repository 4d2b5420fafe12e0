"""Layers against loops over pairs, or against torch's layer by heads; and what layers cost."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import impls
from impls.layers.mixed import _edges
from tests.impls.small import cost, layer, made


def test_weights_by_einsum_are_torchs_by_heads():
    attend, define = made("mha.einsum", layer(dtype="float64"))
    w = {name: value.detach() for name, value in define.weights.items()}
    theirs = nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
    torchs = {
        "in_proj_weight": torch.cat([w[f"{n}_weight"].flatten(0, 1) for n in "qkv"]),
        "in_proj_bias": torch.cat([w[f"{n}_bias"] for n in "qkv"]),
        "out_proj.weight": w["out_weight"].flatten(0, 1).T,
        "out_proj.bias": w["out_bias"],
    }
    theirs.load_state_dict(torchs)
    x = torch.randn(1, 33, 32).double()
    for out in (attend(x), define(x, torch.arange(33), define.weights)):
        torch.testing.assert_close(out, theirs(x, x, x)[0], atol=1e-12, rtol=1e-10)


# ---- latent attention ----------------------------------------------------------------------------


def latent_loops(x, weights, heads, d, latent, rope, causal):
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
    asked = layer(mask, dtype="float64", q_len=9, kv_len=9, heads=2, kv_heads=2, head_dim=4)
    attend, define = made(name, asked)
    x = torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(1)).double()
    want = latent_loops(x[0], define.weights, 2, 4, 5, 6, mask == "causal")
    rows = torch.tensor([8, 2, 0])
    torch.testing.assert_close(define(x, rows, define.weights)[0], want[rows], atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(attend(x)[0], want, atol=1e-12, rtol=0)


# ---- scores with edges ---------------------------------------------------------------------------


def edge_loops(form, x, z, weights, heads, d):
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


@pytest.mark.parametrize("form", ["graph", "full", "matnet"])
def test_the_definition_and_the_fast_form_are_loops_over_pairs(form):
    asked = layer(dtype="float64", q_len=7, kv_len=7, heads=2, kv_heads=2, head_dim=4)
    attend, define = made(f"mixed?form={form}&edges=3&hidden=5", asked)
    x, z = torch.randn(1, 7, 8).double(), _edges(asked, 3, 0)
    want = edge_loops(form, x[0], z, define.weights, 2, 4)
    rows = torch.tensor([6, 1])
    torch.testing.assert_close(define(x, rows, define.weights)[0], want[rows], atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(attend(x)[0], want, atol=1e-12, rtol=0)


# ---- costs ---------------------------------------------------------------------------------------


def asked(name, phase="forward", **more):
    return layer(phase=phase, length=32, level=impls.table().find(name).level, **more)


@pytest.mark.parametrize(
    "name",
    ["mha?core=matmul", "mha.einsum", "mha.native?need_weights=true", "mla?latent=5&rope=6",
     "mla?absorbed=true", "block?core=matmul&ff=3", "mixed?edges=3"],
)  # fmt: skip
def test_the_flops_are_those_that_run(name):
    for problem in (asked(name), asked(name, q_len=16, kv_len=16, batch=3)):
        attend, x = made(name, problem)[0], torch.randn(problem.batch, problem.q_len, 32)
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter as counted:
            attend(x)
        padding = 0
        if name.startswith("mla"):  # values as wide as keys: products with zeros
            padding = 2 * problem.batch * 4 * problem.q_len**2 * attend.rope
        assert cost(name, problem).flops == counted.get_total_flops() - padding


@pytest.mark.parametrize(
    "name",
    ["mha?bias=false", "mha.einsum", "mha.native", "mla", "mixed", "mixed?form=full",
     "mixed?form=matnet", "block?norm=post&ff=1", "block.native"],
)  # fmt: skip
def test_the_bytes_are_those_of_tokens_weights_and_output(name):
    problem = asked(name, batch=2)
    weights = sum(w.numel() for w in made(name, problem)[0].weights.values())
    edges = 32 * 32 * 8 if name.startswith("mixed") else 0
    assert cost(name, problem).bytes == (2 * 2 * 32 * 32 + weights + edges) * 4


def test_a_decoder_projects_new_tokens_alone_and_reads_its_cache():
    short, long = (cost("mha", asked("mha", "decode", q_len=1, kv_len=n)) for n in (1001, 2001))
    assert long.flops - short.flops == 1000 * 4 * 32
    assert long.bytes - short.bytes == 1000 * 2 * 32 * 4
