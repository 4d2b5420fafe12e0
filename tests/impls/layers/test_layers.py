"""Layers against their papers or torch, by outputs and every named gradient; and what they cost."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import profile

from attnbench.gate.watch import left_changed, snapshot
from impls.layers.attention import MultiHeadAttention, from_torch, torch_parameters
from impls.layers.mixed import _edges
from impls.spec import Unsupported
from tests.impls.small import TABLE, both_forms, layer, verdict


def test_weights_by_einsum_are_torchs_by_heads():
    attend, define = both_forms("mha.einsum", layer(dtype="float64"))
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


def weighted(scores, v):
    """The softmax of scores [h, n, m], and the heads of its sums side by side: [n, h e]."""
    p = np.exp(scores - scores.max(-1, keepdims=True))
    out = p / p.sum(-1, keepdims=True) @ v
    return out.swapaxes(0, 1).reshape(out.shape[1], -1)


def latent_of_paper(x, weights, heads, d, latent, rope, causal):
    """arXiv:2405.04434, equations 9 to 19, with every key and value; turns as complex numbers."""
    x, w = x.numpy(), {name: weight.numpy() for name, weight in weights.items()}
    n, half, up = len(x), rope // 2, w["up_weight"].swapaxes(-1, -2)
    turns = np.exp(1j * np.outer(np.arange(n), 10000.0 ** (-2 * np.arange(half) / rope)))

    def turned(y):
        pairs = (y[..., :half] + 1j * y[..., half:]) * turns
        return np.concatenate((pairs.real, pairs.imag), -1)

    q = (x @ w["query_weight"].T).reshape(n, heads, d + rope).swapaxes(0, 1)
    c, shared = np.split(x @ w["down_weight"].T, [latent], -1)
    scores = q[..., :d] @ (c @ up[0]).swapaxes(-1, -2) + turned(q[..., d:]) @ turned(shared).T
    scores = np.where(np.tri(n) if causal else 1, scores / math.sqrt(d + rope), -np.inf)
    return torch.from_numpy(weighted(scores, c @ up[1]) @ w["out_weight"].T)


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("name", ["mla?latent=5&rope=6", "mla?latent=5&rope=6&absorbed=true"])
def test_both_forms_and_the_definition_are_the_papers(name, mask):
    p = layer(mask, dtype="float64", q_len=9, kv_len=9, heads=2, kv_heads=2, head_dim=4)
    attend, define = both_forms(name, p)
    x = torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(1)).double()
    want = latent_of_paper(x[0], define.weights, 2, 4, 5, 6, mask == "causal")
    rows = torch.tensor([8, 2, 0])
    torch.testing.assert_close(define(x, rows, define.weights)[0], want[rows], atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(attend(x)[0], want, atol=1e-12, rtol=0)


def edges_of_paper(form, x, z, weights, heads, d):
    """The formulas at the top of the file, every vector of a pair written out."""
    w, z = {name: weight.numpy() for name, weight in weights.items()}, z.numpy()
    biases = np.concatenate([w["q_bias"], w["k_bias"], w["v_bias"]])
    q, k, v = np.moveaxis((x.numpy() @ w["in_weight"].T + biases).reshape(-1, 3, heads, d), 0, 2)
    product = q @ k.swapaxes(-1, -2)
    if form == "matnet":
        unit = product[..., None] / np.sqrt(d) * w["score_weight"][:, None, None]
        unit += np.einsum("hjr,nmr->hnmj", w["edge_weight"], z) + w["mix1_bias"][:, None, None]
        scores = np.einsum("hnmj,hj->hnm", np.maximum(unit, 0), w["mix_weight"])
    else:
        of_key, of_query = (
            np.einsum("hdr,nmr->hnmd", w[f"edge_{end}_weight"], z) for end in ("key", "query")
        )
        scores = product + (q[:, :, None] * of_key).sum(-1) + (k[:, None] * of_query).sum(-1)
        scores = (scores + (form == "full") * (of_query * of_key).sum(-1)) / np.sqrt(d)
    return torch.from_numpy(weighted(scores, v) @ w["out_weight"].T + w["out_bias"])


@pytest.mark.parametrize("form", ["graph", "full", "matnet"])
def test_the_definition_and_the_fast_form_are_the_formulas(form):
    p = layer(dtype="float64", q_len=7, kv_len=7, heads=2, kv_heads=2, head_dim=4)
    attend, define = both_forms(f"mixed?form={form}&edges=3&hidden=5", p)
    x, z = torch.randn(1, 7, 8).double(), _edges(p, 3, 0)
    want = edges_of_paper(form, x[0], z, define.weights, 2, 4)
    rows = torch.tensor([6, 1])
    torch.testing.assert_close(define(x, rows, define.weights)[0], want[rows], atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(attend(x)[0], want, atol=1e-12, rtol=0)


def layer_of(name, phase="forward", length=32, **more):
    return layer(phase=phase, length=length, level=TABLE.find(name).level, **more)


FAST = {
    "layer": "aten::_native_multi_head_attention",
    "block": "aten::_transformer_encoder_layer_fwd",
}


@pytest.mark.parametrize("name", ["mha.native?need_weights=true", "block.native?norm=post"])
def test_the_gate_takes_the_fast_path(name):
    problem = layer_of(name, length=37, mask="causal+padding:37,20", batch=2, inputs="peaky")
    assert verdict(f"{name}&fastpath=true", problem).reason is None


@pytest.mark.parametrize("name", ["mha.native", "block.native"])
def test_the_note_says_which_path_the_profiler_sees(name):
    for mask, fastpath in (("none", True), ("padding:20", True), ("causal", False)):
        problem = layer_of(name, length=37, mask=mask)
        before = snapshot(), torch.backends.mha.get_fastpath_enabled(), torch.get_rng_state()
        attend, _ = both_forms(f"{name}?fastpath={fastpath}", problem)
        x = torch.randn(1, 37, 32, generator=torch.Generator().manual_seed(0))
        with torch.no_grad(), profile() as profiler:
            attend(x)
        ran = FAST[problem.level] in {event.key for event in profiler.key_averages()}
        assert ran == fastpath
        assert attend.note().startswith("the fast path ran" if fastpath else "no fast path ran")
        assert not left_changed(before[0])
        assert torch.backends.mha.get_fastpath_enabled() == before[1]
        assert torch.equal(torch.get_rng_state(), before[2])


def test_where_torchs_own_is_wrong_is_refused():
    for name, more, message in (
        ("mha.native?need_weights=true", {"mask": "padding:0"}, "makes NaN of them"),
        ("block.native", {"phase": "train", "dtype": "bfloat16"}, "torch's layer norm"),
    ):
        with pytest.raises(Unsupported, match=message):
            both_forms(name, layer_of(name, **more))


B, N, M, E, H = 2, 7, 9, 24, 4


def ran(module, tokens, masks):
    """The output, and the gradients of tokens and of parameters, these by name."""
    leaves = [x.clone().requires_grad_() for x in tokens]
    if isinstance(module, nn.MultiheadAttention):
        turned = leaves if module.batch_first else [x.transpose(0, 1) for x in leaves]
        out, _ = module(*turned, **masks)
        out = out if module.batch_first else out.transpose(0, 1)
    else:
        out = module(*leaves, **masks)
    parameters = dict(module.named_parameters())
    upstream = torch.linspace(-1, 1, out.numel()).view(out.shape)
    gradients = torch.autograd.grad(out, [*leaves, *parameters.values()], upstream)
    return [out, *gradients[:3]], dict(zip(parameters, gradients[3:], strict=True))


HIDDEN = torch.rand(N, M, generator=torch.Generator().manual_seed(0)) < 0.3
HIDDEN[:, 0] = False
PADDING = torch.arange(M) >= torch.tensor([[M], [5]])  # of the second element, four keys
NUMBERS = torch.zeros(B, M).masked_fill(PADDING, -torch.inf)


@pytest.mark.parametrize(
    ("options", "key_bias", "masks"),
    [
        ({}, True, {}),
        ({"kdim": 10, "vdim": 14}, False, {}),
        ({"vdim": 6, "bias": False, "batch_first": False}, True, {}),
        ({}, True, {"attn_mask": torch.randn(B * H, N, M)}),
        ({}, True, {"attn_mask": HIDDEN, "key_padding_mask": PADDING}),
        ({}, True, {"attn_mask": torch.randn(N, M), "key_padding_mask": NUMBERS}),
    ],
)
def test_a_converted_layer_gives_the_same_output_and_every_gradient(options, key_bias, masks):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(E, H, **{"batch_first": True, **options})
    for bias in (x for name, x in theirs.named_parameters() if name.endswith("bias")):
        nn.init.normal_(bias)
    ours = from_torch(theirs, key_bias)
    widths = (options.get(name, E) for name in ("kdim", "vdim"))
    tokens = torch.randn(B, N, E), *(torch.randn(B, M, width) for width in widths)
    (want, by_their_name), (got, by_our_name) = (ran(x, tokens, masks) for x in (theirs, ours))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
    assert ("k_bias" in by_our_name) == (options.get("bias", True) and key_bias)
    torch.testing.assert_close(
        by_our_name, torch_parameters(ours, by_their_name), atol=2e-5, rtol=1e-4
    )


def test_a_causal_mask_over_more_keys_ends_at_the_last():
    ours = MultiHeadAttention(E, H)
    x, y = torch.randn(B, 2, E), torch.randn(B, 5, E)
    hidden = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]).bool()
    torch.testing.assert_close(ours(x, y, is_causal=True), ours(x, y, attn_mask=hidden))
