"""torch's backends forced, from several threads, and as torch itself calls them."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from impls.dense import sdpa
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem
from tests.impls.small import both_forms, inputs

FORCED = {"sdpa.flash": SDPBackend.FLASH_ATTENTION, "sdpa.math": SDPBackend.MATH}


MASKS = ("none", "causal", "causal+window:3,0", "padding:4,9", "alibi")


@pytest.mark.parametrize("name", FORCED)
def test_a_forced_backend_gives_to_the_bit_what_torch_gives_under_its_flag(name):
    for mask, dtype, kv_heads, lengths in itertools.product(
        MASKS, ("float32", "bfloat16"), (4, 2), ((9, 9), (3, 9))
    ):
        problem = Problem(2, 4, kv_heads, *lengths, 8, 8, dtype, Mask.parse(mask), "train")
        leaves = [x.requires_grad_() for x in inputs(problem)]
        with sdpa_kernel(FORCED[name]):
            want = both_forms("sdpa", problem)[0](*leaves)
        got = both_forms(name, problem)[0](*leaves)
        assert got.stride() == want.stride()
        assert torch.equal(got, want)
        above = torch.randn_like(want)
        gradients = [torch.autograd.grad(x, leaves, above) for x in (got, want)]
        assert all(map(torch.equal, *gradients))


@pytest.fixture
def on_cuda(monkeypatch):
    """Records the calls of torch's operators for CUDA; each computes as MATH does."""
    arguments = {}

    def flash(q, k, v, dropout_p, is_causal, return_debug_mask=False, *, scale=None):
        arguments["flash"] = q.shape[-1], scale
        assert q.shape[-1] == k.shape[-1] == v.shape[-1]
        assert q.shape[-1] % 8 == 0
        return math(q, k, v, None, dropout_p, is_causal, scale=scale, enable_gqa=True)

    def with_bias(q, k, v, bias, log_sums, dropout_p, is_causal, *, scale=None):
        arguments["bias"] = bias, log_sums
        return math(q, k, v, bias, dropout_p, is_causal, scale=scale, enable_gqa=True)

    math = torch._scaled_dot_product_attention_math
    monkeypatch.setattr(torch, "_scaled_dot_product_flash_attention", flash)
    for name in ("efficient", "cudnn"):
        monkeypatch.setattr(torch, f"_scaled_dot_product_{name}_attention", with_bias)
    for name in ("flash", "efficient", "cudnn"):
        monkeypatch.setattr(torch.backends.cuda, f"can_use_{name}_attention", lambda _: True)
    return arguments


def problem_and_ends(mask="none", width=8, kv_heads=4):
    """A problem of 9 tokens that says it is on the CPU, and its tensors."""
    problem = Problem(2, 4, kv_heads, 9, 9, width, width, mask=Mask.parse(mask))
    return problem, inputs(problem)


@pytest.mark.parametrize("width", [5, 8])
def test_flash_on_cuda_gets_heads_of_whole_eights_and_the_scale_of_the_true_width(on_cuda, width):
    problem, ends = problem_and_ends("causal", width, kv_heads=2)
    out = sdpa._flash_on_cuda(problem)(*ends)
    want = F.scaled_dot_product_attention(*ends, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out, want)
    assert on_cuda["flash"] == (8, width**-0.5)


@pytest.mark.parametrize("mask", ["none", "padding:4,9", "alibi"])
@pytest.mark.parametrize("name", ["efficient", "cudnn"])
def test_the_others_get_a_mask_of_numbers_and_log_sums_where_backward_comes(on_cuda, name, mask):
    problem, ends = problem_and_ends(mask)
    attend, math = (load_function(f"impls.dense.sdpa:build_{x}")(problem) for x in (name, "math"))
    torch.testing.assert_close(attend(*ends), math(*ends))
    bias, log_sums = on_cuda["bias"]
    assert not log_sums
    if name == "efficient" and bias is not None:
        assert bias.shape == (2, 4, 9, 9)
        assert all(step % 16 == 0 for step in bias.stride()[:-1])
    attend(*(x.requires_grad_() for x in ends))
    assert on_cuda["bias"][1]
