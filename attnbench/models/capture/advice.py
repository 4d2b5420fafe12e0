"""Advice in place: a captured program's calls, made as they were mended.

It holds for the place that it was given for, and where a mask is dropped, for the calls there whose
mask is the one that was seen. What can't be changed from outside of a program (attention that it
writes out, its own FlexAttention, a model's implementation) is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbench.models.attention import attention
from attnbench.models.capture.kernels import QKV
from attnbench.models.mask_of import WhileAlive, hides

Function = Callable[..., Any]
Arguments = dict[str, Any]


class Advice:
    """The changes to make to the calls of each place."""

    def __init__(self, places: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """``places``: by a place's text its entries: the keys of mends, the mask that they are for
        or "", how often heads are repeated, torch's backends in order, and a variant with its
        tables and a mask by name.
        """
        self._places = places

    @classmethod
    def read(cls, path: Path) -> Advice:
        """From a file of JSON."""
        return cls(json.loads(path.read_text()))

    def needs_no_weights(self, place: str) -> bool:
        """True where nn.MultiheadAttention is to return none."""
        return any("need_weights" in entry["keys"] for entry in self._places.get(place, ()))

    def changed(
        self, place: str, mask_of: Callable[[], str], original: Function, arguments: Arguments
    ) -> tuple[Function, Arguments]:
        """The function and the arguments with which a call is made there."""
        entries = self._places.get(place, ())
        current = cache(mask_of)
        entry = next((e for e in entries if not e["mask"] or e["mask"] == current()), None)
        if entry is None:
            return original, arguments
        arguments = dict(arguments)
        for key in entry["keys"]:
            original, arguments = CHANGES[key](original, arguments, entry)
        return original, arguments


Changed = tuple[Function, Arguments]
Entry = Mapping[str, Any]
BOOLEAN = WhileAlive()


def _boolean(original: Function, a: Arguments, _: Entry) -> Changed:
    mask: Tensor = a["attn_mask"]
    visible = BOOLEAN.get(mask, "visible", lambda: mask > hides(mask.dtype))
    return original, {**a, "attn_mask": visible}


def _grouped(original: Function, a: Arguments, entry: Entry) -> Changed:
    few = {name: a[name][:, :: entry["repeated"]] for name in ("key", "value")}
    return original, {**a, **few, "enable_gqa": True}


def _replace_function(_: Function, a: Arguments, entry: Entry) -> Changed:
    return partial(_variant, attention(entry["variant"], entry["tables"]), entry["named"]), a


CHANGES: dict[str, Callable[[Function, Arguments, Entry], Changed]] = {
    "drop_mask": lambda f, a, _: (f, {**a, "attn_mask": None}),
    "is_causal": lambda f, a, _: (f, {**a, "attn_mask": None, "is_causal": True}),
    "boolean_mask": _boolean,
    "enable_gqa": _grouped,
    "contiguous": lambda f, a, _: (f, {**a, **{x: a[x].contiguous() for x in QKV}}),
    "four_axes": lambda f, a, _: (partial(_first, f), {**a, **{x: a[x][None] for x in QKV}}),
    "mask_axes": lambda f, a, _: (f, {**a, "attn_mask": a["attn_mask"][:, None]}),
    "one_head": lambda f, a, _: (f, {**a, "attn_mask": a["attn_mask"][:, :1]}),
    "detach_mask": lambda f, a, _: (f, {**a, "attn_mask": a["attn_mask"].detach()}),
    "backend": lambda f, a, entry: (partial(_with_backends, f, entry["backends"]), a),
    "no_grad": lambda f, a, _: (partial(_without_gradient, f), a),
    "need_weights": lambda f, a, _: (f, a),  # nn.MultiheadAttention was told already
    "variant": _replace_function,
}
"""Changes of a call's function and arguments, by the mend's name."""


def _first(original: Function, **arguments: Any) -> Any:
    return original(**arguments)[0]


def _with_backends(original: Function, names: Sequence[str], **arguments: Any) -> Any:
    with sdpa_kernel([getattr(SDPBackend, name) for name in names], set_priority=True):
        return original(**arguments)


def _without_gradient(original: Function, **arguments: Any) -> Any:
    with torch.no_grad():
        return original(**arguments)


def _variant(function: Function, mask: str, **a: Any) -> Any:
    """The variant, as the lines to paste call it: a mask of the data stays a tensor."""
    qkv = (a[name] for name in QKV)
    some = {"scale": a["scale"], "dropout_p": a["dropout_p"]}
    if mask:
        return function(*qkv, mask=mask, **some)
    return function(*qkv, a["attn_mask"], is_causal=a["is_causal"], **some)
