"""What a call asks, and the site it becomes.

All that a site follows from is in :class:`Asked`, so that a site is made once for all equal calls.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from attnbench.models.calls import Site
from attnbench.models.capture.masks import Found, Masks
from attnbench.models.capture.where import Where, told
from attnbench.models.mask_of import FULL
from attnbench.models.problem_of import phase_of, problem_of
from impls.masks import Shape
from impls.problem import Problem


class Asked(NamedTuple):
    """All that the site of a call follows from."""

    where: Where
    via: str
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    gradients: bool
    found: Found
    scale: float | None
    dropout: float
    note: str
    faithful: bool


class Call(NamedTuple):
    """The arguments of one call, as it was made."""

    via: str
    q: Tensor
    k: Tensor
    v: Tensor
    attn_mask: Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    dropout: float = 0.0
    bias: Tensor | None = None
    found: Callable[[Masks, Shape], Found] | None = None
    """What finds the mask, where it isn't a tensor."""
    note: str = ""
    faithful: bool = True
    heads: int = 0
    """Where batch and heads are one axis: how many heads."""
    whole: bool = False
    """Whether it does more than attention, so that its seconds say nothing."""

    def asked(self, where: Where, masks: Masks) -> Asked:
        """What it asks."""
        forms = [four(x, self.heads) for x in (self.q, self.k, self.v)]
        times = mapped(self.q, self.k, self.v)
        q, k, v = ((times * form[0], *form[1:]) for form in forms)
        shape = Shape(q[0], q[1], q[2], k[2])
        mask = self.attn_mask
        if mask is not None and self.q.dim() == 3 and mask.dim() == 3:
            heads = self.heads if mask.shape[0] > 1 else 0
            mask = mask.unflatten(0, (-1, heads)) if heads else mask[:, None]
        if times > 1 and (mask is not None or self.found is not None):
            found = Found(FULL, "torch.vmap maps it, and what its mask hides is not known")
        elif self.found is not None:
            found = self.found(masks, shape)
        else:
            found = masks.of(mask, self.is_causal, shape, where, self.bias)
        return Asked(
            where, self.via, q, k, v, _dtype(self.q), self.q.device, wants_gradients(self),
            found, self.scale, self.dropout, self.note, self.faithful,
        )  # fmt: skip


def mapped(*given: Tensor) -> int:
    """How many calls torch.vmap makes one of: no tensor says so in its shape."""
    sizes: dict[int, int] = {}
    for x in given:
        while functorch.is_functorch_wrapped_tensor(x):
            inner = functorch.get_unwrapped(x)
            if functorch.is_batchedtensor(x):
                level = functorch.maybe_get_level(x)
                sizes[level] = inner.shape[functorch.maybe_get_bdim(x)]
            x = inner
    return prod(sizes.values())


def wants_gradients(call: Call) -> bool:
    """Whether a backward pass may come of it."""
    given = (call.q, call.k, call.v)
    return torch.is_grad_enabled() and any(x.requires_grad for x in given)


def four(x: Tensor, heads: int) -> tuple[int, ...]:
    """[batch, heads, length, width] of what may have fewer axes, or more."""
    shape = tuple(x.shape)
    if len(shape) == 4:
        return shape
    if heads:
        return (shape[0] // heads, heads, *shape[1:])
    if len(shape) == 3:
        return (shape[0], 1, *shape[1:])
    return (prod(shape[:-3]), *shape[-3:]) if len(shape) > 3 else (1, 1, *shape)


def _dtype(x: Tensor) -> torch.dtype:
    """The dtype that attention runs in: autocast's where that is on."""
    kind = x.device.type
    if kind in ("cpu", "cuda") and x.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def site_of(asked: Asked) -> Site:
    """A site without calls; raises a sentence where there is no such problem."""
    device = asked.device.type if asked.device.type != "meta" else "cpu"
    shape = Shape(asked.q[0], asked.q[1], asked.q[2], asked.v[2])
    phase = phase_of(shape, asked.found.mask, gradient=asked.gradients)
    problem = problem_of(asked.q, asked.v, asked.dtype, device, asked.found.mask, phase)
    scale = problem.scale if asked.scale is None else float(asked.scale)
    return Site(
        problem, told(asked.where), asked.via, 0, 0.0, scale=scale, note=_note(asked, problem),
        faithful=asked.faithful and not asked.found.note,
    )  # fmt: skip


def _note(asked: Asked, problem: Problem) -> str:
    notes = [asked.found.note, asked.note]
    if asked.dropout:
        notes.append(f"it drops {asked.dropout:g} of the weights, and the problem none")
    if asked.scale is not None and abs(asked.scale - problem.scale) > 1e-6 * problem.scale:
        notes.append(f"its scores are scaled by {asked.scale:.4g}, the problem's by their own rule")
    if asked.device.type == "meta":
        notes.append("on the meta device: nothing was computed")
    return "; ".join(filter(None, notes))
