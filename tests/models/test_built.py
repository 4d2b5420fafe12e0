"""A variant kept built for the problems it meets, against torch's own attention."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import impls
from attnbench.models import attention
from attnbench.models.attention import Built, NotServed

ROWS = impls.table()
EVERY_MASK = [
    row.name
    for row in ROWS.rows.values()
    if row.level == "core" and row.exact and not row.ranks and len(row.on("cpu", "masks")) == 9
    if "flex" not in row.name and row.name != "compiled"
]


def variant(name: str) -> Built:
    return Built(ROWS.find(name))


def qkv(q_len=9, kv_len=9, heads=4, kv_heads=2, **kinds):
    source = torch.Generator().manual_seed(q_len * 100 + kv_len)
    shapes = (heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len)
    made = [torch.randn(2, n, h, 8, generator=source) for h, n in shapes]
    return [x.transpose(1, 2).to(**kinds) for x in made]


def left_padded(q_len=9, kv_len=9):
    """Causal, the first four keys of one sequence hidden: its first rows see nothing."""
    at = torch.arange(q_len) + kv_len - q_len
    seen = (at[:, None] >= torch.arange(kv_len)).expand(2, 1, -1, -1).clone()
    seen[0, :, :, :4] = False
    return seen


def torchs(q, k, v, mask=None, scale=None, is_causal=False):
    more = {"scale": scale, "is_causal": is_causal, "enable_gqa": True}
    return F.scaled_dot_product_attention(q, k, v, mask, **more)


ASKED = {
    "none": {},
    "causal": {"is_causal": True},
    "left padding": {"mask": left_padded()},
    "bias": {"mask": torch.linspace(-2, 2, 2 * 4 * 81).view(2, 4, 9, 9)},
    "decode": {"mask": left_padded(2)},
    "scale": {"scale": 1.0, "is_causal": True},
}


@pytest.mark.parametrize("name", EVERY_MASK)
def test_an_exact_variant_does_what_torchs_attention_does(name):
    for asks, how in ASKED.items():
        q, k, v = qkv(2 if asks == "decode" else 9)
        given = variant(name)(q, k, v, **how)
        torch.testing.assert_close(given, torchs(q, k, v, **how), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["einsum", "sdpa.flash", "chunked?block=4"])
def test_the_gradients_are_torchs_and_rows_that_see_nothing_spoil_none(name):
    leaves = [x.requires_grad_() for x in qkv()]
    upstream = torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(3))
    out = variant(name)(*leaves, left_padded())
    assert (out[0, :, :4] == 0).all()
    expected = torchs(*leaves, left_padded()).nan_to_num(0.0)
    wanted = torch.autograd.grad(expected, leaves, upstream)
    for given, right in zip(torch.autograd.grad(out, leaves, upstream), wanted, strict=True):
        torch.testing.assert_close(given, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["matmul", "sdpa.flash", "online", "linear.elu"])
def test_the_output_lies_in_memory_as_the_queries_do(name):
    for q_len, how in itertools.product((16, 1), ({}, {"mask": "causal"})):
        heads_first = [torch.randn(2, 4, n, 8) for n in (q_len, 16, 16)]
        packed = [torch.randn(2, n, 4, 24)[..., :8].transpose(1, 2) for n in (q_len, 16, 16)]
        assert variant(name)(*heads_first, **how).is_contiguous()
        out = variant(name)(*packed, **how)
        assert out.transpose(1, 2).view(2, q_len, 32).is_contiguous()  # as a model goes on


def test_a_variant_is_built_once_for_calls_that_ask_the_same_and_kept_only_so_many_times():
    attend = variant("einsum")
    q, k, v = qkv()
    for _ in range(3):
        attend(q, k, v, is_causal=True)
    assert attend.lasting.cache_info()[:2] == (2, 1)
    for n in range(1, attention.LASTING + 20):
        attend(q, torch.zeros(2, 2, n, 8), torch.zeros(2, 2, n, 8))
        attend(q[:, :, :1], k, v, f"padding:{n % 9 + 1},9")
    assert attend.lasting.cache_info().currsize == attention.LASTING
    assert attend.passing.cache_info().currsize == attention.PASSING


@pytest.mark.parametrize(
    ("dtype", "wanted"), [(torch.float32, torch.bfloat16), (torch.float64, torch.float64)]
)
def test_under_autocast_the_variant_gets_autocasts_dtype_and_runs_outside_of_it(
    dtype, wanted, monkeypatch
):
    q, k, v = qkv(dtype=dtype)
    seen = []

    def build(problem):
        def attend(q, k, v):
            seen.append((problem.dtype, v.dtype, torch.is_autocast_enabled("cpu")))
            return q

        return attend

    with torch.autocast("cpu", dtype=torch.bfloat16):
        given, expected = variant("matmul")(q, k, v), torchs(q, k, v)
        monkeypatch.setattr(attention, "load_function", lambda path: build)
        variant("matmul")(q, k, v)
    assert given.dtype == expected.dtype == wanted
    torch.testing.assert_close(given, expected, rtol=0.02, atol=0.02)
    assert seen == [(str(wanted).removeprefix("torch."), wanted, False)]


def test_an_operator_of_its_own_refuses_a_scale_and_an_approximation_is_scaled_as_softmax_is():
    q, k, v = qkv(kv_heads=4)
    own, near = variant("linear.elu"), variant("nystrom")
    sentence = r"^linear\.elu: scale=1 is asked for, and it computes its own .* 0\.353553"
    with pytest.raises(NotServed, match=sentence):
        own(q, k, v, scale=1.0)
    nearly = float(np.nextafter(8**-0.5, 1))
    assert torch.equal(own(q, k, v, scale=nearly), own(q, k, v))
    doubled = near(q, k, v, scale=2 * 8**-0.5)
    assert torch.equal(doubled, near(2 * q, k, v)) and not torch.equal(doubled, near(q, k, v))


def test_a_variant_with_a_memory_is_asked_by_its_steps_and_gives_what_the_whole_gives():
    q, k, v = qkv(9, 9)
    attend = variant("linear.elu")
    whole = attend(q, k, v, is_causal=True)
    step = attend(q[:, :, -2:], k, v, "causal")
    torch.testing.assert_close(step, whole[:, :, -2:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [row.name for row in ROWS.rows.values() if row.dropout])
def test_dropped_weights_are_zero_as_often_as_was_asked_and_the_others_larger(name):
    """Values that are a unit matrix give the weights themselves."""
    torch.manual_seed(0)
    q, k, _ = qkv(40, 40)
    v = torch.eye(40).expand(2, 2, 40, 40)
    attend = variant(name)
    weights = attend(q, k, v, is_causal=True)
    dropped = attend(q, k, v, is_causal=True, dropout_p=0.25)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75)
    count = int((weights != 0).sum())
    assert abs(int(kept.sum()) / count - 0.75) < 5 * (0.25 * 0.75 / count) ** 0.5
    assert (kept[0] != kept[1]).any() and (kept[:, 0] != kept[:, 1]).any()


LEARNED = torch.zeros(9, 9, requires_grad=True)
REFUSED = [
    ("linear.elu", {"mask": left_padded()}, r"^linear\.elu takes the masks none, causal on cpu"),
    ("window.blocked", {"is_causal": True}, r"^window\.blocked needs a window in the mask"),
    ("chunked?block=0", {}, r"^chunked\?block=0: block=0 must be 1 or more$"),
    ("einsum", {"mask": "causal", "is_causal": True}, "either is_causal or the mask causal"),
    ("einsum", {"mask": LEARNED, "dropout_p": 0.1}, "^einsum: what is added to the scores is"),
    ("einsum", {"mask": "padding:4,70"}, "a length above kv_len=9"),
    ("einsum", {"mask": torch.ones(9, 9).long()}, "a mask of torch.int64 is neither boolean"),
    ("einsum", {"mask": np.ones((9, 9))}, "^einsum: a mask is a tensor, .*, not ndarray"),
    ("flash_attn2", {}, "flash_attn2 .*needs flash-attn>=2.6; flash-attn is not installed"),
]


@pytest.mark.parametrize(("name", "how", "sentence"), REFUSED)
def test_what_is_not_served_is_a_sentence(name, how, sentence):
    with pytest.raises(impls.asked.CantBeDone, match=sentence):
        variant(name)(*qkv(), **how)


def test_tensors_that_do_not_fit_and_gradients_that_would_be_lost_are_a_sentence():
    q, k, v = qkv()
    for wrong, sentence in (
        ((q, k.double(), v), "of one dtype on one device, not torch.float32 on cpu, torch.float64"),
        ((q[0], k[0], v[0]), r"\[batch, heads, tokens, channels\], not \(4, 9, 8\)"),
        ((q[:1], k, v), r"of one batch.*\(1, 4, 9, 8\)"),
        ((q, k, v[:, :, :5]), "k and v of as many heads and tokens"),
        ((q[:, :3], k, v), "heads=3 is not a multiple of kv_heads=2"),
    ):
        with pytest.raises(impls.asked.CantBeDone, match=sentence):
            variant("einsum")(*wrong)
    with pytest.raises(NotServed, match="inplace serves forward, decode, not train"):
        variant("inplace")(q, nn.Parameter(k), v)
