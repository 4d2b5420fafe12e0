"""Attention written out as products and a softmax is said with its place, and nothing else is."""

import pytest
import torch
import torch.nn.functional as F
from torch import einsum, nn

import attnbench


def by_operator(x, layer):
    scores = (x @ x.transpose(-2, -1)) * 0.25
    scores = scores.masked_fill(torch.ones(9, 9).tril() == 0, float("-inf"))
    return F.dropout(F.softmax(scores, dim=-1), 0.1) @ x


def heads_in_the_middle(x, layer):
    weights = torch.softmax(torch.einsum("bnhd,bmhd->bnmh", x, x), 2)
    return einsum("bnmh,bmhd->bnhd", weights, x)


def classifier(x, layer):
    return F.cross_entropy(layer(x).softmax(-1).flatten(0, -2), torch.zeros(72).long())


def experts(x, layer):
    gates = (x @ torch.ones(16, 3)).softmax(-1)
    return einsum("bhne,ebhnd->bhnd", gates, torch.stack([x] * 3))


WRITTEN = (by_operator, heads_in_the_middle)


@pytest.mark.parametrize("program", [*WRITTEN, classifier, experts], ids=lambda f: f.__name__)
def test_it_is_said_where_it_was_met_and_nothing_else_is(program):
    x = torch.randn(2, 4, 9, 16)
    layer = nn.Linear(16, 5)
    torch.manual_seed(1)
    plain = program(x, layer)
    before = torch.matmul, einsum, dict(vars(torch.Tensor))
    with attnbench.capture() as calls:
        torch.manual_seed(1)
        watched, _ = (program(x, layer) for _ in range(2))
    assert torch.equal(plain, watched)
    assert before == (torch.matmul, einsum, dict(vars(torch.Tensor)))
    if program in WRITTEN:
        (line,) = calls.unseen
        assert "written out" in line and "was met 2 times" in line
        assert "test_written_out.py:" in line and program.__name__ in line
    else:
        assert not [line for line in calls.unseen if "written out" in line] and not calls.sites
