"""FlexAttention, recorded: called as it is, or compiled by itself, as is usual.

``torch.compile(flex_attention)`` gives a function of which the calls are recorded from outside.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.models.capture import compiled
from attnbench.models.capture.asked import Call
from attnbench.models.capture.flex_masks import FlexMasks
from attnbench.models.capture.masks import Found, Masks
from attnbench.models.capture.now import Now
from attnbench.models.capture.originals import Function, Original, Stands
from impls.masks import Shape


def put(stands: Stands, now: Now) -> None:
    """Stand for ``flex_attention``."""
    from torch.nn.attention import flex_attention as module

    known = FlexMasks()
    stands.put(module, "flex_attention", lambda o: flex(o, now, known))


def flex(original: Original, now: Now, known: FlexMasks) -> Function:
    """``torch.nn.attention.flex_attention.flex_attention``"""

    def flex_attention(
        query: Tensor, key: Tensor, value: Tensor, score_mod: Any = None, block_mask: Any = None,
        scale: float | None = None, enable_gqa: bool = False, *args: Any, **more: Any,
    ) -> Any:  # fmt: skip
        if torch.compiler.is_compiling():
            if torch.compiler.is_dynamo_compiling():
                from torch._dynamo.comptime import comptime

                comptime(flex_met)
            return original.call(
                query, key, value, score_mod, block_mask, scale, enable_gqa, *args, **more
            )
        begun = now.begin(query)
        state = now.state()
        before, state.heads = state.heads, 1  # its own products and softmax are no other attention
        try:
            out = original.call(
                query, key, value, score_mod, block_mask, scale, enable_gqa, *args, **more
            )
        finally:
            state.heads = before
        if begun is not None:

            def found(masks: Masks, shape: Shape) -> Found:
                return known.of(block_mask, score_mod, masks, shape, query.device)

            def call() -> Call:
                return Call("flex", query, key, value, scale=scale, found=found)

            now.made(call, out, begun)
        return out

    def flex_met(context: Any) -> None:
        now.met(context, compiled.nameless)

    return flex_attention


def put_compile(stands: Stands) -> None:
    """Stand for ``torch.compile``, for what is compiled by itself and recorded."""

    def make(original: Original) -> Function:
        def compile(model: Any = None, *args: Any, **more: Any) -> Any:
            if model is not None and hasattr(model, "__attnbench__"):
                made = stands.compiled(model, lambda f: original.call(f, *args, **more))
                if made is not None:
                    return made
            return original.call(model, *args, **more)

        return compile

    stands.put(torch, "compile", make)


def put_script(stands: Stands) -> None:
    """Stand for ``torch.jit.script``, which knows torch's functions by their identity."""

    def make(original: Original) -> Function:
        def script(*args: Any, **more: Any) -> Any:
            more["_frames_up"] = more.get("_frames_up", 0) + 1  # names are looked up at its caller
            with stands.paused():
                return original.call(*args, **more)

        return script

    stands.put(torch.jit, "script", make)
