"""The attention functions of transformers, recorded where a model is given its own.

Every model asks ``ALL_ATTENTION_FUNCTIONS.get_interface`` for its function, also for its own eager
one, with keys and values by their own heads. What that function calls of torch's is part of it, and
says which mask it applied; where it calls nothing of torch's, the mask is the one it was given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from attnbench.models.capture.asked import Call
from attnbench.models.capture.masks import Found, Masks
from attnbench.models.capture.now import Now
from attnbench.models.capture.originals import Function, Original, Stands
from impls.masks import Shape

MODULE = "transformers.modeling_utils"
MEANT = {"softcap": "its scores are capped", "s_aux": "it has attention sinks",
         "sinks": "it has attention sinks"}  # fmt: skip
"""What a problem can't say, by the name under which models pass it."""


def put(stands: Stands, now: Now) -> None:
    """Stand for what gives models their function."""
    interface = getattr(sys.modules.get(MODULE), "AttentionInterface", None)
    if hasattr(interface, "get_interface"):
        stands.put(interface, "get_interface", lambda o: get_interface(o, now))


def get_interface(original: Original, now: Now) -> Function:
    """``AttentionInterface.get_interface``"""
    made: dict[Any, Function] = {}

    def get_interface(self: Any, attn_implementation: Any, default: Any) -> Any:
        found = original.call(self, attn_implementation, default)
        if torch.compiler.is_compiling() or not now.on:
            return found
        name = str(attn_implementation)
        if (found, name) not in made:
            made[found, name] = observed(Original(found), name, now)
        return made[found, name]

    return get_interface


def observed(original: Original, name: str, now: Now) -> Function:
    """An attention function as transformers calls it."""
    via = f"transformers {name}"

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any,
        **more: Any,
    ) -> Any:  # fmt: skip
        begun = None if torch.compiler.is_compiling() else now.begin(query)
        if begun is None:
            return original.call(module, query, key, value, attention_mask, *args, **more)
        state = now.state()
        before = state.outer, state.calls
        state.outer, state.calls = via, []
        try:
            out = original.call(module, query, key, value, attention_mask, *args, **more)
            inner = state.calls
        finally:
            state.outer, state.calls = before

        def call() -> Call:
            return _call(via, module, (query, key, value), attention_mask, inner, more)

        now.made(call, out, begun)
        return out

    return attention


def _call(via: str, module: Any, qkv: tuple[Tensor, Tensor, Tensor], mask: Any,
          inner: list[Callable[[], Call]], more: dict[str, Any]) -> Call:  # fmt: skip
    """The call that it was, by what it called of torch's or by what it was given."""
    q, k, v = qkv
    notes = [said for word, said in MEANT.items() if more.get(word) is not None]
    call = Call(
        via, q, k, v, scale=more.get("scaling"), dropout=more.get("dropout") or 0.0,
        note="; ".join(notes), faithful=not notes, bias=more.get("position_bias"),
    )  # fmt: skip
    if len(inner) == 1:
        return _as_inner(call, inner[0](), mask)
    if via.startswith("transformers flash"):
        return _as_flash(call, module, mask, more)
    causal = more.get("is_causal")
    if via.endswith(" eager"):
        causal = False
    elif causal is None:
        causal = getattr(module, "is_causal", True)
    causal = bool(causal) and mask is None and q.shape[2] > 1
    if mask is not None and not isinstance(mask, Tensor):
        return call._replace(note="; ".join([*notes, NO_TENSOR]), faithful=False)
    return call._replace(attn_mask=mask, is_causal=causal)


def _as_inner(call: Call, inner: Call, mask: Any) -> Call:
    """With the mask that torch's function was given; heads may have been packed for that."""
    k, v = call.k, call.v
    if k.shape[2] != inner.k.shape[2]:
        k, v = (x.detach()[:, :, : inner.k.shape[2]] for x in (k, v))
    if inner.found is not None or inner.q.shape == call.q.shape:
        return call._replace(
            k=k, v=v, attn_mask=inner.attn_mask, is_causal=inner.is_causal, found=inner.found,
            bias=None, scale=inner.scale, dropout=inner.dropout,
        )  # fmt: skip
    return call._replace(k=k, v=v, attn_mask=mask if isinstance(mask, Tensor) else None)


def _as_flash(call: Call, module: Any, mask: Any, more: dict[str, Any]) -> Call:
    """A flash kernel: a padding mask, if any, and words for the rest; the last query at the end."""
    causal = more.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal

    def found(masks: Masks, shape: Shape) -> Found:
        seen = _flash_mask(shape.q_len, shape.kv_len, bool(causal), more.get("sliding_window"))
        if isinstance(mask, Tensor) and mask.dim() == 2:
            seen = seen & mask.bool().cpu()[:, None, None, -shape.kv_len :]
        return masks.of(seen, False, shape)

    return call._replace(found=found)


@lru_cache(maxsize=16)
def _flash_mask(n: int, m: int, causal: bool, window: int | None) -> Tensor:
    away = torch.arange(m) - (torch.arange(n)[:, None] + m - n)
    seen = away <= 0 if causal else torch.ones(n, m, dtype=torch.bool)
    return seen if window is None else seen & (away > -window)


NO_TENSOR = "its mask is no tensor, and what it hides is not known"
