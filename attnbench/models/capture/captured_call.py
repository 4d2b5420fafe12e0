"""One call of a program: its tensors, its form, and the site that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnbench.core.call import Api, CallForm, TensorForm
from attnbench.models.capture.calls import Site
from attnbench.models.capture.kernels import disabled_kernels
from attnbench.models.capture.masks import FoundMask, Masks
from attnbench.models.capture.places import Where, place_text
from attnbench.models.mask_of import phase_of, problem_of
from impls.masks import Shape
from impls.operators import PARAMETERS
from impls.spec import DEVICES

PLAIN = (type(None), Tensor, torch.nn.Parameter)


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """``bfloat16``"""
    return str(dtype).removeprefix("torch.")


def _tensor_form(x: Tensor) -> TensorForm:
    return TensorForm(tuple(x.shape), x.stride(), dtype_name(x.dtype), x.requires_grad)


class CapturedCall(NamedTuple):
    """The arguments of one call, as it was made."""

    via: str
    q: Tensor
    k: Tensor
    v: Tensor
    attn_mask: Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    dropout: float = 0.0
    enable_gqa: bool = False
    api: Api = "other"
    """The function that is called; ``other``: it says nothing of what could be mended."""
    bias: Tensor | None = None
    find_mask: Callable[[Masks, Shape], FoundMask] | None = None
    """The function that finds the mask, where it isn't a tensor."""
    mask_type: str = ""  # what the mask is, where it isn't a tensor
    returns: str = ""  # what is returned beside the output, and whether nobody reads it
    unread: bool = False
    note: str = ""
    """What the problem can't describe; nothing where it describes all."""
    form: CallForm | None = None  # where another call was made in its place
    ends: tuple[Tensor, ...] = ()
    """The tensors at which the gradient ends, if not q, k and v, which are then views of these."""
    gradient: bool = False  # whether compiled code may ask for one, which its tensors don't say
    weights_used: bool = False  # whether the program was seen to use the weights it wrote out
    softcap: float | None = None
    sinks: Tensor | None = None

    def full_form(self) -> CallForm:
        """Its form, as far as its arguments show it: what ran in it is not known yet."""
        if self.form is not None:
            return self.form
        kind, mask = self.q.device.type, self.attn_mask
        autocast = kind in DEVICES and torch.is_autocast_enabled(kind)
        needs = any(x.requires_grad for x in (self.q, self.k, self.v, *self.ends))
        return CallForm(
            self.api,
            _tensor_form(self.q),
            _tensor_form(self.k),
            _tensor_form(self.v),
            mask=None if mask is None else _tensor_form(mask),
            mask_type=self.mask_type or ("" if type(mask) in PLAIN else type(mask).__name__),
            is_causal=bool(self.is_causal),
            dropout=float(self.dropout),
            enable_gqa=bool(self.enable_gqa),
            disabled=disabled_kernels(kind),
            autocast=dtype_name(torch.get_autocast_dtype(kind)) if autocast else "",
            returns=self.returns,
            unread=self.unread,
            gradient=self.gradient or (torch.is_grad_enabled() and needs),
        )

    def look(self, where: Where, masks: Masks) -> tuple[FoundMask, bool]:
        """Its mask, and whether that is a tensor that was not seen before."""
        q, k = _four(self.q), _four(self.k)
        shape, mask = Shape(q[0], q[1], q[2], k[2]), self.attn_mask
        if self.find_mask is not None:
            return self.find_mask(masks, shape), False
        if mask is not None and self.q.dim() == 3 and mask.dim() == 3:
            mask = mask[:, None]
        new = mask is not None and masks.is_new(mask)
        return masks.of(mask, self.is_causal, shape, where, self.bias), new

    def phase(self, mask: FoundMask, *, gradient: bool) -> str:
        """Its phase; ``gradient``: whether a backward pass follows."""
        q, v = _four(self.q), _four(self.v)
        return phase_of(Shape(q[0], q[1], q[2], v[2]), mask.mask, gradient=gradient)

    def parameters(self, mask: FoundMask) -> tuple[dict[str, Any], str]:
        """The parameters of its operator that it sets, and what of them no problem can have."""
        number = mask.softcap if self.softcap is None else self.softcap
        numbers = {"scale": self.scale, "softcap": number}
        values: dict[str, Any] = {n: float(x) for n, x in numbers.items() if x is not None}
        if self.returns == "lse" and not self.unread:
            values["lse"] = True
        if self.sinks is not None:
            values["sinks"] = True
            if tuple(self.sinks.shape) != _four(self.q)[1:2]:
                return values, "its sinks are not one a head"
        wrong = {name: PARAMETERS[name].fault(value) for name, value in values.items()}
        notes = [f"its {n} is {values[n]:g}, not {need}" for n, need in wrong.items() if need]
        return {n: x for n, x in values.items() if not wrong[n]}, "; ".join(notes)

    def site(self, where: Where, mask: FoundMask, form: CallForm) -> Site:
        """A site without calls; raises CantBeDone where there is no such problem."""
        device, dtype = self.q.device.type, dtype_name(self.q.dtype)
        if form.autocast and dtype != "float64":
            dtype = form.autocast
        shapes = _four(self.q), _four(self.v)
        phase = self.phase(mask, gradient=form.gradient)
        on = "cpu" if device == "meta" else device
        parameters, unlike = self.parameters(mask)
        problem = problem_of(*shapes, dtype, on, mask.mask, phase).with_(**parameters)
        notes = {
            mask.note: True,
            self.note: True,
            unlike: True,
            f"it drops {self.dropout:g} of the weights, and the problem none": self.dropout > 0,
            "on the meta device: nothing was computed": device == "meta",
            "torch computes it in one operator with more than attention: its seconds are not "
            "known": self.api == "fast path",
        }
        return Site(
            problem,
            place_text(where),
            self.via,
            calls=0,
            seconds=0.0,
            note="; ".join(note for note, so in notes.items() if note and so),
            faithful=not (self.note or mask.note or unlike),
        )


def _four(x: Tensor) -> tuple[int, ...]:
    """[batch, heads, length, width] of what may have fewer axes, or more."""
    shape = tuple(x.shape)
    if len(shape) == 3:
        return (shape[0], 1, *shape[1:])
    return (prod(shape[:-3]), *shape[-3:]) if len(shape) > 3 else (1, 1, *shape)
