"""Torch's own attention functions, recorded.

``F.scaled_dot_product_attention``; ``F.multi_head_attention_forward``, whose two products and
softmax are recorded without the projections around them: its code runs as it is, on the names that
its module has at that moment, of which a few are ours; the two operators of the fast path, which
are counted alone, since their seconds are those of the projections too, or of a whole layer.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.models.capture import compiled
from attnbench.models.capture.asked import Call
from attnbench.models.capture.originals import Function, Original, Stands

if TYPE_CHECKING:
    from attnbench.models.capture.now import Now


FUSED = "scaled_dot_product_attention"


def put(stands: Stands, now: Now) -> None:
    """Stand for all of torch's functions."""
    inner = stands.put(F, FUSED, lambda o: sdpa(o, now, "sdpa"))
    fused = F.scaled_dot_product_attention
    stands.put(F, "multi_head_attention_forward", lambda o: mha(o, inner, fused, now))
    stands.put(torch, "_native_multi_head_attention", lambda o: native(o, now))
    stands.put(torch, "_transformer_encoder_layer_fwd", lambda o: encoder_layer(o, now))


def sdpa(original: Original, now: Now, via: str) -> Function:
    """``F.scaled_dot_product_attention``"""

    def scaled_dot_product_attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if torch.compiler.is_compiling():
            if torch.compiler.is_dynamo_compiling():
                from torch._dynamo.comptime import comptime

                comptime(sdpa_met)
            return original.call(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        begun = now.begin(query)
        out = original.call(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        if begun is not None:

            def call() -> Call:
                return Call(via, query, key, value, attn_mask, is_causal, scale, dropout_p)

            now.made(call, out, begun)
        return out

    def sdpa_met(context: Any) -> None:
        now.met(context, compiled.sdpa_call)

    return scaled_dot_product_attention


# ---- nn.MultiheadAttention ---------------------------------------------------------------------


class _Torch:
    """The names of ``torch``, but for the products that attention is made of."""

    def __init__(self, now: Now) -> None:
        self._products = _Products(now)
        self.bmm, self.baddbmm = self._products.bmm, self._products.baddbmm

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _Products:
    """Scores are the first product, and the weights with the values the second."""

    def __init__(self, now: Now) -> None:
        self._now = now

    def bmm(self, a: Tensor, b: Tensor) -> Tensor:
        """Of queries and keys, or of weights and values."""
        state = self._now.state()
        if state.scores is None:
            state.scores = (self._now.begin(a), a, b, None)
            return torch.bmm(a, b)
        (begun, q, k, mask), state.scores = state.scores, None
        out = torch.bmm(a, b)
        if begun is not None:
            self._made(state.heads, q, k, b, mask, out, begun)
        return out

    def baddbmm(self, mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Of queries and keys, with what is added."""
        state = self._now.state()
        state.scores = (self._now.begin(a), a, b, mask)
        return torch.baddbmm(mask, a, b)

    def _made(self, heads: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
              out: Tensor, begun: Any) -> None:  # fmt: skip
        def call() -> Call:
            return Call("mha", q, k.mT, v, mask, heads=heads, scale=q.shape[-1] ** -0.5)

        self._now.made(call, out, begun)


def mha(original: Original, inner: Original, fused: Function, now: Now) -> Function:
    """``F.multi_head_attention_forward``; ``fused`` stands for the function that it calls."""
    products, within = _Torch(now), sdpa(inner, now, "mha")

    def run(*args: Any, **more: Any) -> Any:
        whole: Any = original.call
        names = {**whole.__globals__, "torch": products}
        if names[FUSED] is fused:  # else it is what the program has put there
            names[FUSED] = within
        made = types.FunctionType(
            whole.__code__, names, whole.__name__, whole.__defaults__, whole.__closure__
        )
        made.__kwdefaults__ = whole.__kwdefaults__
        return made(*args, **more)

    def multi_head_attention_forward(*args: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling() or not now.on:
            return original.call(*args, **more)
        state = now.state()
        before = state.heads
        state.heads = args[4] if len(args) > 4 else more["num_heads"]
        try:
            return run(*args, **more)
        finally:
            state.heads, state.scores = before, None

    return multi_head_attention_forward


def native(original: Original, now: Now) -> Function:
    """``torch._native_multi_head_attention``"""

    def _native_multi_head_attention(*args: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling() or (begun := now.begin(args[0], nested=True)) is None:
            return original.call(*args, **more)
        out = original.call(*args, **more)

        def call() -> Call:
            query, key, value, width, heads = args[:5]
            mask, kind = _given(args, more, 9, "mask"), _given(args, more, 12, "mask_type")
            return fast_call("mha fast path", (query, key, value), width, heads, mask, kind)

        now.made(call, out, begun)
        return out

    return _native_multi_head_attention


def encoder_layer(original: Original, now: Now) -> Function:
    """``torch._transformer_encoder_layer_fwd``"""

    def _transformer_encoder_layer_fwd(*args: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling() or (begun := now.begin(args[0], nested=True)) is None:
            return original.call(*args, **more)
        out = original.call(*args, **more)

        def call() -> Call:
            src, width, heads = args[:3]
            mask, kind = _given(args, more, 18, "mask"), _given(args, more, 19, "mask_type")
            return fast_call("encoder layer fast path", (src, src, src), width, heads, mask, kind)

        now.made(call, out, begun)
        return out

    return _transformer_encoder_layer_fwd


def _given(args: tuple[Any, ...], more: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else more.get(name)


def fast_call(via: str, qkv: tuple[Tensor, Tensor, Tensor], width: int, heads: int,
              mask: Tensor | None, kind: int | None) -> Call:  # fmt: skip
    """The call inside an operator of the fast path; ``kind`` 1 is a padding mask, 2 both."""
    if qkv[0].is_nested:
        lengths = torch.tensor([len(x) for x in qkv[0].unbind()])
        x = qkv[0].to_padded_tensor(0.0)
        hidden = torch.arange(x.shape[1])[None] >= lengths[:, None]
        qkv, mask, kind = (x, x, x), hidden, 1
    q, k, v = (x.detach().unflatten(-1, (heads, width // heads)).transpose(1, 2) for x in qkv)
    if mask is not None:
        mask = ~mask if mask.dtype == torch.bool else mask
        mask = mask[:, None, None] if kind == 1 else mask
    return Call(via, q, k, v, mask, note=WHOLE_NOTE, whole=True)


WHOLE_NOTE = "torch computes it in one operator with more than attention: its seconds are not known"
