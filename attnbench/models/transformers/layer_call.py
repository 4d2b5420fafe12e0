"""A layer of a transformers model calls for attention, and a variant answers.

The mask means what it means to eager attention: without one every query sees every key, whatever
the layer's own ``is_causal`` says (a layer that passes ``is_causal=True`` is heeded). Rows that see
nothing, as those of left padding, give zeros (eager gives them the mean of all values; no valid row
ever sees either).

Legend in :mod:`impls.heads`; transformers wants the output as [b, n, h, e].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.models.bias_gradient import with_bias_gradient
from attnbench.models.built import Built, NotServed
from attnbench.models.transformers.asked_besides import refusal
from attnbench.models.transformers.eager_mask import EagerMask
from attnbench.models.transformers.meant import in_use, meant
from attnbench.models.transformers.setting import called
from impls.asked import CantBeDone
from impls.spec import Variant

Answer = tuple[Tensor, None]
OTHERS = (
    "'attnbench list' shows what each variant takes; attn_implementation='attnbench:sdpa' takes "
    "whatever transformers' own sdpa does"
)


def forward_by(row: Variant) -> Callable[..., Answer]:
    """The function that transformers calls in each layer's forward."""

    @cache
    def built() -> Built:
        return Built(row)

    @torch.compiler.disable  # which mask it is follows from values, and no compiler sees those
    def forward(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
        attention_mask: Tensor | None, **asked: Any,
    ) -> Answer:  # fmt: skip
        called()
        try:
            if (refused := refusal(module, key, attention_mask, asked)) is not None:
                raise CantBeDone(f"{row.label}: {refused}")
            return _answered(built(), module, (query, key, value), attention_mask, asked), None
        except NotServed as why:
            raise NotServed(f"{_place(module)}: {why}; {OTHERS}") from None
        except CantBeDone as why:
            raise NotServed(f"{_place(module)}: {why}") from None

    return forward


def _answered(
    variant: Built, module: nn.Module, qkv: tuple[Tensor, Tensor, Tensor], mask: Tensor | None,
    asked: dict[str, Any],
) -> Tensor:  # fmt: skip
    query, key, value = qkv
    is_causal = mask is None and query.shape[2] > 1 and bool(asked.get("is_causal"))
    if isinstance(mask, EagerMask):
        mask, is_causal = mask.said()
    terms = tuple(x for x in (mask, asked.get("position_bias")) if x is not None)
    said, used = in_use(meant(terms, is_causal, query, key), query.shape[2], key.shape[2])
    scale = asked.get("scaling")
    out = variant(query, key[:, :, :used], value[:, :, :used], said, scale)
    out = with_bias_gradient(out, query, key, value, terms, scale, is_causal)
    return out.transpose(1, 2).contiguous()


def _place(module: nn.Module) -> str:
    """Which layer calls."""
    number = getattr(module, "layer_idx", None)
    return type(module).__name__ + (f" of layer {number}" if number is not None else "")
