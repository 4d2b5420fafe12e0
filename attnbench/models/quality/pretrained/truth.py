"""What the embeddings should be: the original's in float64, and how near it gets in its own dtype.

The second is the yardstick for whoever says that it computes softmax: transformers' two forms of
the original, texts together under a padding mask and each alone, and the worst of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnbench.models.quality.pretrained import weights
from attnbench.models.quality.pretrained.embedded import embedded, tokens
from attnbench.parts import Error
from attnbench.truth import budget
from attnbench.truth.errors import compare, worse

FILE = "original.npz"
FORMS = (("eager", True), ("sdpa", True), ("sdpa", False))
"""The original's: which attention, and whether texts share batches."""


def make(texts: Sequence[str], dtype: str, device: str, folder: Path) -> dict[str, Any]:
    """Leave tokens and embeddings in a folder; how long the texts are, and how near it gets."""
    ids = tokens(weights.tokenizer(), texts)
    wide = weights.load("float64", device, "eager")
    want = embedded(wide, ids, together=False).vectors_tw
    del wide
    plain: Error | None = None
    for attention, together in FORMS:
        model = weights.load(dtype, device, attention)
        error = difference(embedded(model, ids, together=together).vectors_tw, want)
        plain = error if plain is None else worse(plain, error)
    assert plain is not None
    lengths = [len(x) for x in ids]
    np.savez(folder / FILE, ids=np.concatenate([np.asarray(x) for x in ids]),
             lengths=np.asarray(lengths), vectors=want.numpy())  # fmt: skip
    return {"tokens": lengths, "plain": asdict(plain)}


def read(folder: Path) -> tuple[list[list[int]], Tensor]:
    """The tokens of each text, and the original's embeddings in float64."""
    with np.load(folder / FILE) as kept:
        ends = np.cumsum(kept["lengths"])
        ids = [part.tolist() for part in np.split(kept["ids"], ends[:-1])]
        return ids, torch.from_numpy(kept["vectors"])


def difference(got_tw: Tensor, want_tw: Tensor) -> Error:
    """How far embeddings are from what they should be, all of them together."""
    return compare(got_tw[None, None], want_tw[None, None])


def disagrees(error: Error, plain: Error, dtype: str, texts: int) -> str:
    """Empty where softmax may be so far off, else a sentence."""
    tests = (
        ("together", error.relative, plain.relative, budget.RELATIVE_FACTOR),
        ("at worst", error.worst_row, plain.worst_row, budget.WORST_ROW_FACTOR),
    )
    for what, got, base, factor in tests:
        most = budget.allowed(base, factor, dtype, texts)
        if got is None or not got <= most:
            said = "something not finite" if got is None else f"{got:.2g}"
            return (
                f"it computes softmax by its row, and {what} its embeddings are off the original's "
                f"by {said}, above the {most:.2g} allowed (transformers' own forms make "
                f"{base or 0.0:.2g} in {dtype})"
            )
    return ""
