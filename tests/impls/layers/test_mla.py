"""Latent attention: against loops written from the paper, and one form against the other."""

import math

import numpy as np
import pytest
import torch

import impls
from impls.masks import Mask
from impls.outside import load_function
from impls.problem import Problem
from impls.spec import Unsupported

FORMS = ["mla", "mla?absorbed=true"]


def problem(mask="none", phase="forward", **more):
    given = {"heads": 4, "kv_heads": 4, "q_len": 33, "kv_len": 33, "head_dim": 8, **more}
    return Problem(
        level="layer", mask=Mask.parse(mask), phase=phase, v_head_dim=given["head_dim"], **given
    )


def built(name, asked):
    row = impls.table().find(name)
    assert row.supports(asked) is None
    attend = load_function(row.build)(asked, **row.chosen)
    return attend, load_function(row.definition)(asked, **row.chosen)


@pytest.mark.parametrize(
    "cell",
    [
        {},
        {"mask": "causal"},
        {"mask": "window:5,2"},
        {"mask": "causal+alibi"},
        {"mask": "padding:33,20", "batch": 2},
        {"mask": "padding:33,0", "batch": 2},
        {"mask": "document:10,23"},
        {"heads": 1, "kv_heads": 1},
        {"heads": 3, "kv_heads": 3},
        {"q_len": 1, "kv_len": 1},
        {"head_dim": 1},
        {"phase": "decode", "q_len": 1},
        {"phase": "decode", "q_len": 3, "mask": "causal", "batch": 2},
        {"phase": "decode", "q_len": 1, "mask": "window:9,0", "dtype": "bfloat16"},
        {"phase": "decode", "q_len": 1, "mask": "causal+alibi"},
        {"dtype": "float64"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [*FORMS, "mla?latent=3&rope=2", "mla?latent=50&absorbed=true"])
def test_the_gate_takes_both_forms(verdict, name, cell):
    assert verdict(name, problem(**{"phase": "train", **cell})).reason is None


@pytest.mark.parametrize("inputs", ["normal", "peaky", "outliers", "equal_keys"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FORMS)
def test_the_gate_takes_every_dtype_and_kind_of_input(verdict, name, dtype, inputs):
    asked = problem("causal", "train", dtype=dtype, inputs=inputs, q_len=70, kv_len=70)
    assert verdict(name, asked).reason is None


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
    attend, define = built(name, asked)
    x = torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(1)).double()
    want = by_loops(x[0], define.weights, 2, 4, 5, 6, mask == "causal")
    rows = torch.tensor([8, 2, 0])
    torch.testing.assert_close(define(x, rows, define.weights)[0], want[rows], atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(attend(x)[0], want, atol=1e-12, rtol=0)


@pytest.mark.parametrize("mask", ["none", "causal", "padding:20"])
def test_the_two_forms_agree_to_rounding_gradients_included(mask):
    asked = problem(mask, "train", dtype="float64")
    x = torch.randn(1, 33, 32).double()
    made = []
    for name in FORMS:
        attend, _ = built(name, asked)
        leaf = x.clone().requires_grad_()
        out = attend(leaf)
        wanted = [leaf, *attend.weights.values()]
        made.append((out.detach(), *torch.autograd.grad(out.square().sum(), wanted)))
    for one, other in zip(*made, strict=True):
        assert float((one - other).norm() / one.norm()) < 1e-13


@pytest.mark.parametrize("name", FORMS)
def test_decoding_token_by_token_gives_the_rows_of_the_whole(name):
    x = torch.randn(2, 33, 32)
    whole, _ = built(name, problem("causal", batch=2))
    one, _ = built(name, problem("causal", "decode", q_len=1, batch=2))
    three, _ = built(name, problem("causal", "decode", q_len=3, batch=2))
    with torch.no_grad():
        want = whole(x)
    got, memory = one.step(x[:, 32:], one.remember(x[:, :32]))
    torch.testing.assert_close(got, want[:, 32:])
    assert memory.kept.shape == (2, 33, 8 + 4), "a latent of a quarter and a key of half a head"
    torch.testing.assert_close(three.step(x[:, 30:], three.remember(x[:, :30]))[0], want[:, 30:])


def test_only_distances_between_tokens_count():
    attend, _ = built("mla", problem("causal", dtype="float64"))
    later, _ = built("mla", problem("window:11,0", dtype="float64"))
    x = torch.randn(1, 33, 32).double()
    x[:, 12:24] = x[:, :12]
    with torch.no_grad():
        torch.testing.assert_close(later(x)[:, 23], attend(x)[:, 11], atol=1e-12, rtol=1e-10)


def test_a_context_is_refused():
    refusal = impls.table().find("mla").supports(problem(q_len=5))
    assert refusal == "mla needs q_len equal to kv_len, but in decode"


@pytest.mark.parametrize("option", ["latent=-1", "rope=3", "rope=-2"])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(Unsupported, match=f"{option} must be"):
        built(f"mla?{option}", problem())
