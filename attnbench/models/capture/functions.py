"""Stand-ins for the functions of torch, FlexAttention and transformers that compute attention.

A stand-in calls the function that it stands for, and takes notes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.core.call import Api
from attnbench.models import wants_weights
from attnbench.models.capture import products
from attnbench.models.capture.captured_call import CapturedCall
from attnbench.models.capture.compiled import meet, put_compilers
from attnbench.models.capture.kernels import QKV
from attnbench.models.capture.libraries import asks_log_sums, caps_of, inexpressible
from attnbench.models.capture.masks import FoundMask, Masks
from attnbench.models.capture.operators import put_operators
from attnbench.models.capture.places import locate, place_text
from attnbench.models.capture.readers import second_unread
from attnbench.models.capture.recorder import NOW, call_recorded
from attnbench.models.capture.stands import Function, Stands, as_itself
from impls.masks import Shape


def put_torch(stands: Stands) -> None:
    """Stand for torch's functions, and for its products and softmax."""
    stands.put(F, "scaled_dot_product_attention", as_itself(sdpa))
    same = F.scaled_dot_product_attention  # which is one function under two names
    stands.put(torch._C._nn, "scaled_dot_product_attention", lambda _: same)
    stands.put(F, "multi_head_attention_forward", _mha)
    native, layer = "_native_multi_head_attention", "_transformer_encoder_layer_fwd"
    stands.put(torch, native, partial(_fast_path, "mha fast path", 3, (9, 12)))
    stands.put(torch, layer, partial(_fast_path, "encoder layer fast path", 1, (18, 19)))
    put_compilers(stands)
    put_operators(stands)
    recent = products.Recent()
    for name in ("matmul", "einsum", "bmm", "baddbmm"):
        stands.put(torch, name, as_itself(partial(products.note_product, recent, name)))
    for name in ("matmul", "bmm", "baddbmm", "__matmul__"):
        stands.put(Tensor, name, partial(products.note_product, recent, name.strip("_")))
    softmax = partial(products.note_softmax, recent)
    stands.put(torch, "softmax", as_itself(softmax))
    stands.put(Tensor, "softmax", softmax)
    tanh = partial(products.note_tanh, recent)
    stands.put(torch, "tanh", as_itself(tanh))
    for name in ("tanh", "tanh_"):
        stands.put(Tensor, name, tanh)


WORDS = (*QKV, "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def sdpa(original: Function) -> Function:
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

            comptime(meet)
        values = query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        arguments: dict[str, Any] = dict(zip(WORDS, values, strict=True))
        recorder, state = NOW.recorder, NOW.state()
        inside = state.outer is not None  # of a call that can be recorded
        if not inside:
            compiling = torch.compiler.is_compiling()
            recorder = None if compiling else NOW.recorder_for(query)
        if recorder is None:
            return original(**arguments)
        since = perf_counter()
        via: Api = "mha" if state.heads > 0 else "sdpa"
        if recorder.advice is None:
            call = original
        else:
            call, arguments = recorder.advised(original, arguments)
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa = (
                arguments.values()
            )
        words = query, key, value, attn_mask, is_causal, scale, dropout_p, enable_gqa
        captured = CapturedCall(via, *words, via, mask_type=state.bias)
        captured = captured._replace(form=(form := captured.full_form()))
        state.looked += perf_counter() - since
        run = partial(recorder.run, form, call, arguments)
        if inside:
            state.inner.append(lambda: captured)
            return run()
        out: Tensor = call_recorded(run, query, lambda: captured)
        return out

    return scaled_dot_product_attention


def _mha(original: Function) -> Function:

    def multi_head_attention_forward(*args: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling() or NOW.recorder is None:
            return original(*args, **more)
        state = NOW.state()
        before = state.heads
        state.heads = args[4] if len(args) > 4 else more["num_heads"]
        state.unread = more.get("need_weights", True) and second_unread(sys._getframe(1))
        advice = NOW.recorder.advice
        if advice is not None and advice.needs_no_weights(place_text(locate())):
            more["need_weights"] = False
        try:
            return original(*args, **more)
        finally:
            state.heads, state.scores, state.unread = before, None, False

    return multi_head_attention_forward


def _fast_path(via: str, tensors: int, places: tuple[int, int], original: Function) -> Function:
    """An operator that computes more than attention.

    ``tensors``: how many it takes before the width, the heads and the weight; ``places`` of its
    mask and of what kind that is among its arguments: 1 is a padding mask, 2 both.
    """

    def read(args: tuple[Any, ...], more: dict[str, Any]) -> CapturedCall:
        qkv: Any = args[:3] if tensors == 3 else args[:1] * 3
        mask, kind = (
            args[place] if len(args) > place else more.get(name)
            for place, name in zip(places, ("mask", "mask_type"), strict=True)
        )
        width, heads = args[tensors : tensors + 2]
        if qkv[0].is_nested:
            lengths = torch.tensor([len(x) for x in qkv[0].unbind()])
            x = qkv[0].to_padded_tensor(0.0)
            mask, kind = torch.arange(x.shape[1])[None] >= lengths[:, None], 1
            qkv = x, x, x
        q, k, v = (x.detach().unflatten(-1, (heads, width // heads)).transpose(1, 2) for x in qkv)
        if mask is not None:
            mask = ~mask if mask.dtype == torch.bool else mask
            mask = mask[:, None, None] if kind == 1 else mask
        return CapturedCall(via, q, k, v, mask, api="fast path")

    def fast_path(*args: Any, **more: Any) -> Any:
        weight = args[tensors + 2]  # which is on the same device, and never nested
        return call_recorded(partial(original, *args, **more), weight, partial(read, args, more))

    return fast_path


# ---- other libraries ---------------------------------------------------------------------------

MODULE = "transformers.modeling_utils"


def put_flex(stands: Stands) -> None:
    """Stand for ``flex_attention``."""
    from torch.nn.attention import flex_attention as module

    stands.put(module, "flex_attention", _flex)


def _flex(original: Function) -> Function:
    compiled = hasattr(original, "_torchdynamo_orig_callable")
    api: Api = "flex compiled" if compiled else "flex"

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
        def find(masks: Masks, shape: Shape) -> FoundMask:
            return masks.of_flex(block_mask, score_mod, shape, query.device)

        if torch.compiler.is_dynamo_compiling():
            from torch._dynamo.comptime import comptime

            comptime(meet)
        words = query, key, value, score_mod, block_mask, scale, enable_gqa
        asks = {"return_lse": any(args[:1]), **more}
        lse = asks_log_sums(asks)
        unread = lse and second_unread(sys._getframe(1))

        def call() -> CapturedCall:
            functions = ("block_mask", block_mask), ("score_mod", score_mod)
            kinds = " and ".join(word for word, x in functions if x is not None)
            words = "flex", query, key, value, None, False, scale, 0.0, enable_gqa, api
            facts: Any = {"returns": "lse" if lse else "", "unread": unread, "mask_type": kinds}
            return CapturedCall(
                *words, find_mask=find, note="; ".join(inexpressible(asks)), **facts
            )

        # its own products are no other attention
        run = partial(original, *words, *args, **more)
        return call_recorded(run, query, call, outer="flex", inner=[])

    return flex_attention


def put_transformers(stands: Stands) -> None:
    """Stand for what gives models their function."""
    interface = getattr(sys.modules.get(MODULE), "AttentionInterface", None)
    if hasattr(interface, "get_interface"):
        stands.put(interface, "get_interface", _get_interface)


def _get_interface(original: Function) -> Function:
    stand_ins: dict[Any, Function] = {}

    def get_interface(self: Any, attn_implementation: Any, default: Any) -> Any:
        function = original(self, attn_implementation, default)
        if torch.compiler.is_compiling() or NOW.recorder is None:
            return function
        key = function, str(attn_implementation)
        if key not in stand_ins:
            stand_ins[key] = _stand_in(*key)
        return stand_ins[key]

    return get_interface


def _stand_in(original: Function, name: str) -> Function:
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
        run = partial(original, module, query, key, value, attention_mask, *args, **more)
        inner: list[Function] = []
        words = via, module, (query, key, value), attention_mask, inner, more
        return call_recorded(run, query, partial(layer_call, *words), outer=via, inner=inner)

    return attention


NO_TENSOR = "its mask is no tensor, and what it hides is not known"


def layer_call(
    via: str,
    module: Any,
    qkv: tuple[Tensor, Tensor, Tensor],
    mask: Any,
    inner: list[Callable[[], CapturedCall]],
    more: dict[str, Any],
) -> CapturedCall:
    """A layer's call, by what it called of torch's or else by its arguments."""
    notes, caps = inexpressible(more), caps_of(more)
    if caps["sinks"] is not None and via == "transformers sdpa":
        notes.append("it has attention sinks, which transformers' sdpa leaves out")
    tensor = mask if isinstance(mask, Tensor) else None
    its = inner[0]()._replace(returns="") if len(inner) == 1 else None
    if its is not None and its.ends and its.q.shape != qkv[0].shape:
        its = None  # it packed its sequences into one
    if its is not None and its.find_mask is None and caps["sinks"] is not None:
        its = None  # of torch's function, whose keys the sinks may be among
    (q, k, v), note = qkv, "; ".join(notes)
    if its is not None:  # heads may have been packed for torch's function
        k, v = (x.detach()[:, :, : its.k.shape[2]] for x in (k, v))
        if its.find_mask is not None or its.q.shape == q.shape:
            form = its.full_form() if its.api != "other" else None
            caps = {name: getattr(its, name) if x is None else x for name, x in caps.items()}
            return its._replace(via=via, q=q, k=k, v=v, note=note, form=form, **caps)
    scale, dropout, bias = (more.get(word) for word in ("scaling", "dropout", "position_bias"))
    api: Api = "eager" if via.endswith(" eager") else "other"
    facts: Any = {"scale": scale, "dropout": dropout or 0.0, "bias": bias, **caps}
    if api == "eager" and wants_weights(module, more.get("output_attentions")):
        facts["returns"] = "weights"
    call = CapturedCall(via, q, k, v, tensor, **facts, api=api, note=note)
    if its is not None:
        return call._replace(form=its.form)
    return _with_mask(call, module, mask, more, notes)


def _with_mask(
    call: CapturedCall, module: Any, mask: Any, more: dict[str, Any], notes: list[str]
) -> CapturedCall:
    """A layer's call with the mask that its words say."""
    tensor, keys = mask if isinstance(mask, Tensor) else None, call.k.shape[2]
    if mask is not None and tensor is None:
        return call._replace(note="; ".join([*notes, NO_TENSOR]))
    causal = more.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    if call.via.startswith("transformers flash"):
        window = more.get("sliding_window")
        if window is not None and window < keys:
            notes.append(f"it has a window of {window}")
        if tensor is not None and tensor.dim() == 2:  # a padding
            tensor = tensor.bool()[:, None, None, -keys:]
        call = call._replace(attn_mask=tensor, note="; ".join(notes))
    elif mask is not None or call.api == "eager":
        return call
    return call._replace(is_causal=causal and call.q.shape[2] > 1)
