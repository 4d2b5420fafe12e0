"""The gradient of a bias beside a variant that gives none, against autograd through plain form."""

import pytest
import torch

import impls
from attnbench.models.attention import Built

SOURCE = torch.Generator().manual_seed(5)


def plainly(q, k, v, bias, seen, scale):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * scale + bias
    return scores.masked_fill(~seen, -1e30).softmax(-1).masked_fill(~seen, 0.0) @ v


@pytest.mark.parametrize("name", ["einsum", "sdpa.flash", "online"])
@pytest.mark.parametrize("form", [(3, 4, 6, 7), (1, 4, 6, 7), (4, 1, 7), (7,), (3, 1, 6, 1)])
def test_a_bias_of_any_form_gets_its_gradient_and_so_do_q_k_and_v(name, form):
    leaves = [
        torch.randn(3, h, n, 8, dtype=torch.float64, generator=SOURCE).requires_grad_()
        for h, n in ((4, 6), (2, 7), (2, 7))
    ]
    leaves.append(torch.randn(form, dtype=torch.float64, generator=SOURCE).requires_grad_())
    upstream = torch.randn(3, 4, 6, 8, dtype=torch.float64, generator=SOURCE)
    out = Built(impls.table().find(name))(*leaves, scale=0.7)
    everywhere = torch.ones(6, 7).bool()
    expected = plainly(*leaves, everywhere, 0.7)
    torch.testing.assert_close(out, expected)
    wanted = torch.autograd.grad(expected, leaves, upstream)
    for given, right in zip(torch.autograd.grad(out, leaves, upstream), wanted, strict=True):
        torch.testing.assert_close(given, right)


def test_what_a_bias_hides_and_rows_that_see_nothing_have_no_gradient():
    q, k, v = (torch.randn(1, 2, 6, 8, dtype=torch.float64, generator=SOURCE) for _ in "qkv")
    bias = torch.randn(6, 6, dtype=torch.float64, generator=SOURCE)
    seen = torch.ones(6, 6).tril(-1).bool()  # the first row sees nothing
    bias = bias.masked_fill(~seen, torch.finfo(torch.float64).min).requires_grad_()
    out = Built(impls.table().find("einsum"))(q, k, v, bias)
    upstream = torch.randn(1, 2, 6, 8, dtype=torch.float64, generator=SOURCE)
    (given,) = torch.autograd.grad(out, bias, upstream)
    (wanted,) = torch.autograd.grad(plainly(q, k, v, bias, seen, 8**-0.5), bias, upstream)
    torch.testing.assert_close(given, wanted)
    assert (given[~seen] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_hidden_by_a_low_number_is_hidden_whatever_the_scores_and_the_dtype(dtype):
    q, k, v = (torch.randn(1, 2, 6, 8, generator=SOURCE).to(dtype) for _ in "qkv")
    q, k = 9 * q.abs(), 9 * k.abs()  # -1e9 and such a score are more than -1e9
    seen = torch.ones(6, 6).tril(-1).bool()  # the first row sees nothing
    bias = torch.zeros(6, 6).masked_fill(~seen, -1e9).to(dtype).requires_grad_()
    out = Built(impls.table().find("einsum"))(q, k, v, bias)
    assert (out[:, :, 0] == 0).all()
    upstream = torch.randn(out.shape, generator=SOURCE).to(dtype)
    (given,) = torch.autograd.grad(out, bias, upstream)
    assert (given[~seen] == 0).all() and (given[seen] != 0).any()
