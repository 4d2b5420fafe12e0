"""What a step of the model takes, in pairs: the original, and the same weights with a variant.

A step is one text of so many tokens, without padding, through all layers, without gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from attnbench.measure.clocks import clock_for
from attnbench.models.quality.pretrained.replaced import Replaced
from attnbench.pairs import Rule, compare

FIRST, CAP = 20, 80
"""Pairs at the first look, and at the last."""


class Steps:
    """Steps with one attention: a side of pairs."""

    WARM = 1

    def __init__(self, replaced: Replaced, name: str, ids: Sequence[int]) -> None:
        self._replaced, self._name = replaced, name
        device = next(replaced.model.parameters()).device
        self._words = torch.tensor([list(ids)], device=device)
        self._clock = clock_for(str(device), "forward")
        self._kept: list[torch.Tensor] = []

    def fresh(self) -> None:
        """Tokens elsewhere, and what the allocator gives next with them."""
        self._kept = [*self._kept[-1:], self._words]
        self._words = self._words.clone()
        self._samples(self.WARM)

    def sample(self) -> float:
        """Seconds of one step."""
        return self._samples(1)[0]

    def _samples(self, count: int) -> list[float]:
        self._replaced.use(self._name)
        with torch.no_grad():
            return self._clock.samples(_nothing, self._step, count)

    def _step(self) -> Any:
        return self._replaced.model(input_ids=self._words)


def _nothing() -> None:
    """Before a step there is nothing to do."""


def as_long(ids: Sequence[Sequence[int]], length: int) -> list[int]:
    """So many tokens of real text: the longest texts, one after the other."""
    order = sorted(ids, key=len, reverse=True)
    joined = [token for text in order for token in text]
    while len(joined) < length:
        joined += joined
    return joined[:length]


def in_pairs(replaced: Replaced, original: str, name: str, ids: Sequence[Sequence[int]],
             length: int, margin: float, budget_s: float) -> dict[str, Any]:  # fmt: skip
    """The step with this attention over the original's, at one length."""
    tokens = as_long(ids, length)
    rule = Rule(margin, first=FIRST, cap=CAP, budget_s=budget_s)
    pairs = compare(Steps(replaced, original, tokens), Steps(replaced, name, tokens), rule)
    pairs.names = (original, name)
    return {"seq": length, **pairs.to_dict()}
