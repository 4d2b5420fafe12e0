"""A few steps of distillation: the model with a variant learns to do what it did without.

The loss is the relative squared distance of the last layer's states, at every token, from the
original's. Texts are learnt from one at a time, without padding and without dropout, and judged on
others. Few steps show which way it goes, not how far it would get.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from attnbench.models.quality.pretrained.embedded import hidden
from attnbench.models.quality.pretrained.replaced import Replaced, no_dropout

PROJECTIONS = ("attention.self.query", "attention.self.key", "attention.self.value",
               "attention.output.dense")  # fmt: skip
RATE = 3e-4
"""AdamW's."""
A_STEP = 4
"""Texts to a step."""
MOST = 256
"""Tokens of a text that are learnt from."""


def trained(model: nn.Module, which: str) -> list[nn.Parameter]:
    """The weights that may move: the projections around the attention, or all."""
    found = []
    for name, weight in model.named_parameters():
        moves = which == "all" or any(part in name for part in PROJECTIONS)
        weight.requires_grad_(moves)
        found += [weight] * moves
    return found


def distil(replaced: Replaced, teacher: nn.Module, ids: Sequence[Sequence[int]], steps: int,
           which: str, seed: int) -> list[float]:  # fmt: skip
    """Train in place; the loss of each step, before it. The variant is already in use."""
    torch.manual_seed(seed)
    chance, model = random.Random(seed), replaced.model
    no_dropout(model)
    optimiser = torch.optim.AdamW(trained(model, which), lr=RATE)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad(set_to_none=True)
        some = chance.sample(range(len(ids)), min(A_STEP, len(ids)))
        total = 0.0
        for n in some:
            loss = _loss(model, teacher, [ids[n][:MOST]]) / len(some)
            loss.backward()
            total += float(loss.detach())
        optimiser.step()
        losses.append(total)
    _rest(model.parameters())
    return losses


def _loss(model: nn.Module, teacher: nn.Module, ids: Sequence[Sequence[int]]) -> Tensor:
    with torch.no_grad():
        want, _ = hidden(teacher, ids)
    got, _ = hidden(model, ids)
    return (got - want).square().sum() / want.square().sum()


def _rest(weights: Iterable[nn.Parameter]) -> None:
    for weight in weights:
        weight.requires_grad_(False)
