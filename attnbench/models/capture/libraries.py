"""Stand-ins for the functions of torch, FlexAttention and transformers that compute attention."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.models.capture.masks import FoundMask, Masks
from attnbench.models.capture.originals import Function, Original, Stands
from attnbench.models.capture.places import Place, first_of, place_of
from attnbench.models.capture.recorder import NOW, CapturedCall, SiteRequest, four
from attnbench.models.mask_of import FULL, causal_of
from impls.asked import CantBeDone
from impls.masks import Shape

MODULE = "transformers.modeling_utils"


def put_torch(stands: Stands) -> None:
    """Stand for torch's functions."""
    stands.put(F, "scaled_dot_product_attention", sdpa)
    stands.put(F, "multi_head_attention_forward", _mha)
    native, layer = "_native_multi_head_attention", "_transformer_encoder_layer_fwd"
    stands.put(torch, native, partial(_fast_path, "mha fast path", 3, (9, 12)))
    stands.put(torch, layer, partial(_fast_path, "encoder layer fast path", 1, (18, 19)))
    stands.put(torch, "compile", lambda o: _compile(o, stands))
    stands.put(torch.jit, "script", lambda o: _script(o, stands))


def put_flex(stands: Stands) -> None:
    """Stand for ``flex_attention``."""
    from torch.nn.attention import flex_attention as module

    stands.put(module, "flex_attention", _flex)


def put_transformers(stands: Stands) -> None:
    """Stand for what gives models their function."""
    interface = getattr(sys.modules.get(MODULE), "AttentionInterface", None)
    if hasattr(interface, "get_interface"):
        stands.put(interface, "get_interface", _get_interface)


def sdpa(original: Original) -> Function:
    """``F.scaled_dot_product_attention``"""

    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if torch.compiler.is_dynamo_compiling():  # the values that it looks at are this frame's
            from torch._dynamo.comptime import comptime

            comptime(met_sdpa)
        begun = None if torch.compiler.is_compiling() else NOW.begin(query)
        out = original.call(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        if begun is not None:
            via = "mha" if NOW.state().heads > 0 else "sdpa"
            given = via, query, key, value, attn_mask, is_causal, scale, dropout_p
            NOW.made(partial(CapturedCall, *given), out, begun)
        return out

    return scaled_dot_product_attention


def _mha(original: Original) -> Function:
    """``F.multi_head_attention_forward``: what it calls meanwhile is part of it."""

    def multi_head_attention_forward(*args: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling() or NOW.recorder is None:
            return original.call(*args, **more)
        state = NOW.state()
        before = state.heads
        state.heads = args[4] if len(args) > 4 else more["num_heads"]
        try:
            return original.call(*args, **more)
        finally:
            state.heads, state.scores = before, None

    return multi_head_attention_forward


def _fast_path(via: str, tensors: int, places: tuple[int, int], original: Original) -> Function:
    """An operator that computes more than attention.

    ``tensors``: how many it takes before the width and the heads; ``places`` of its mask and of
    what kind that is among its arguments.
    """

    def read(args: tuple[Any, ...], more: dict[str, Any]) -> CapturedCall:
        qkv: Any = args[:3] if tensors == 3 else args[:1] * 3
        mask, kind = (
            args[place] if len(args) > place else more.get(name)
            for place, name in zip(places, ("mask", "mask_type"), strict=True)
        )
        width, heads = args[tensors : tensors + 2]
        return fast_call(via, qkv, width, heads, mask, kind)

    def fast_path(*args: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling() or (begun := NOW.begin(args[0], nested=True)) is None:
            return original.call(*args, **more)
        out = original.call(*args, **more)
        NOW.made(partial(read, args, more), out, begun)
        return out

    return fast_path


WHOLE_NOTE = "torch computes it in one operator with more than attention: its seconds are not known"


def fast_call(
    via: str,
    qkv: tuple[Tensor, Tensor, Tensor],
    width: int,
    heads: int,
    mask: Tensor | None,
    kind: int | None,
) -> CapturedCall:
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
    return CapturedCall(via, q, k, v, mask, note=WHOLE_NOTE, whole=True)


def _flex(original: Original) -> Function:
    """``torch.nn.attention.flex_attention.flex_attention``"""

    def flex_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Any = None,
        block_mask: Any = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        *args: Any,
        **more: Any,
    ) -> Any:
        given = query, key, value, score_mod, block_mask, scale, enable_gqa
        run = partial(original.call, *given, *args)
        if torch.compiler.is_dynamo_compiling():
            from torch._dynamo.comptime import comptime

            comptime(_met_flex)
        if torch.compiler.is_compiling():
            return run(**more)
        begun = NOW.begin(query)
        state = NOW.state()
        before, state.heads = state.heads, -1  # its own products are no other attention
        try:
            out = run(**more)
        finally:
            state.heads = before
        if begun is not None:

            def find(masks: Masks, shape: Shape) -> FoundMask:
                return masks.of_flex(block_mask, score_mod, shape, query.device)

            call = partial(CapturedCall, "flex", query, key, value, scale=scale, find_mask=find)
            NOW.made(call, out, begun)
        return out

    return flex_attention


COMPILED_NOTE = "compiled into larger code: how often it ran, and for how long, is not known"


def _compile(original: Original, stands: Stands) -> Function:
    """``torch.compile``, for functions that are compiled by themselves and recorded."""

    def compile(model: Any = None, *args: Any, **more: Any) -> Any:
        if model is not None and hasattr(model, "__attnbench__"):
            made = stands.compiled(model, lambda f: original.call(f, *args, **more))
            if made is not None:
                return made
        return original.call(model, *args, **more)

    return compile


def _script(original: Original, stands: Stands) -> Function:
    """``torch.jit.script``, which knows torch's functions by their identity."""

    def script(*args: Any, **more: Any) -> Any:
        more["_frames_up"] = more.get("_frames_up", 0) + 1  # names are looked up at its caller
        with stands.paused():
            return original.call(*args, **more)

    return script


def _met_flex(_: Any) -> None:
    """Torch's compiler met a call of ``flex_attention``."""
    if (recorder := NOW.recorder) is not None:
        recorder.met_compiled(None)


def met_sdpa(context: Any) -> None:
    """Torch's compiler met a call of ``F.scaled_dot_product_attention``."""
    if (recorder := NOW.recorder) is None:
        return
    site = None
    try:
        site = _compiled_request(context).site()
    except CantBeDone as error:
        recorder.failures[str(error)] += 1
    except Exception as error:  # how the compiler keeps its values may change with its version
        recorder.failures[f"torch.compile did not say what it is: {error!r:.120}"] += 1
    recorder.met_compiled(site)


def _compiled_request(context: Any) -> SiteRequest:
    q, k, v = (context.get_local(name).as_fake() for name in ("query", "key", "value"))
    masked, causal, scale, dropout = (
        _constant(context, name) for name in ("attn_mask", "is_causal", "scale", "dropout_p")
    )
    forms = (four(q), four(k), four(v))
    found = FoundMask(FULL, "its mask has no values while it is compiled")
    if masked is None:
        shape = Shape(forms[0][0], forms[0][1], forms[0][2], forms[1][2])
        found = FoundMask(causal_of(shape) if causal is True else FULL)
    gradients = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    scale = scale if isinstance(scale, float) else None
    place, via = first_of(_traced_places(context)), "sdpa, compiled"
    request = SiteRequest(place, via, *forms, q.dtype, q.device, gradients, found, scale)
    request = request._replace(note=COMPILED_NOTE)
    return request._replace(dropout=dropout) if isinstance(dropout, float) else request


def _constant(context: Any, name: str) -> Any:
    """The value of an argument that is a constant, else something that is no argument's value."""
    try:
        return context.get_local(name).as_python_constant()
    except Exception:
        return ...


def _traced_places(context: Any) -> Iterator[Place]:
    """The frames that are being traced, the innermost first."""
    frame = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
    while frame is not None:
        yield place_of(frame.f_code, frame.lineno)
        frame = getattr(frame, "parent", None)


INEXPRESSIBLE = {
    "softcap": "its scores are capped",
    "s_aux": "it has attention sinks",
    "sinks": "it has attention sinks",
}
"""What a problem can't describe, by the name under which models pass it."""
NO_TENSOR = "its mask is no tensor, and what it hides is not known"


def _get_interface(original: Original) -> Function:
    """``AttentionInterface.get_interface``"""
    observed_functions: dict[Any, Function] = {}

    def get_interface(self: Any, attn_implementation: Any, default: Any) -> Any:
        function = original.call(self, attn_implementation, default)
        if torch.compiler.is_compiling() or NOW.recorder is None:
            return function
        key = function, str(attn_implementation)
        if key not in observed_functions:
            observed_functions[key] = observed(Original(function), key[1])
        return observed_functions[key]

    return get_interface


def observed(original: Original, name: str) -> Function:
    """An attention function as transformers calls it."""
    via = f"transformers {name}"

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        *args: Any,
        **more: Any,
    ) -> Any:
        begun = None if torch.compiler.is_compiling() else NOW.begin(query)
        run = partial(original.call, module, query, key, value, attention_mask, *args, **more)
        if begun is None:
            return run()
        state = NOW.state()
        before = state.outer, state.inner
        state.outer, state.inner = via, []
        try:
            out = run()
            inner = state.inner
        finally:
            state.outer, state.inner = before
        given = via, module, (query, key, value), attention_mask, inner, more
        NOW.made(partial(layer_call, *given), out, begun)
        return out

    return attention


def layer_call(
    via: str,
    module: Any,
    qkv: tuple[Tensor, Tensor, Tensor],
    mask: Any,
    inner: list[Callable[[], CapturedCall]],
    more: dict[str, Any],
) -> CapturedCall:
    """A layer's call, by what it called of torch's or else by its arguments."""
    notes = [note for word, note in INEXPRESSIBLE.items() if more.get(word) is not None]
    scale, dropout, bias = (more.get(word) for word in ("scaling", "dropout", "position_bias"))
    call = CapturedCall(via, *qkv, scale=scale, dropout=dropout or 0.0, bias=bias)
    call = call._replace(note="; ".join(notes), faithful=not notes)
    tensor = mask if isinstance(mask, Tensor) else None
    if len(inner) == 1:
        its, (_, k, v) = inner[0](), qkv
        if k.shape[2] != its.k.shape[2]:  # heads may have been packed for torch's function
            k, v = (x.detach()[:, :, : its.k.shape[2]] for x in (k, v))
        call = call._replace(k=k, v=v)
        if its.find_mask is None and its.q.shape != call.q.shape:
            return call._replace(attn_mask=tensor)
        names = ("attn_mask", "is_causal", "find_mask", "scale", "dropout")
        return call._replace(bias=None, **{name: getattr(its, name) for name in names})
    causal = more.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    if via.startswith("transformers flash"):
        return call._replace(find_mask=_flash_mask(causal, more.get("sliding_window"), mask))
    if mask is None:
        causal = causal and not via.endswith(" eager") and call.q.shape[2] > 1
        return call._replace(is_causal=causal)
    if tensor is not None:
        return call._replace(attn_mask=tensor)
    return call._replace(note="; ".join([*notes, NO_TENSOR]), faithful=False)


def _flash_mask(causal: bool, window: int | None, mask: Any) -> Callable[[Masks, Shape], FoundMask]:
    """What finds a flash kernel's mask: words, and a padding mask if any."""

    def find(masks: Masks, shape: Shape) -> FoundMask:
        seen = _band(shape.q_len, shape.kv_len, causal, window)
        if isinstance(mask, Tensor) and mask.dim() == 2:
            seen = seen & mask.bool().cpu()[:, None, None, -shape.kv_len :]
        return masks.of(seen, False, shape)

    return find


@lru_cache(maxsize=16)
def _band(n: int, m: int, causal: bool, window: int | None) -> Tensor:
    """Who may see whom, the last query at the last key."""
    away = torch.arange(m) - (torch.arange(n)[:, None] + m - n)
    seen = away <= 0 if causal else torch.ones(n, m, dtype=torch.bool)
    return seen if window is None else seen & (away > -window)
