"""Soft caps and sinks that a program writes out, read off its scores."""

import pytest
import torch
import torch.nn.functional as F

import attnbench
from tests.models.build import only

X = 2 * torch.randn(2, 4, 33, 16, generator=torch.Generator().manual_seed(0))
LATER = torch.ones(33, 33, dtype=torch.bool).triu(1)
SINKS = torch.linspace(-1, 2, 4)


def scores(x, scale=0.25):
    return (x @ x.mT) * scale


def with_sinks(s, sinks=SINKS):
    return torch.cat([s, sinks.to(s.dtype).reshape(1, -1, 1, 1).expand(2, -1, 33, 1)], -1)


def gemma(x):
    s = torch.tanh(scores(x, 0.3) / 5.0) * 5.0
    return s.masked_fill(LATER, -torch.inf).softmax(-1) @ x


def in_place(x):
    s = scores(x).div_(50.0).tanh_().mul_(50.0)
    return torch.softmax(s, -1) @ x


def gpt_oss(x):
    s = with_sinks(scores(x) + torch.full((33, 33), torch.finfo(x.dtype).min).triu(1).to(x))
    s = s - s.max(-1, keepdim=True).values
    return F.softmax(s, -1)[..., :-1] @ x


def heads_as_one_axis(x):
    rows = x.flatten(0, 1)
    s = torch.tanh(torch.bmm(rows, rows.mT) * 0.1 / 3).mul(3)
    weights = with_sinks(s.unflatten(0, (2, 4))).softmax(-1)[..., :-1]
    return torch.bmm(weights.flatten(0, 1), rows)


def by_einsum(x):
    y = x.transpose(1, 2)
    weights = with_sinks(torch.einsum("bnhd,bmhd->bhnm", y, y) * 0.25).softmax(-1)[..., :-1]
    return torch.einsum("bhnm,bmhd->bnhd", weights, y)


def reference(x):
    """As OpenAI's own code for gpt-oss has it: tokens first, groups and their heads, no batch."""
    y = x[0].transpose(0, 1).unflatten(1, (2, 2))
    s = torch.einsum("qhmd,khmd->hmqk", y, y) * 0.25
    s = s + torch.full((33, 33), -torch.inf).triu(1).to(x)[None, None]
    column = SINKS.to(x.dtype).reshape(2, 2, 1, 1).expand(-1, -1, 33, -1)
    weights = torch.softmax(torch.cat([s, column], -1), -1)[..., :-1]
    return torch.einsum("hmqk,khmd->qhmd", weights, y)


READ = {
    gemma: "causal forward scale 0.3 softcap 5",
    in_place: "none forward softcap 50",
    gpt_oss: "causal forward sinks",
    heads_as_one_axis: "none forward scale 0.1 softcap 3 sinks",
    by_einsum: "none forward sinks",
    reference: "causal forward sinks",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("program", READ, ids=lambda f: f.__name__)
def test_a_cap_and_sinks_are_the_problems(program, dtype):
    x = X.to(dtype)
    with attnbench.capture() as calls:
        watched = [program(x) for _ in range(2)]
    assert torch.equal(watched[0], program(x))
    site, short = only(calls), {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
    batch = 1 if program is reference else 2
    assert str(site.problem) == f"b{batch} h4/4 n33 d16 {short} {READ[program]}"
    assert site.faithful and not site.note and site.calls == 2 and 0 < site.share <= 1


def capped_after_the_mask(x):
    return (torch.tanh((scores(x) - 9.0 * LATER) / 5) * 5).softmax(-1) @ x


def bent(x):
    s = scores(x)
    return (s + 0.01 * s**3).softmax(-1) @ x


def of_each_query(x):
    return torch.cat([scores(x), x.sum(-1, keepdim=True)], -1).softmax(-1)[..., :-1] @ x


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (capped_after_the_mask, "capped, or bent"),
        (bent, "capped, or bent"),
        (of_each_query, "a column beside its scores is none of sinks"),
    ],
)
def test_what_is_neither_counts_in_the_share_and_says_why(program, why):
    with attnbench.capture() as calls:
        program(X)
    site = only(calls)
    assert why in site.note and not site.faithful and site.share is not None
