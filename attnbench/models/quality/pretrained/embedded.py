"""Sentence embeddings: the mean of what a text's tokens became, of length one.

Texts of unequal length share a batch under a padding mask where the attention takes one; else each
goes alone, without padding. Legend: t texts, w the model's width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnbench.models.built import NotServed
from attnbench.models.quality.pretrained.texts import LONGEST
from attnbench.models.transformers.layer_call import OTHERS

MOST_TOKENS = 8192
"""Of a batch, padding included."""


@dataclass
class Embedded:
    """What became of some texts."""

    vectors_tw: Tensor
    """Rows of texts that were refused are not numbers."""
    together: bool
    """Whether they went in batches, under a padding mask."""
    refused: dict[int, str] = field(default_factory=dict)
    """By the text's place: the variant's own sentence."""

    @property
    def served(self) -> list[int]:
        """The places of texts that have a vector."""
        return [n for n in range(len(self.vectors_tw)) if n not in self.refused]


def tokens(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The numbers of each text's tokens, the model's marks at both ends."""
    found: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=LONGEST)[
        "input_ids"
    ]
    return found


def batches(lengths: Sequence[int], *, together: bool) -> list[list[int]]:
    """Which texts go at once: neighbours in length, as many as there is room for."""
    order = sorted(range(len(lengths)), key=lambda n: lengths[n])
    if not together:
        return [[n] for n in order]
    made: list[list[int]] = []
    for n in order:
        if made and (len(made[-1]) + 1) * lengths[n] <= MOST_TOKENS:
            made[-1].append(n)
        else:
            made.append([n])
    return made


def hidden(model: nn.Module, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """The last layer's states of a batch, and which of them are of real tokens."""
    device = next(model.parameters()).device
    longest = max(map(len, ids))
    words = torch.tensor([[*some, *[0] * (longest - len(some))] for some in ids], device=device)
    real = torch.tensor([[1] * len(some) + [0] * (longest - len(some)) for some in ids],
                        device=device)  # fmt: skip
    mask = None if all(len(some) == longest for some in ids) else real
    states: Tensor = model(input_ids=words, attention_mask=mask).last_hidden_state
    return states, real[..., None].to(states.dtype)


def own_words(why: NotServed) -> str:
    """What a variant says of a call, without the layer that called and what else there is."""
    return str(why).partition(": ")[2].removesuffix(f"; {OTHERS}")


def embedded(model: nn.Module, ids: Sequence[Sequence[int]], *, together: bool) -> Embedded:
    """The embeddings of some texts, without gradients; a refusal costs its batch alone."""
    made: list[Tensor | None] = [None] * len(ids)
    refused: dict[int, str] = {}
    for some in batches([len(x) for x in ids], together=together):
        try:
            with torch.no_grad():
                states, real = hidden(model, [ids[n] for n in some])
        except NotServed as why:
            refused |= dict.fromkeys(some, own_words(why))
            continue
        means = (states * real).sum(1) / real.sum(1)
        for n, vector in zip(some, F.normalize(means), strict=True):
            made[n] = vector.cpu()
    width = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]
    nothing = torch.full((width,), torch.nan)
    vectors = torch.stack([nothing if x is None else x.to(torch.float64) for x in made])
    return Embedded(vectors, together, refused)
