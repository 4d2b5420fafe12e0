"""The mask that a layer's tensors mean together: what hides, and what is added to the scores."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.models.known_masks import known_mask
from impls.masks import Mask, Part, Shape

ANY_CORNER = {"dense", "bias", "padding", "document"}
"""Conditions that say the same whichever corner a mask is aligned to, with as many keys or more."""

CAUSAL_FROM_THE_FRONT = Mask.parse("causal@upper-left")


def meant(terms: tuple[Tensor, ...], is_causal: bool, query: Tensor, key: Tensor) -> Mask | Tensor:
    """The mask of all the terms: each is looked at once, however many layers are given it.

    A boolean mask and a bias stay two conditions, ``causal+bias:FILE``: nothing as large as both
    together is made. What can't be said side by side is added up, and stays a tensor.
    """
    batch, heads, q_len, _ = query.shape
    shape = Shape(batch, heads, q_len, key.shape[2])
    whole = known_mask(None, is_causal, shape)
    for term in terms:
        beside = _joined(whole, known_mask(term, False, shape))
        if beside is None:
            return _added_up(terms, is_causal, shape)
        whole = beside
    return whole


def in_use(mask: Mask | Tensor, q_len: int, kv_len: int) -> tuple[Mask | Tensor, int]:
    """The mask over the keys that are in use, and how many those are.

    A static cache has free places after the tokens, which nobody sees. Without them there is less
    to do, and often no mask at all, so that variants can serve it that take none.
    """
    if isinstance(mask, Tensor):
        return mask, kv_len
    if mask == CAUSAL_FROM_THE_FRONT and q_len < kv_len:
        return Mask.parse("causal"), q_len
    numbers = mask.parts[0].numbers if mask.kinds == ("padding",) else ()
    if len(numbers) == 1 and numbers[0] > 0:
        return Mask(), numbers[0]
    return mask, kv_len


def with_a_window(mask: Mask, kv_len: int) -> Mask:
    """The same mask, with a window as wide as all keys where it has none."""
    if "window" in mask.kinds:
        return mask
    return Mask((*mask.parts, Part("window", (kv_len, kv_len))), mask.upper_left)


def _joined(one: Mask, other: Mask) -> Mask | None:
    """Both conditions; None where a mask can't hold them together."""
    kinds = [part.kind for mask in (one, other) for part in mask.parts]
    if len(set(kinds)) < len(kinds):
        return None
    corners = {m.upper_left for m in (one, other) if {p.kind for p in m.parts} - ANY_CORNER}
    return None if len(corners) > 1 else Mask(one.parts + other.parts, corners == {True})


def _added_up(terms: tuple[Tensor, ...], is_causal: bool, shape: Shape) -> Tensor:
    """The terms as one that is added; nothing here wants a gradient."""
    dtype = next((term.dtype for term in terms if term.dtype != torch.bool), torch.float32)
    total = torch.zeros(shape.q_len, shape.kv_len, dtype=dtype, device=terms[0].device)
    if is_causal:
        total = total.masked_fill_(torch.ones_like(total, dtype=torch.bool).triu(1), -torch.inf)
    for term in terms:
        if term.dtype == torch.bool:
            term = torch.zeros_like(term, dtype=dtype).masked_fill_(~term, -torch.inf)
        total = total + term.detach()
    return total
