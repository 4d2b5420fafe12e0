"""The module: against nn.MultiheadAttention, by outputs and by every named gradient; dropout."""

import math

import pytest
import torch
from torch import nn

from impls.layers.attention import MultiHeadAttention, from_torch, torch_parameters

B, N, M, E, H = 2, 7, 9, 24, 4


def torchs(**more):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(E, H, **more)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return theirs


def both(theirs, ours, *tokens, **masks):
    """Outputs, and the gradients of tokens and parameters by name, of theirs and of ours."""
    made = []
    for module in (theirs, ours):
        leaves = [x.clone().requires_grad_() for x in tokens]
        if module is theirs and not theirs.batch_first:
            out = theirs(*(x.transpose(0, 1) for x in leaves), **masks)[0].transpose(0, 1)
        else:
            out = module(*leaves, **masks)
            out = out[0] if module is theirs else out
        weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
        parameters = dict(module.named_parameters())
        gradients = torch.autograd.grad((out * weight).sum(), [*leaves, *parameters.values()])
        named = dict(zip(parameters, gradients[len(leaves) :], strict=True))
        made.append((out, *gradients[: len(leaves)], named))
    return made


@pytest.mark.parametrize(
    ("widths", "bias", "batch_first", "key_bias"),
    [
        ({}, True, True, True),
        ({}, True, False, False),
        ({"kdim": 10, "vdim": 14}, True, True, False),
        ({"vdim": 6}, False, False, True),
    ],
)
def test_a_converted_layer_gives_the_same_output_and_every_gradient(
    widths, bias, batch_first, key_bias
):
    theirs = torchs(batch_first=batch_first, bias=bias, **widths)
    ours = from_torch(theirs, key_bias)
    tokens = (
        torch.randn(B, N, E),
        torch.randn(B, M, widths.get("kdim", E)),
        torch.randn(B, M, widths.get("vdim", E)),
    )
    (*wanted, by_their_name), (*got, by_our_name) = both(theirs, ours, *tokens)
    for ours_is, theirs_is in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours_is, theirs_is, atol=1e-5, rtol=1e-4)
    under_our_names = torch_parameters(ours, by_their_name)
    assert set(under_our_names) == set(by_our_name)
    assert ("k_bias" in by_our_name) == (bias and key_bias)
    for name, gradient in by_our_name.items():
        torch.testing.assert_close(
            gradient, under_our_names[name], atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


HIDDEN = torch.rand(N, M, generator=torch.Generator().manual_seed(0)) < 0.3
HIDDEN[:, 0] = False
PADDING = torch.arange(M) >= torch.tensor([[M], [5]])  # of the second element, four keys
MASKS = {
    "boolean": {"attn_mask": HIDDEN},
    "by head": {"attn_mask": torch.randn(B * H, N, M)},
    "both": {"attn_mask": HIDDEN, "key_padding_mask": PADDING},
    "numbers": {
        "attn_mask": torch.randn(N, M),
        "key_padding_mask": torch.zeros(B, M).masked_fill(PADDING, -torch.inf),
    },
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_mean_what_they_mean_to_torch(kind):
    theirs = torchs(batch_first=True)
    tokens = (torch.randn(B, N, E), torch.randn(B, M, E), torch.randn(B, M, E))
    (*wanted, _), (*got, _) = both(theirs, from_torch(theirs), *tokens, **MASKS[kind])
    for ours_is, theirs_is in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours_is, theirs_is, atol=1e-5, rtol=1e-4)


def test_a_causal_mask_over_more_keys_ends_at_the_last():
    ours = MultiHeadAttention(E, H)
    x, y = torch.randn(B, 2, E), torch.randn(B, 5, E)
    hidden = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]).bool()
    torch.testing.assert_close(ours(x, y, is_causal=True), ours(x, y, attn_mask=hidden))


# ---- dropout, by its statistics ------------------------------------------------------------------


def weights_of(dropout, tokens):
    """A module of one head whose output is its matrix of weights."""
    module = MultiHeadAttention(tokens, 1, dropout=dropout)
    with torch.no_grad():
        module.in_weight[2 * tokens :] = torch.eye(tokens)
        module.out_weight.copy_(torch.eye(tokens))
    queries = torch.randn(1, tokens, tokens)
    return module, (queries, queries, torch.eye(tokens)[None])


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_dropout_drops_the_share_asked_and_keeps_the_mean(share):
    torch.manual_seed(1)
    module, tokens = weights_of(share, 16)
    draws = 400
    with torch.no_grad():
        want = module.eval()(*tokens)
        module.train()
        got = torch.stack([module(*tokens) for _ in range(draws)])
    kept = got != 0
    many = kept.numel()
    assert abs(float((~kept).float().mean()) - share) < 4 * math.sqrt(share * (1 - share) / many)
    torch.testing.assert_close(got[kept], (want / (1 - share)).expand_as(got)[kept])
    away = (got.mean(0) - want) / (got.std(0) / math.sqrt(draws))
    assert float(away.abs().max()) < 5
    assert abs(float(away.square().mean()) - 1) < 0.5
