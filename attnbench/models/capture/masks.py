"""The masks that a program hands over, each looked at once.

A tensor that is still the one that was looked at, and was not written to since, is known. A new one
with the content of an old one is known by its digest. A bias that is learned changes at every
step: the first one of a place and shape stands for all, and of two that hide the same keys the
first is kept. At most ``MOST`` masks without a name are kept as files.
"""

from __future__ import annotations

import hashlib
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnbench.models.mask_of import (
    FULL,
    Nameless,
    NoData,
    causal_of,
    has_data,
    kept,
    recognised,
)
from impls.asked import CantBeDone
from impls.masks import Mask, Shape

MOST = 32
REMEMBERED = 4096
LARGEST = 2**31
"""Scores: of a mask with more nobody looks at the values."""


class FoundMask(NamedTuple):
    """A mask, and what is not known of it: nothing, where the note is empty."""

    mask: Mask
    note: str = ""


class Masks:
    """What was found of the masks of a program."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._tensors: dict[Any, tuple[list[weakref.ref[Tensor]], FoundMask]] = {}
        self._contents: dict[Any, FoundMask] = {}
        self._files = 0

    def of(
        self,
        attn_mask: Tensor | None,
        is_causal: bool,
        shape: Shape,
        place: Any = None,
        bias: Tensor | None = None,
    ) -> FoundMask:
        """The mask of a call; ``bias`` is added to it. ``place`` is where the call comes from."""
        given = [x for x in (attn_mask, bias) if x is not None]
        if not given:
            return FoundMask(causal_of(shape) if is_causal else FULL)
        if not all(map(has_data, given)):
            return FoundMask(
                causal_of(shape) if is_causal else FULL,
                "its mask is a tensor without values, so what it hides is not known",
            )
        key = _identity(given, is_causal, shape)
        if key is not None and key in self._tensors:
            refs, found = self._tensors[key]
            if all(ref() is x for ref, x in zip(refs, given, strict=True)):
                return found
        found = self._by_content(given, is_causal, shape, place)
        if key is not None:
            _bounded(self._tensors)[key] = ([weakref.ref(x) for x in given], found)
        return found

    def _by_content(
        self, given: list[Tensor], is_causal: bool, shape: Shape, place: Any
    ) -> FoundMask:
        forms = tuple((tuple(x.shape), x.dtype) for x in given)
        if any(x.requires_grad for x in given):
            key: Any = ("learned", place, forms, is_causal, shape)
        else:
            key = (*map(_digest, given), forms, is_causal, shape)
        if key not in self._contents:
            _bounded(self._contents)[key] = self._looked_at(_sum(given), is_causal, shape)
        return self._contents[key]

    def _looked_at(self, attn_mask: Tensor, is_causal: bool, shape: Shape) -> FoundMask:
        batch = attn_mask.shape[0] if attn_mask.dim() == 4 else 1
        if batch * shape.q_len * shape.kv_len > LARGEST:
            return FoundMask(FULL, "its mask is too large to be looked at")
        try:
            found = recognised(attn_mask, is_causal, shape)
            return FoundMask(found) if isinstance(found, Mask) else self._file(found, shape)
        except NoData as error:
            return FoundMask(FULL, str(error))
        except (CantBeDone, OSError) as error:
            return FoundMask(FULL, f"its mask can't be put: {error}")

    def _file(self, found: Nameless, shape: Shape) -> FoundMask:
        """Kept as a file, or known by what it hides where another was kept that hides the same."""
        hides = found.table if found.kind == "dense" else found.table == -torch.inf
        digest = hashlib.blake2b(hides.tobytes(), digest_size=16).digest()
        key = (found.kind, digest, hides.shape, shape)
        if key in self._contents:
            return self._contents[key]
        if self._files >= MOST:
            return FoundMask(FULL, f"its mask has no name, and {MOST} such were kept before it")
        self._files += 1
        _bounded(self._contents)[key] = made = FoundMask(kept(found, shape, self._folder))
        return made


def _bounded(some: dict[Any, Any]) -> dict[Any, Any]:
    if len(some) >= REMEMBERED:
        some.clear()
    return some


def _identity(given: list[Tensor], is_causal: bool, shape: Shape) -> Any:
    """What tells these tensors as they are now from others; None where torch keeps no count."""
    if any(x.is_inference() for x in given):
        return None
    return (*((id(x), x._version) for x in given), is_causal, shape)


def _digest(x: Tensor) -> bytes:
    """Of what a tensor holds; what is repeated by a stride of nought is read once."""
    x = x.detach()
    for axis, stride in enumerate(x.stride()):
        if stride == 0 and x.shape[axis] > 1:
            x = x.narrow(axis, 0, 1)
    held = x.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(held.data, digest_size=16).digest()


def _sum(given: list[Tensor]) -> Tensor:
    """The mask with the bias added; a boolean mask hides where it is false."""
    if len(given) == 1:
        return given[0].detach()
    mask, bias = (x.detach() for x in given)
    if mask.dtype == torch.bool:
        return torch.where(mask, bias, torch.finfo(bias.dtype).min)
    return mask + bias


FLEX_MASKS_MOST = 2**26
"""Pairs, over batch and heads, that are asked about."""
DIFFERENT = 256
"""Functions that are asked: a program may make new ones at every step."""


class FlexMasks:
    """What was found of block masks and score functions, each asked once for a shape."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[list[Any], FoundMask]] = {}

    def of(
        self, block_mask: Any, score_mod: Any, masks: Masks, shape: Shape, device: torch.device
    ) -> FoundMask:
        """The mask of a call."""
        if block_mask is None and score_mod is None:
            return FoundMask(FULL)
        given = [x for x in (block_mask, score_mod) if x is not None]
        key = (*map(id, given), shape)
        if key in self._known and all(
            ref() is x for ref, x in zip(self._known[key][0], given, strict=True)
        ):
            return self._known[key][1]
        if len(self._known) >= DIFFERENT:
            return FoundMask(
                FULL, f"its mask was not asked about: {DIFFERENT} others were before it"
            )
        found = _asked(block_mask, score_mod, masks, shape, device)
        self._known[key] = ([weakref.ref(x) for x in given], found)
        return found


def _asked(
    block_mask: Any, score_mod: Any, masks: Masks, shape: Shape, device: torch.device
) -> FoundMask:
    if (
        device.type == "meta"
        or shape.batch * shape.heads * shape.q_len * shape.kv_len > FLEX_MASKS_MOST
    ):
        return FoundMask(FULL, "its mask is too large to be asked about every pair")
    with torch.no_grad():
        seen = None if block_mask is None else _seen(block_mask, shape, device)
        added = None if score_mod is None else _added(score_mod, shape, device)
    if added is None:
        if score_mod is not None:
            found = masks.of(seen, False, shape)
            return FoundMask(found.mask, "its score_mod does more than add to the scores")
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
