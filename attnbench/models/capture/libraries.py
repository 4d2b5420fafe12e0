"""Calls that are seen: torch's, FlexAttention's, transformers', and attention written out."""

from __future__ import annotations

import operator
import sys
import threading
import types
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._guards import TracingContext

from attnbench.models.capture import recorder
from attnbench.models.capture.masks import FlexMasks, FoundMask, Masks
from attnbench.models.capture.originals import Function, Original, Stands, told, where
from attnbench.models.capture.recorder import CapturedCall, Now
from impls.masks import Shape

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

    from attnbench.models.capture.recorder import Now


FUSED = "scaled_dot_product_attention"


def put_torch(stands: Stands, now: Now) -> None:
    """Stand for all of torch's functions."""
    inner = stands.put(F, FUSED, lambda o: sdpa(o, now, "sdpa"))
    fused = F.scaled_dot_product_attention
    stands.put(F, "multi_head_attention_forward", lambda o: mha(o, inner, fused, now))
    stands.put(torch, "_native_multi_head_attention", lambda o: native(o, now))
    stands.put(torch, "_transformer_encoder_layer_fwd", lambda o: encoder_layer(o, now))


def sdpa(original: Original, now: Now, via: str) -> Function:
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
        if torch.compiler.is_compiling():
            if torch.compiler.is_dynamo_compiling():
                from torch._dynamo.comptime import comptime

                comptime(sdpa_met)
            return original.call(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
        begun = now.begin(query)
        out = original.call(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        if begun is not None:

            def call() -> CapturedCall:
                return CapturedCall(via, query, key, value, attn_mask, is_causal, scale, dropout_p)

            now.made(call, out, begun)
        return out

    def sdpa_met(context: Any) -> None:
        now.met(context, recorder.sdpa_call)

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

    def _made(
        self,
        heads: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        out: Tensor,
        begun: Any,
    ) -> None:
        def call() -> CapturedCall:
            return CapturedCall("mha", q, k.mT, v, mask, heads=heads, scale=q.shape[-1] ** -0.5)

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

        def call() -> CapturedCall:
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

        def call() -> CapturedCall:
            src, width, heads = args[:3]
            mask, kind = _given(args, more, 18, "mask"), _given(args, more, 19, "mask_type")
            return fast_call("encoder layer fast path", (src, src, src), width, heads, mask, kind)

        now.made(call, out, begun)
        return out

    return _transformer_encoder_layer_fwd


def _given(args: tuple[Any, ...], more: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else more.get(name)


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


WHOLE_NOTE = "torch computes it in one operator with more than attention: its seconds are not known"


def put_flex(stands: Stands, now: Now) -> None:
    """Stand for ``flex_attention``."""
    from torch.nn.attention import flex_attention as module

    known = FlexMasks()
    stands.put(module, "flex_attention", lambda o: flex(o, now, known))


def flex(original: Original, now: Now, known: FlexMasks) -> Function:
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

            def found(masks: Masks, shape: Shape) -> FoundMask:
                return known.of(block_mask, score_mod, masks, shape, query.device)

            def call() -> CapturedCall:
                return CapturedCall("flex", query, key, value, scale=scale, found=found)

            now.made(call, out, begun)
        return out

    def flex_met(context: Any) -> None:
        now.met(context, recorder.nameless)

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


MODULE = "transformers.modeling_utils"
MEANT = {
    "softcap": "its scores are capped",
    "s_aux": "it has attention sinks",
    "sinks": "it has attention sinks",
}
"""What a problem can't say, by the name under which models pass it."""


def put_transformers(stands: Stands, now: Now) -> None:
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
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        *args: Any,
        **more: Any,
    ) -> Any:
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

        def call() -> CapturedCall:
            return _call(via, module, (query, key, value), attention_mask, inner, more)

        now.made(call, out, begun)
        return out

    return attention


def _call(
    via: str,
    module: Any,
    qkv: tuple[Tensor, Tensor, Tensor],
    mask: Any,
    inner: list[Callable[[], CapturedCall]],
    more: dict[str, Any],
) -> CapturedCall:
    """The call that it was, by what it called of torch's or by what it was given."""
    q, k, v = qkv
    notes = [said for word, said in MEANT.items() if more.get(word) is not None]
    call = CapturedCall(
        via,
        q,
        k,
        v,
        scale=more.get("scaling"),
        dropout=more.get("dropout") or 0.0,
        note="; ".join(notes),
        faithful=not notes,
        bias=more.get("position_bias"),
    )
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


def _as_inner(call: CapturedCall, inner: CapturedCall, mask: Any) -> CapturedCall:
    """With the mask that torch's function was given; heads may have been packed for that."""
    k, v = call.k, call.v
    if k.shape[2] != inner.k.shape[2]:
        k, v = (x.detach()[:, :, : inner.k.shape[2]] for x in (k, v))
    if inner.found is not None or inner.q.shape == call.q.shape:
        return call._replace(
            k=k,
            v=v,
            attn_mask=inner.attn_mask,
            is_causal=inner.is_causal,
            found=inner.found,
            bias=None,
            scale=inner.scale,
            dropout=inner.dropout,
        )
    return call._replace(k=k, v=v, attn_mask=mask if isinstance(mask, Tensor) else None)


def _as_flash(call: CapturedCall, module: Any, mask: Any, more: dict[str, Any]) -> CapturedCall:
    """A flash kernel: a padding mask, if any, and words for the rest; the last query at the end."""
    causal = more.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal

    def found(masks: Masks, shape: Shape) -> FoundMask:
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


ACTIVATION = 3
"""Dimensions of one, at the least."""
BACK, ON = 4, 2
"""How many products before a softmax may have made its scores, and how many after it may use it."""
PRODUCTS = ("matmul", "bmm", "baddbmm", "__matmul__")
SOFTMAX = "softmax"
PROXY = torch._C._TorchDispatchModeKey.PROXY
WHOLE = (
    "multi_head_attention_forward",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
)
"""Functions of torch's that a graph may have in one piece."""
COMPILED = (
    "torch.compile compiled nn.MultiheadAttention or its encoder layer in one piece, or attention "
    "that is written out; the former is recorded in a run without compiling"
)
"""Why attention in a compiled graph has no site."""


class _Seen(threading.local):
    """What a thread has just computed, by the number of numbers."""

    def __init__(self) -> None:
        self.products: deque[int] = deque(maxlen=BACK)
        self.weights, self.left = 0, 0


def put_written_out(stands: Stands, now: Now) -> None:
    """Stand for products and softmax."""
    seen = _Seen()
    for name in ("matmul", "bmm", "baddbmm", "einsum"):
        stands.put(torch, name, lambda o: product(o, now, seen))
    stands.put(torch, SOFTMAX, lambda o: softmax(o, now, seen))
    for name in PRODUCTS:
        stands.put(Tensor, name, lambda o: product(o, now, seen))
    stands.put(Tensor, SOFTMAX, lambda o: softmax(o, now, seen))


def product(original: Original, now: Now, seen: _Seen) -> Function:
    """A product: of queries and keys, of weights and values, or of anything else."""

    def note(given: tuple[Any, ...], out: Tensor) -> None:
        operands = [x for x in given if isinstance(x, Tensor)]
        operands += [x for some in given if isinstance(some, list | tuple) for x in some]
        if all(map(_activation, operands)):
            if seen.left and seen.weights in [x.numel() for x in operands]:
                seen.weights = seen.left = 0
                now.written_out(told(where()))
            seen.left = max(0, seen.left - 1)
            seen.products.append(out.numel())

    def product(*given: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling():
            return original.call(*given, **more)
        out = original.call(*given, **more)
        if now.on and isinstance(out, Tensor) and out.dim() >= ACTIVATION:
            begun, state = perf_counter(), now.state()
            if state.outer is None and not state.heads and not _traced():  # else it is a part
                note(given, out)
            state.looked += perf_counter() - begun
        return out

    return product


def softmax(original: Original, now: Now, seen: _Seen) -> Function:
    """A softmax: of scores, or of anything else."""

    def softmax(*given: Any, **more: Any) -> Any:
        if torch.compiler.is_compiling():
            return original.call(*given, **more)
        out = original.call(*given, **more)
        if now.on and isinstance(out, Tensor) and not _traced():
            scores = out.numel() in seen.products and _activation(out)
            seen.weights, seen.left = (out.numel(), ON) if scores else (0, 0)
            seen.products.clear()
        return out

    return softmax


def _traced() -> bool:
    """Whether a compiler calls functions to learn what they return; nothing is computed then."""
    return TracingContext.try_get() is not None or torch._C._get_dispatch_mode(PROXY) is not None


def _activation(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() >= ACTIVATION and not x.is_nested


# ---- in what torch.compile compiles ------------------------------------------------------------


def put_graphs(stands: Stands, now: Now) -> None:
    """Stand for what hands a graph that was traced to its compiler."""
    from torch._dynamo.output_graph import OutputGraph

    def make(original: Original) -> Function:
        def call_user_compiler(self: Any, gm: GraphModule, *args: Any, **more: Any) -> Any:
            if (recorder := now.recorder) is not None:
                try:
                    recorder.not_put(COMPILED, sum(map(_is_attention, gm.graph.nodes)))
                except Exception as error:  # how graphs are kept may change with the version
                    recorder.failed(error)
            return original.call(self, gm, *args, **more)

        return call_user_compiler

    stands.put(OutputGraph, "call_user_compiler", make)


def _is_attention(node: Node) -> bool:
    """Whether it is attention without a site: torch's in one piece, or the softmax of another."""
    if _named(node) in WHOLE:
        return True
    if node.op == "placeholder" or _named(node) != SOFTMAX:
        return False
    before = _reaches(node, lambda n: n.all_input_nodes)
    return before and _reaches(node, lambda n: list(n.users))


def _named(node: Node) -> str:
    if node.target is operator.matmul:
        return "matmul"
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _reaches(start: Node, step: Any) -> bool:
    """Whether a product of activations is met along these steps, before a layer is."""
    todo, met = list(step(start)), set[Any]()
    while todo:
        node = todo.pop()
        if node in met or node.op in ("placeholder", "output"):
            continue
        met.add(node)
        if _named(node) in (*PRODUCTS, "einsum"):
            made = [n.meta.get("example_value") for n in node.all_input_nodes]
            if all(_activation(x) for x in made):
                return True
        elif node.target is not F.linear and _named(node) not in ("linear", "layer_norm", SOFTMAX):
            todo += step(node)
    return False
