"""triton.decode, interpreted on the CPU, against float64, torch's own and the ruler's gate."""

import pytest
import torch
import torch.nn.functional as F

from impls.spec import Unsupported
from tests.impls.in_triton import checks, interpreted

interpreted.start()
build, check, draw = checks.build, checks.check, checks.draw
MASKS = ("none", "causal", "window:90,0", "causal+window:300,0", "causal@upper-left")


def problem(mask="causal", **changes):
    given = {"phase": "decode", "q_len": 1, "kv_len": 301, "head_dim": 64, **changes}
    return checks.problem(mask, **given)


@pytest.mark.parametrize("q_len", [1, 3])
@pytest.mark.parametrize("mask", MASKS)
def test_it_is_softmax_attention_under_every_mask(mask, q_len):
    p = problem(mask, q_len=q_len)
    check(p, build("triton.decode", p))


@pytest.mark.parametrize("splits", [1, 2, 3, 64])
def test_the_keys_may_be_split_in_any_number(splits):
    p = problem()
    check(p, build("triton.decode", p, splits=splits))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (4, 2), (4, 4), (40, 2)])
def test_heads_in_groups_of_every_size(heads, kv_heads):
    p = problem(heads=heads, kv_heads=kv_heads, batch=2)
    check(p, build("triton.decode", p))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precisions(dtype):
    p = problem(dtype=dtype)
    check(p, build("triton.decode", p))


@pytest.mark.parametrize("head_dim", [1, 24, 80, 128, 256])
def test_widths_that_are_a_power_of_two_and_not(head_dim):
    p = problem(head_dim=head_dim)
    check(p, build("triton.decode", p))


@pytest.mark.parametrize("kv_len", [1, 2, 63, 64, 65])
def test_caches_about_a_block_of_keys(kv_len):
    p = problem(kv_len=kv_len)
    check(p, build("triton.decode", p))


def test_more_rows_than_a_block_holds():
    p = problem(heads=8, kv_heads=1, q_len=11)
    check(p, build("triton.decode", p))


def test_queries_that_see_nothing_give_zeros():
    p = problem(q_len=5, kv_len=3)
    out = build("triton.decode", p)(*draw(p))
    assert torch.equal(out[:, :, :2], torch.zeros_like(out[:, :, :2]))
    check(p, build("triton.decode", p))


def test_it_is_torchs_scaled_dot_product_attention_on_a_cache_by_token():
    p = problem(heads=4, kv_heads=2)
    q, k, v = draw(p)
    k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    want = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(build("triton.decode", p)(q, k, v), want, atol=2e-6, rtol=2e-6)


def test_the_gate_lets_it_pass():
    p = problem(kv_len=130)
    assert checks.failing("triton.decode", p, build("triton.decode", p)) is None


def test_a_number_of_splits_that_no_kernel_takes_is_refused_in_a_sentence():
    with pytest.raises(Unsupported, match="must be 1 to 64"):
        build("triton.decode", problem(), splits=65)
