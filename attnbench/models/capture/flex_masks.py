"""The mask of a FlexAttention call: its functions asked about every pair.

A ``mask_mod`` says which pairs may meet, beside the blocks that its block mask keeps. Of a
``score_mod`` it is asked what it makes of three scores: one that only adds is a mask; one that does
more (a soft cap) is none, and the call's problem does not say all of it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from attnbench.models.capture.masks import Found, Masks
from attnbench.models.mask_of import FULL
from impls.masks import Shape

MOST = 2**26
"""Pairs, over batch and heads, that are asked about."""
DIFFERENT = 256
"""Functions that are asked: a program may make new ones at every step."""


class FlexMasks:
    """What was found of block masks and score functions, each asked once for a shape."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[list[Any], Found]] = {}

    def of(
        self, block_mask: Any, score_mod: Any, masks: Masks, shape: Shape, device: torch.device
    ) -> Found:
        """The mask of a call."""
        if block_mask is None and score_mod is None:
            return Found(FULL)
        given = [x for x in (block_mask, score_mod) if x is not None]
        key = (*map(id, given), shape)
        if key in self._known and all(
            ref() is x for ref, x in zip(self._known[key][0], given, strict=True)
        ):
            return self._known[key][1]
        if len(self._known) >= DIFFERENT:
            return Found(FULL, f"its mask was not asked about: {DIFFERENT} others were before it")
        found = _asked(block_mask, score_mod, masks, shape, device)
        self._known[key] = ([weakref.ref(x) for x in given], found)
        return found


def _asked(
    block_mask: Any, score_mod: Any, masks: Masks, shape: Shape, device: torch.device
) -> Found:
    if device.type == "meta" or shape.batch * shape.heads * shape.q_len * shape.kv_len > MOST:
        return Found(FULL, "its mask is too large to be asked about every pair")
    with torch.no_grad():
        seen = None if block_mask is None else _seen(block_mask, shape, device)
        added = None if score_mod is None else _added(score_mod, shape, device)
    if added is None:
        if score_mod is not None:
            found = masks.of(seen, False, shape)
            return Found(found.mask, "its score_mod does more than add to the scores")
        return masks.of(seen, False, shape)
    if seen is not None:
        added = torch.where(seen, added, -torch.inf)
    return masks.of(added, False, shape)


def _seen(block_mask: Any, shape: Shape, device: torch.device) -> Tensor:
    from torch.nn.attention.flex_attention import create_mask

    batch, heads = block_mask.shape[:2]
    table = create_mask(block_mask.mask_mod, batch, heads, shape.q_len, shape.kv_len, device)
    rows, keys = block_mask.BLOCK_SIZE
    blocks = block_mask.to_dense().bool().repeat_interleave(rows, -2).repeat_interleave(keys, -1)
    return table & blocks[..., : shape.q_len, : shape.kv_len].to(device)


def _added(score_mod: Any, shape: Shape, device: torch.device) -> Tensor | None:
    """What it adds to a score, the same to any; None where it does something else."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    places = [torch.arange(n, device=device) for n in shape]
    asked = _vmap_for_bhqkv(score_mod, prefix=(0,))
    with TransformGetItemToIndex():
        told = [
            asked(torch.full(tuple(shape), score, device=device), *places) - score
            for score in (0.0, 1.0, -64.0)
        ]
    same = all(torch.allclose(told[0], x, rtol=1e-4, atol=1e-4) for x in told[1:])
    return told[0] if same else None
