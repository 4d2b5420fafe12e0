"""A variant kept built for the problems it meets, against torch's own attention."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import impls
from attnbench.models import attention
from attnbench.models.attention import Built, NotServed
from impls.masks import Mask
from impls.problem import Problem
from tests.core.tuned_lines import keep, line
from tests.models import build

ROWS, SOURCE = impls.table(), torch.Generator().manual_seed(5)
EVERY_MASK = [
    row.name
    for row in ROWS.rows.values()
    if row.level == "core" and row.exact and not row.ranks and len(row.on("cpu", "masks")) == 9
    if "flex" not in row.name and row.name != "compiled"
]


def variant(name: str) -> Built:
    return Built(ROWS.find(name))


def test_a_program_runs_with_the_options_tuned_for_each_of_its_calls(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    causal = Problem(2, 4, 2, 9, 9, 16, 16, mask=Mask.parse("causal"))
    keep(line(causal, block=3), line(causal.with_(phase="train"), block=5))
    blocks = []
    monkeypatch.setattr(attention, "load_function", lambda _: lambda problem, block: blocks.append(
        (problem.phase, problem.q_len, block)
    ) or (lambda q, k, v: q))  # fmt: skip
    for name in ("chunked", "chunked?block=256"):
        attend = variant(name)
        for tokens, gradient in ((9, False), (9, True), (64, False)):
            q = torch.zeros(2, 4, tokens, 16, requires_grad=gradient)
            attend(q, q[:, :2], q[:, :2], is_causal=True)
    tuned, default = blocks[:3], blocks[3:]
    assert tuned == [("forward", 9, 3), ("train", 9, 5), ("forward", 64, 256)]
    assert [block for *_, block in default] == [256] * 3


LOWEST = torch.finfo(torch.float32).min
qkv = functools.partial(build.qkv, m=9, kv_heads=2)


def left_padded(q_len=9, kv_len=9):
    """Causal, the first four keys of one sequence hidden: its first rows see nothing."""
    at = torch.arange(q_len) + kv_len - q_len
    seen = (at[:, None] >= torch.arange(kv_len)).expand(2, 1, -1, -1).clone()
    seen[0, :, :, :4] = False
    return seen


def torchs(q, k, v, mask=None, scale=None, is_causal=False):
    more = {"scale": scale, "is_causal": is_causal, "enable_gqa": True}
    return F.scaled_dot_product_attention(q, k, v, mask, **more)


@pytest.mark.parametrize("name", EVERY_MASK)
def test_an_exact_variant_does_what_torchs_attention_does(name):
    for q_len, how in (
        (9, {}),
        (9, {"is_causal": True}),
        (9, {"mask": left_padded()}),
        (9, {"mask": torch.zeros(2, 1, 9, 9).masked_fill(~left_padded(), LOWEST)}),
        (9, {"mask": torch.linspace(-2, 2, 2 * 4 * 81).view(2, 4, 9, 9)}),
        (2, {"mask": left_padded(2)}),
        (9, {"scale": 1.0, "is_causal": True}),
    ):
        q, k, v = qkv(q_len)
        given = variant(name)(q, k, v, **how)
        torch.testing.assert_close(given, torchs(q, k, v, **how), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["einsum", "sdpa.flash", "chunked?block=4"])
def test_the_gradients_are_torchs_and_rows_that_see_nothing_spoil_none(name):
    leaves = [x.requires_grad_() for x in qkv(9)]
    upstream = torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(3))
    out = variant(name)(*leaves, left_padded())
    assert (out[0, :, :4] == 0).all()
    expected = torchs(*leaves, left_padded()).nan_to_num(0.0)
    wanted = torch.autograd.grad(expected, leaves, upstream)
    given = torch.autograd.grad(out, leaves, upstream)
    torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)


def test_under_autocast_the_variant_gets_autocasts_dtype_and_runs_outside_of_it(monkeypatch):
    seen = []
    see = lambda q, k, v: seen.append((v.dtype, torch.is_autocast_enabled("cpu"))) or q  # noqa: E731
    for dtype, wanted in ((torch.float32, torch.bfloat16), (torch.float64, torch.float64)):
        q, k, v = qkv(9, dtype=dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16), monkeypatch.context() as patch:
            given, expected = variant("matmul")(q, k, v), torchs(q, k, v)
            patch.setattr(attention, "load_function", lambda path: lambda problem: see)
            variant("matmul")(q, k, v)
        assert given.dtype == expected.dtype == wanted
        torch.testing.assert_close(given, expected, rtol=0.02, atol=0.02)
        assert seen.pop() == (wanted, False) and not seen


def test_under_autocast_sinks_are_of_the_queries_dtype():
    q, k, v = qkv(9)
    sinks = torch.zeros(4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = variant("einsum")(q, k, v, sinks=sinks)
    out.sum().backward()
    assert out.dtype == torch.bfloat16 and sinks.grad.dtype == torch.float32


def test_an_approximation_is_scaled_as_softmax_is_and_a_rounded_usual_scale_is_the_usual_one():
    q, k, v = qkv(9, kv_heads=4)
    own, near = variant("linear.elu"), variant("nystrom")
    nearly = float(np.nextafter(8**-0.5, 1))
    assert torch.equal(own(q, k, v, scale=nearly), own(q, k, v))
    doubled = near(q, k, v, scale=2 * 8**-0.5)
    assert torch.equal(doubled, near(2 * q, k, v)) and not torch.equal(doubled, near(q, k, v))


def test_a_variant_with_a_memory_is_asked_by_its_steps_and_gives_what_the_whole_gives():
    q, k, v = qkv(9)
    attend = variant("linear.elu")
    whole = attend(q, k, v, is_causal=True)
    step = attend(q[:, :, -2:], k, v, "causal")
    torch.testing.assert_close(step, whole[:, :, -2:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [row.name for row in ROWS.rows.values() if row.dropout])
def test_dropped_weights_are_zero_as_often_as_was_asked_and_the_others_larger(name):
    """Values that are a unit matrix give the weights themselves."""
    torch.manual_seed(0)
    q, k, _ = qkv(40, m=40)
    v = torch.eye(40).expand(2, 2, 40, 40)
    attend = variant(name)
    weights = attend(q, k, v, is_causal=True)
    dropped = attend(q, k, v, is_causal=True, dropout_p=0.25)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75)
    count = int((weights != 0).sum())
    assert abs(int(kept.sum()) / count - 0.75) < 5 * (0.25 * 0.75 / count) ** 0.5
    assert (kept[0] != kept[1]).any() and (kept[:, 0] != kept[:, 1]).any()


LEARNED, (Q, K, V) = torch.zeros(9, 9, requires_grad=True), qkv(9)
GATED, G = {"mask": "causal"}, torch.full((2, 2, 9, 8), -0.5)
REFUSED = [
    ("linear.elu", {"mask": left_padded()}, r"^linear\.elu takes the masks none, causal on cpu"),
    ("window.blocked", {"is_causal": True}, r"^window\.blocked needs a window in the mask"),
    ("chunked?block=0", {}, r"^chunked\?block=0: block=0 must be 1 or more$"),
    ("einsum", {"mask": "causal", "is_causal": True}, "either is_causal or the mask causal"),
    ("einsum", {"mask": LEARNED, "dropout_p": 0.1}, "^einsum: what is added to the scores is"),
    ("einsum", {"mask": "padding:4,70"}, "a length above kv_len=9"),
    ("einsum", {"mask": np.ones((9, 9))}, "^einsum: a mask is a tensor, .*, not ndarray"),
    ("flash_attn2", {}, "flash_attn2 .*needs flash-attn>=2.6; flash-attn is not installed"),
    ("einsum", {"k": K.double()}, "of one dtype on one device, not torch.float32 on cpu, torch.f"),
    ("einsum", {"q": Q[0]}, r"q is \[batch, heads, q_len, head_dim\].* \(4, 9, 8\)"),
    ("einsum", {"q": Q[:1]}, r"k is \[batch, .*here with batch 1, .*its shape is \(2, "),
    ("einsum", {"v": V[:, :, :5]}, r"v is \[.*here with batch 2, kv_heads 2, kv_len 9; "),
    ("einsum", {"sinks": torch.zeros(3)}, r"sinks is \[heads\], here with heads 4; .* \(3,\)"),
    ("einsum", {"sinks": [0.0]}, "sinks must be a tensor, as q, k and v are"),
    ("einsum", {"sinks": torch.zeros(4).double()}, "be float32 on cpu, as q is, and is float64 on"),
    ("einsum", {"sinks": torch.zeros(4, device="meta")}, "is float32 on meta"),
    ("sdpa", {"return_lse": True}, "sdpa takes no lse"),
    ("einsum", {"lse": Q}, "it takes no lse; by name it takes sinks; return_lse=True asks for"),
    ("einsum", {"v_in_k": True}, r"it takes no v_in_k; .*; v=k\[\.\.\., :n\] is a view"),
    ("einsum", {"g": Q}, "it takes no g; by name it takes sinks"),
    ("einsum", {"scale": "1"}, "scale is '1'; it must be a number above 0"),
    ("einsum", {"mask": "blocks:4,4"}, "the blocks add up to 8 tokens, but the problem has 9 keys"),
    ("gla", {**GATED, "g": -G}, "gla: g must be 0 or below, and goes from 0.5 to 0.5"),
    ("gla", {**GATED, "g": G.long()}, "g must be float32 on cpu, as q is, and is int64 on cpu"),
    (
        "delta",
        {**GATED, "beta": G[..., 0] * -5},
        "beta must be 0 or above and 2 or below",
    ),
    (
        "gla",
        {**GATED, "g": G, "state": torch.zeros(2, 2, 8, 4)},
        r"state is \[batch, kv_h",
    ),
    ("gla", {**GATED, "g": G, "state": torch.zeros(2, 2, 8, 8).half()}, "state must be float32 on"),
    ("einsum", {"softcap": 0.0}, "softcap is 0.0; it must be a number above 0"),
    ("sdpa", {"softcap": 2.0}, "sdpa takes no softcap"),
    ("einsum", {"return_state": True}, "it has no state to return"),
    ("gated_delta", {}, "it takes g, beta too, by name, after q, k and v"),
    ("einsum", {"q": Q[:, :3]}, "heads=3 is not a multiple of kv_heads=2"),
    ("inplace", {"k": nn.Parameter(K)}, "inplace is for forward, decode only"),
    ("linear.elu", {"k": Q, "v": Q, "scale": 1.0, "mask": "causal"}, "linear.elu takes no scale"),
]


@pytest.mark.parametrize(("name", "how", "sentence"), REFUSED)
def test_what_is_not_served_is_a_sentence(name, how, sentence):
    q, k, v = (how.get(tensor, own) for tensor, own in zip("qkv", (Q, K, V), strict=True))
    more = {word: value for word, value in how.items() if word not in "qkv"}
    with pytest.raises(impls.errors.CantBeDone, match=sentence):
        variant(name)(q, k, v, **more)


def test_a_bias_of_any_form_gets_its_gradient_and_so_do_q_k_and_v():
    for name, form in (
        ("einsum", (3, 4, 6, 7)),
        ("sdpa.flash", (1, 4, 6, 7)),
        ("online", (4, 1, 7)),
        ("online", (3, 1, 6, 1)),
    ):
        leaves = qkv(6, m=7, batch=3, dtype=torch.float64, grad=True)
        leaves.append(torch.randn(form, dtype=torch.float64, generator=SOURCE).requires_grad_())
        upstream = torch.randn(3, 4, 6, 8, dtype=torch.float64, generator=SOURCE)
        out = variant(name)(*leaves, scale=0.7)
        q, k, v = leaves[0], *(x.repeat_interleave(2, 1) for x in leaves[1:3])
        expected = (q @ k.mT * 0.7 + leaves[3]).softmax(-1) @ v
        torch.testing.assert_close(out, expected)
        wanted = torch.autograd.grad(expected, leaves, upstream)
        first = torch.autograd.grad(out, leaves, upstream, retain_graph=True)
        torch.testing.assert_close(first, wanted)
    with pytest.raises(NotServed, match="its gradient has no gradient of its own"):
        torch.autograd.grad(out, leaves, upstream, create_graph=True)


def test_calls_that_show_no_values_are_refused_by_a_sentence():
    q, k, v = qkv(9)
    masks, attend = torch.ones(3, 9, 9).tril().bool(), variant("matmul")
    with pytest.raises(
        impls.errors.CantBeDone, match=r"torch\.func's transforms and torch\.jit\.trace"
    ):
        torch.vmap(lambda mask: attend(q, k, v, mask))(masks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_hidden_by_a_low_number_is_hidden_whatever_the_scores_and_the_dtype(dtype):
    q, k, v = (torch.randn(1, 2, 6, 8, generator=SOURCE).to(dtype) for _ in "qkv")
    q, k = 9 * q.abs(), 9 * k.abs()  # -1e9 and such a score are more than -1e9
    seen = torch.ones(6, 6).tril(-1).bool()  # the first row sees nothing
    bias = torch.zeros(6, 6).masked_fill(~seen, -1e9).to(dtype).requires_grad_()
    out = variant("einsum")(q, k, v, bias)
    assert (out[:, :, 0] == 0).all()
    upstream = torch.randn(out.shape, generator=SOURCE).to(dtype)
    (given,) = torch.autograd.grad(out, bias, upstream)
    assert (given[~seen] == 0).all() and (given[seen] != 0).any()


def test_an_output_that_the_row_would_overwrite_is_the_callers(monkeypatch):
    place = torch.empty(2, 4, 9, 8)
    built = lambda problem: lambda q, k, v: place.copy_(torchs(q, k, v))  # noqa: E731
    monkeypatch.setattr(attention, "load_function", lambda path: built)
    attend = Built(ROWS.find("matmul").with_(reuses_output=True))
    q, k, v = qkv(9)
    tokens_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    for given in ((q, k, v), (tokens_first, k, v)):
        first = attend(*given)
        attend(q + 1, k, 2 * v)
        torch.testing.assert_close(first, torchs(q, k, v))
