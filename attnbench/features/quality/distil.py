"""A short distillation: the model with a variant in it learns what the original predicts.

Only the layers that compute attention learn: their projections, which a variant has to come to
terms with. The original is the same model with its own projections and its own attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.features.quality.swappable import SwappableModel

BLOCK, TOGETHER = 256, 2
"""Tokens of a text, and texts of a step."""
RATE, WARMUP, CLIP = 1e-3, 10, 1.0


class Distillation:
    """The projections of a model, which can be put back as they were."""

    def __init__(self, swappable: SwappableModel, name: str) -> None:
        self.swappable, self.name = swappable, name
        self._weights = [x for layer in swappable.layers for x in layer.parameters()]
        self._own = [x.detach().clone() for x in self._weights]

    def run(self, blocks: Tensor, seconds: float, seed: int) -> dict[str, Any]:
        """Learn for so long from blocks of text [n, BLOCK]; says how much that was."""
        generator = torch.Generator().manual_seed(seed)
        start, steps, student = perf_counter(), 0, self._own
        for weight in self._weights:
            weight.requires_grad_(True)
        optimizer = torch.optim.AdamW(self._weights, lr=RATE, weight_decay=0.0)
        losses: list[float] = []
        while perf_counter() - start < seconds or not losses:
            some = torch.randint(len(blocks), (TOGETHER,), generator=generator)
            ids = blocks[some].to(self.swappable.device)
            with torch.no_grad():
                target = self._predictions(ids, self._own, self.swappable.original)
            loss = F.kl_div(
                self._predictions(ids, student, self.name).flatten(0, 1),
                target.flatten(0, 1),
                reduction="batchmean",
                log_target=True,
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._weights, CLIP)
            steps += 1
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, steps / WARMUP)
            optimizer.step()
            student = [x.detach().clone() for x in self._weights]
            losses.append(float(loss.detach()))
        took = perf_counter() - start
        ends = {"first_kl": losses[0], "last_kl": losses[-1]}
        return {"tokens": steps * TOGETHER * BLOCK, "seconds": took, **ends}

    def _predictions(self, ids: Tensor, weights: Sequence[Tensor], name: str) -> Tensor:
        with torch.no_grad():
            for weight, value in zip(self._weights, weights, strict=True):
                weight.copy_(value)
        self.swappable.use(name)
        logits: Tensor = self.swappable.model(input_ids=ids, use_cache=False).logits
        return logits.float().log_softmax(-1)

    def restore(self) -> None:
        """The model as it was."""
        with torch.no_grad():
            for weight, value in zip(self._weights, self._own, strict=True):
                weight.requires_grad_(False).copy_(value)


def blocks_between(tokens: Sequence[int], parts: Sequence[tuple[int, int]]) -> Tensor:
    """The text outside of some parts, in blocks [n, BLOCK]."""
    rows, at = list[list[int]](), 0
    for first, past in [*sorted(parts), (len(tokens), len(tokens))]:
        rows += [[*tokens[n : n + BLOCK]] for n in range(at, first - BLOCK + 1, BLOCK)]
        at = max(at, past)
    return torch.tensor(rows, dtype=torch.long).view(-1, BLOCK)
