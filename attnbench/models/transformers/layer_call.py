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
from attnbench.models.built import NO_BIAS_GRADIENT, OWN, Built, NotServed
from attnbench.models.transformers.asked_besides import refusal
from attnbench.models.transformers.eager_mask import EagerMask
from attnbench.models.transformers.meant import in_use, meant, with_a_window
from attnbench.models.transformers.setting import called
from impls.asked import CantBeDone
from impls.masks import Mask
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
    """The output [b, n, h, e].

    Layers that say ``scaling=1`` have scaled q before (OPT, Whisper, ESM) or have that scale in
    their weights (T5): an operator of its own is given q as it was without.
    """
    query, key, value = qkv
    is_causal = mask is None and query.shape[2] > 1 and bool(asked.get("is_causal"))
    if isinstance(mask, EagerMask):
        mask, is_causal = mask.said()
    terms = tuple(x for x in (mask, asked.get("position_bias")) if x is not None)
    said, used = in_use(meant(terms, is_causal, query, key), query.shape[2], key.shape[2])
    if isinstance(said, Mask) and _alternates(variant.row, module, query):
        said = with_a_window(said, used)
    scale = asked.get("scaling")
    dropout = (asked.get("dropout") or 0.0) if module.training else 0.0
    if dropout and any(term.requires_grad for term in terms):
        raise CantBeDone(f"{variant.row.label}: {NO_BIAS_GRADIENT}")
    if scale == 1.0 and variant.row.computes == OWN:
        query, scale = query * query.shape[-1] ** 0.5, None
    keys, values = key[:, :, :used], value[:, :, :used]
    out = variant(query, keys, values, said, scale, dropout_p=dropout)
    out = with_bias_gradient(out, query, key, value, terms, scale, is_causal)
    return out.transpose(1, 2).contiguous()


def _alternates(row: Variant, module: nn.Module, query: Tensor) -> bool:
    """Whether a row that takes nothing without a window attends in a model with windows.

    Such a model has layers without one too, or texts no longer than it.
    """
    masks = row.on(query.device.type, "masks")
    config = getattr(module, "config", None)
    return (
        "window" in masks
        and "none" not in masks
        and getattr(config, "sliding_window", None) is not None
    )


def _place(module: nn.Module) -> str:
    """Which layer calls."""
    number = getattr(module, "layer_idx", None)
    return type(module).__name__ + (f" of layer {number}" if number is not None else "")
