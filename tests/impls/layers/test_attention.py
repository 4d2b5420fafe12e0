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
        ({"batch_first": False}, False, {}),
        ({"kdim": 10, "vdim": 14}, False, {}),
        ({"vdim": 6, "bias": False, "batch_first": False}, True, {}),
        ({}, True, {"attn_mask": HIDDEN}),
        ({}, True, {"attn_mask": torch.randn(B * H, N, M)}),
        ({}, True, {"attn_mask": HIDDEN, "key_padding_mask": PADDING}),
        ({}, True, {"attn_mask": torch.randn(N, M), "key_padding_mask": NUMBERS}),
    ],
)
def test_a_converted_layer_gives_the_same_output_and_every_gradient(options, key_bias, masks):
    theirs = torchs(**{"batch_first": True, **options})
    ours = from_torch(theirs, key_bias)
    widths = (options.get(name, E) for name in ("kdim", "vdim"))
    tokens = torch.randn(B, N, E), *(torch.randn(B, M, width) for width in widths)
    (wanted, by_their_name), (got, by_our_name) = (ran(x, tokens, masks) for x in (theirs, ours))
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)
    assert ("k_bias" in by_our_name) == (options.get("bias", True) and key_bias)
    torch.testing.assert_close(
        by_our_name, torch_parameters(ours, by_their_name), atol=2e-5, rtol=1e-4
    )


def test_a_causal_mask_over_more_keys_ends_at_the_last():
    ours = MultiHeadAttention(E, H)
    x, y = torch.randn(B, 2, E), torch.randn(B, 5, E)
    hidden = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]).bool()
    torch.testing.assert_close(ours(x, y, is_causal=True), ours(x, y, attn_mask=hidden))


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
