"""The masks that a program hands over, each looked at once.

A tensor that was not written to since it was looked at is known. Where a program makes masks faster
than they can be looked at without slowing it down, the last one of a place and shape stands for the
next. A bias that is learned changes at every step: the first one of a place and shape stands for
all. At most ``MOST`` masks without a name are kept as files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod, tanh
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnbench.models.mask_of import (
    FULL,
    WhileAlive,
    causal_of,
    has_data,
    mask_in_file,
    recognised,
)
from impls.errors import CantBeDone
from impls.masks import Mask, Shape

MOST = 32
FIRST = 8
"""Masks of a place and shape that are looked at whatever that takes."""
REMEMBERED = 4096
LARGEST = 2**31  # scores: the values of a mask with more are not looked at
FLEX_LARGEST = 2**26  # pairs, over batch and heads, that FlexAttention's functions are called on
FLEX_MOST = 256
"""FlexAttention's functions that are called: a program may make new ones at every step."""


class FoundMask(NamedTuple):
    """A mask, and what is not known of it: nothing, where the note is empty; with the soft cap that
    the same function puts on the scores.
    """

    mask: Mask
    note: str = ""
    softcap: float | None = None


class Masks:
    """The masks of a program, as far as they are known."""

    def __init__(
        self, folder: Path | None = None, affordable: Callable[[], bool] = lambda: True
    ) -> None:
        """``affordable``: whether the program has time for another look."""
        self._folder, self._affordable = folder, affordable
        self._tensors, self._functions = WhileAlive(), WhileAlive()
        self._last: dict[Any, FoundMask] = {}
        self._looks: Counter[Any] = Counter()
        self._files: set[str] = set()
        self._flex_looks = 0
        self.passed_over = 0  # masks that were taken for the last one's without a look

    def of(
        self,
        attn_mask: Tensor | None,
        is_causal: bool,
        shape: Shape,
        place: Any = None,
        bias: Tensor | None = None,
    ) -> FoundMask:
        """The mask of a call; ``bias`` is added to it. ``place`` is where the call comes from."""
        terms = [x for x in (attn_mask, bias) if x is not None]
        default = causal_of(shape) if is_causal else FULL
        if not terms:
            return FoundMask(default)
        if not all(map(has_data, terms)):
            note = "its mask is a tensor without values, so what it hides is not known"
            return FoundMask(default, note)
        look = partial(self._look, terms, is_causal, shape, place)
        if len(terms) > 1:
            return look()
        result: FoundMask = self._tensors.get(terms[0], (is_causal, shape), look)
        return result

    def is_new(self, tensor: Tensor) -> bool:
        """True for a mask that was not seen before."""
        return has_data(tensor) and tensor not in self._tensors

    def _look(self, terms: list[Tensor], is_causal: bool, shape: Shape, place: Any) -> FoundMask:
        """The mask that the terms are together, unless the program has no time for that."""
        alike = place, is_causal, shape, *((tuple(x.shape), x.dtype) for x in terms)
        self._looks[alike] += 1
        learned = any(x.requires_grad for x in terms)
        if learned and alike in self._last:
            return self._last[alike]
        if self._looks[alike] > FIRST and alike in self._last and not self._affordable():
            self.passed_over += 1
            return self._last[alike]
        if len(self._last) >= REMEMBERED:
            self._last.clear()
            self._looks.clear()
        result = self._last[alike] = self._name(terms, is_causal, shape)
        return result

    def of_flex(
        self, block_mask: Any, score_mod: Any, shape: Shape, device: torch.device
    ) -> FoundMask:
        """The mask that FlexAttention's block mask and score function are together."""

        def call() -> FoundMask:
            if self._flex_looks >= FLEX_MOST:
                return FoundMask(
                    FULL, f"its mask was not asked about: {FLEX_MOST} others were before it"
                )
            self._flex_looks += 1
            if device.type == "meta" or prod(shape) > FLEX_LARGEST:
                return FoundMask(FULL, "its mask is too large to be asked about every pair")
            with torch.no_grad():
                table = None if block_mask is None else _visible(block_mask, shape, device)
                effect = None if score_mod is None else _effect(score_mod, shape, device)
            if effect is None:
                note = "its score_mod does more than cap the scores and add to them"
                result = self.of(table, False, shape)
                return result if score_mod is None else FoundMask(result.mask, note)
            added, cap = effect
            table = added if table is None else torch.where(table, added, -torch.inf)
            return self.of(table, False, shape)._replace(softcap=cap)

        if (thing := score_mod if block_mask is None else block_mask) is None:
            return FoundMask(FULL)
        result: FoundMask = self._functions.get(thing, (score_mod, shape), call)
        return result

    def _name(self, terms: list[Tensor], is_causal: bool, shape: Shape) -> FoundMask:
        """The terms together; a boolean mask hides where it is false."""
        mask, *more = (x.detach() for x in terms)
        for bias in more:
            boolean = mask.dtype == torch.bool
            mask = torch.where(mask, bias, torch.finfo(bias.dtype).min) if boolean else mask + bias
        batch = mask.shape[0] if mask.dim() == 4 else 1
        if batch * shape.q_len * shape.kv_len > LARGEST:
            return FoundMask(FULL, "its mask is too large to be looked at")
        try:
            name = recognised(mask, is_causal, shape)
            if isinstance(name, Mask):
                return FoundMask(name)
            if len(self._files) >= MOST:
                return FoundMask(FULL, f"its mask has no name, and {MOST} such were kept before it")
            in_file = mask_in_file(*name, shape, self._folder)
            self._files |= {part.file for part in in_file.parts}
            return FoundMask(in_file)
        except (CantBeDone, OSError) as error:
            return FoundMask(FULL, f"its mask can't be described: {error}")


def _visible(block_mask: Any, shape: Shape, device: torch.device) -> Tensor:
    from torch.nn.attention.flex_attention import create_mask

    batch, heads = block_mask.shape[:2]
    table = create_mask(block_mask.mask_mod, batch, heads, shape.q_len, shape.kv_len, device)
    rows, keys = block_mask.BLOCK_SIZE
    blocks = block_mask.to_dense().bool().repeat_interleave(rows, -2).repeat_interleave(keys, -1)
    return table & blocks[..., : shape.q_len, : shape.kv_len].to(device)


FAR = -1e6
"""A score beyond every soft cap."""


def _effect(
    score_mod: Any, shape: Shape, device: torch.device
) -> tuple[Tensor, float | None] | None:
    """What it adds to scores of every size, and the soft cap that it puts on them before that; None
    where it does something else.
    """
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    places = [torch.arange(n, device=device) for n in shape]
    mapped = _vmap_for_bhqkv(score_mod, prefix=(0,))

    def at(score: float) -> Tensor:
        with TransformGetItemToIndex():
            values: Tensor = mapped(torch.full(tuple(shape), score, device=device), *places)
        return values

    added = at(0.0)
    if all(torch.allclose(at(x) - x, added, rtol=1e-4, atol=1e-4) for x in (1.0, -64.0)):
        return added, None
    ends = (added - at(FAR))[added.isfinite()]
    cap = float(ends.median()) if ends.numel() else 0.0
    if not 0 < cap < -FAR / 100:
        return None
    cap = float(f"{cap:.6g}")
    for score in (1.0, cap / 2, -cap, 4 * cap):
        near = 1e-3 * min(abs(score), cap)
        if not torch.allclose(at(score), added + cap * tanh(score / cap), 1e-3, near):
            return None
    return added, cap
