"""Each layer alone with a variant, the others as they were: which of them tolerate it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from attnbench.models.quality.pretrained.measured import cosines, of_texts
from attnbench.models.quality.pretrained.replaced import Replaced
from impls.spec import Variant


def one_by_one(replaced: Replaced, name: str, row: Variant, ids: Sequence[Sequence[int]],
               want_tw: Tensor, dtype: str) -> list[list[Any]]:  # fmt: skip
    """By layer: the cosine of each text's embedding to the original's."""
    found = []
    for layer in range(replaced.layers):
        replaced.use(name, [layer])
        found.append(cosines(of_texts(replaced, row, ids, dtype), want_tw))
    return found
