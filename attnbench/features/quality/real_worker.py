"""The process that has the model: queries, keys and values of each layer, left as files.

{"texts": …, "seq": …, "batch": …, "dtype": …, "folder": …}  -> {"captured": …}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnbench.core.process_child import serve_forked
from attnbench.features.quality import pretrained
from attnbench.features.quality.pretrained_worker import ORIGINAL, Replaced, tokens
from attnbench.features.quality.words import LONG
from impls.asked import CantBeDone

TAKING_NOTES = "attnbench_takes_notes"


class TooShort(CantBeDone):
    """The texts don't hold so many tokens; a sentence."""


def answer(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each layer's q, k and v as ``layer-N.npz``, in the form that ``captured:FILE`` reads."""
    ids = whole(tokens(pretrained.tokenizer(), asked["texts"]), asked["seq"], asked["batch"])
    model = pretrained.load(asked["dtype"], asked["device"], ORIGINAL)
    files = []
    for number, qkv in enumerate(captured(model, ids)):
        file = Path(asked["folder"]) / f"layer-{number}.npz"
        np.savez(file, **{name: _array(x) for name, x in zip("qkv", qkv, strict=True)})
        files.append(str(file))
    _, heads, _, width = qkv[0].shape
    yield {"captured": {"files": files, "heads": heads, "head_dim": width}}


def whole(ids: Sequence[Sequence[int]], seq: int, batch: int) -> Tensor:
    """Rows of so many tokens: long texts, one after the other until a row is full, and cut there.

    Raises where there are too few of them.
    """
    rows, begun = list[list[int]](), list[int]()
    for text in ids:
        if len(text) >= min(LONG, seq):
            begun = [*begun, *text]
        if len(begun) >= seq:
            rows, begun = [*rows, begun[:seq]], []
    if len(rows) < batch:
        raise TooShort(
            f"the texts fill {len(rows)} rows of {seq} tokens, and {batch} are asked for: give a "
            "smaller --seq or --batch"
        )
    return torch.tensor(rows[:batch])


def captured(model: nn.Module, ids_tn: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """What each layer hands to attention, layer by layer, while the model does its work."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    original = ALL_ATTENTION_FUNCTIONS[ORIGINAL]

    def noted(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any
    ) -> Any:
        found.append((query.detach().clone(), key.detach().clone(), value.detach().clone()))
        return original(module, query, key, value, mask, **more)

    AttentionInterface.register(TAKING_NOTES, noted)
    Replaced(model).use(TAKING_NOTES)
    with torch.no_grad():
        model(input_ids=ids_tn.to(next(model.parameters()).device))
    return found


def _array(x: Tensor) -> Any:
    """As NumPy has it; bfloat16, which it has not, as float32, from which it comes back."""
    return (x.float() if x.dtype == torch.bfloat16 else x).contiguous().cpu().numpy()


if __name__ == "__main__":
    serve_forked(answer)
