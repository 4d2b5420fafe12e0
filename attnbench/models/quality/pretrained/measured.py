"""How near the embeddings stay to the original's, with a variant in all layers or in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.models.built import NotServed
from attnbench.models.quality.pretrained import truth
from attnbench.models.quality.pretrained.embedded import Embedded, embedded
from attnbench.models.quality.pretrained.replaced import Replaced, takes_padding
from attnbench.parts import Error
from impls.spec import Variant

Places = Sequence[Sequence[int]]
"""Pairs of texts, by their places."""


def cosines(found: Embedded, want_tw: Tensor) -> list[float | None]:
    """Of each text, the cosine between its embedding and the original's; None: it was refused."""
    each = F.cosine_similarity(found.vectors_tw, want_tw)
    return [None if n in found.refused else _number(each[n]) for n in range(len(each))]


def similarities(vectors_tw: Tensor, pairs: Places) -> list[float | None]:
    """The cosine between the embeddings of both texts of a pair."""
    return [_number(F.cosine_similarity(vectors_tw[a], vectors_tw[b], 0)) for a, b in pairs]


def of_texts(replaced: Replaced, row: Variant, ids: Places, dtype: str) -> Embedded:
    """The embeddings with the attention in use: together where the row takes that, else alone."""
    device = str(next(replaced.model.parameters()).device)
    found = None
    if takes_padding(row, dtype, device):
        found = embedded(replaced.model, ids, together=True)
    if found is None or not found.served:
        found = embedded(replaced.model, ids, together=False)
    if not found.served:
        raise NotServed(next(iter(found.refused.values())))
    return found


def quality(found: Embedded, row: Variant, want_tw: Tensor, plain: Error, pairs: Places,
            dtype: str) -> dict[str, Any]:  # fmt: skip
    """All that is said of them; whoever computes softmax has to agree with the original."""
    served = found.served
    error = truth.difference(found.vectors_tw[served], want_tw[served])
    wrong = _not_numbers(found)
    off = truth.disagrees(error, plain, dtype, len(served))
    if row.exact and not wrong:
        wrong = off
    return {
        "cosines": cosines(found, want_tw), "similarities": similarities(found.vectors_tw, pairs),
        "error": _finite(asdict(error)), "together": found.together, "wrong": wrong,
        "equal": not off,
        "left_out": _told(found.refused),
    }  # fmt: skip


def _not_numbers(found: Embedded) -> str:
    """Empty where every text that was served has an embedding, else a sentence."""
    lost = [n for n in found.served if not bool(torch.isfinite(found.vectors_tw[n]).all())]
    return f"the embeddings of {len(lost)} of {len(found.served)} texts are not numbers" * bool(
        lost
    )


def _told(refused: dict[int, str]) -> dict[str, list[int]]:
    """By the sentence: the places of the texts that were refused with it."""
    made: dict[str, list[int]] = {}
    for place, why in refused.items():
        made.setdefault(why, []).append(place)
    return made


def _number(value: Tensor) -> float | None:
    """A number as JSON has it; nine digits are more than any of them is good for."""
    return round(float(value), 12) if bool(torch.isfinite(value)) else None


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(x, float) and not torch.isfinite(torch.tensor(x)) else x
        for name, x in values.items()
    }
