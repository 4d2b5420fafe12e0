"""Stand-ins for the attention functions of other libraries, wherever the program imports them.

A function is replaced in the module that defines it, as soon as that has been imported, so that
whoever imports it from there or through another name has the stand-in. Its call is read by the
names of its arguments: libraries lay tensors out as [batch, length, heads, width], pack sequences
into one, and put the last query at the last key where they are causal.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from attnbench.models.capture.captured_call import CapturedCall
from attnbench.models.capture.masks import FoundMask, Masks
from attnbench.models.capture.readers import second_unread
from attnbench.models.capture.recorder import call_recorded
from attnbench.models.capture.stands import Function, Stands
from attnbench.models.mask_of import CAUSAL, FULL, WhileAlive
from impls.masks import Mask, Part, Shape

Values = Mapping[str, Any]
Read = Callable[[str, Values], CapturedCall]
Find = Callable[[Masks, Shape], FoundMask]
TENSORS = ("qkv", "kv", "q", "k", "v", "query", "key", "value", "k_cache", "v_cache")
UNKNOWN_LENGTHS = "its lengths are on the GPU, and were not read"
INEXPRESSIBLE = {
    "alibi_slopes": "it has ALiBi slopes",
    "qv": "it adds a second product to its scores",
    "attention_chunk": "it attends in chunks",
    "gather_kv_indices": "it picks its keys",
    "score_mod": "it changes its scores by a function",
    "mask_mod": "it masks by a function",
    "block_sparse_tensors": "it masks by blocks",
    "cache_seqlens": "its keys fill a part of what they are given",
    "seqused_k": "its keys fill a part of what they are given",
    "block_table": "its keys are in pages",
}
"""Arguments that ask, where they are not false, for what a problem can't describe."""
LOG_SUMS = ("return_attn_probs", "return_softmax_lse", "return_lse")
"""What an argument is called that asks for the log-sum-exp as a second result."""
SINKS = ("s_aux", "learnable_sink", "sinks")
"""What an argument with a logit for each head is called."""
_lengths = WhileAlive()


def call_of(via: str, values: Values, *, heads_first: bool = False) -> CapturedCall:
    """The call that these arguments make; ``heads_first``: its layout is a problem's."""
    ends = tuple(x for name in TENSORS if isinstance(x := values.get(name), Tensor))
    q, k, v = (x.detach() for x in _unpacked(values))
    if not heads_first:
        q, k, v = (x.transpose(-3, -2) for x in (q, k, v))  # a packed one has no batch
    if q.dim() == 3:
        q, k, v = (x[None] for x in (q, k, v))
    window = _window(values)
    starts = _first(values, "cu_seqlens_q", "cu_seqlens", "cu_seq_q", "cum_seq_q")
    starts_k = _first(values, "cu_seqlens_k", "cu_seq_k", "cum_seq_k")
    find: Find = partial(_whole, window)
    if starts is not None:
        find = partial(_packed, starts, starts if starts_k is None else starts_k, window)
    return CapturedCall(
        via,
        q,
        k,
        v,
        scale=_first(values, "softmax_scale", "sm_scale", "scale"),
        dropout=float(values.get("dropout_p") or 0.0),
        find_mask=find,
        returns="lse" if asks_log_sums(values) else "",
        note="; ".join(inexpressible(values)),
        ends=ends,
        **caps_of(values),
    )


def _first(values: Values, *names: str) -> Any:
    return next((values[x] for x in names if values.get(x) is not None), None)


def caps_of(values: Values) -> dict[str, Any]:
    """The soft cap and the sinks that these arguments ask for; a cap of 0 is none."""
    return {"softcap": values.get("softcap") or None, "sinks": _first(values, *SINKS)}


def asks_log_sums(values: Values) -> bool:
    """True where these arguments ask for the log-sum-exp besides; ``return_aux`` is torch's."""
    aux = values.get("return_aux")
    return any(values.get(name) for name in LOG_SUMS) or bool(getattr(aux, "lse", False))


def inexpressible(values: Values) -> list[str]:
    """The things that these arguments ask for and a problem can't describe."""
    asks = {name for name, x in values.items() if isinstance(x, Tensor) or bool(x)}
    notes = [note for name, note in INEXPRESSIBLE.items() if name in asks]
    if getattr(values.get("return_aux"), "max_scores", False):
        notes.append("it returns each row's largest score too")
    return list(dict.fromkeys(notes))


def _unpacked(values: Values) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, which may be packed in one tensor, or two."""
    if (qkv := values.get("qkv")) is not None:
        if (heads := values.get("num_heads_q")) is None:
            return tuple(qkv.unbind(-3))
        few = (qkv.shape[-2] - heads) // 2  # flash-attn 3 packs grouped heads along their axis
        return tuple(qkv.split([heads, few, few], -2))
    if "query" in values:
        return values["query"], values["key"], values["value"]
    if (kv := values.get("kv")) is not None:
        return (values["q"], *kv.unbind(-3))
    names = ("k_cache", "v_cache") if "k_cache" in values else ("k", "v")
    return values["q"], values[names[0]], values[names[1]]


Window = tuple[int | None, int | None]


def _window(values: Values) -> Window:
    """The distances to either side that a query may see; None: as far as there are keys."""
    window = values.get("window_size")
    sides = (None, None) if window is None else window
    left, right = (None if x is None or x < 0 else int(x) for x in sides)
    return left, 0 if _first(values, "causal", "is_causal") else right


def _mask(window: Window, shape: Shape, parts: tuple[Part, ...] = ()) -> Mask:
    """A window, the last query at the last key, and what else must allow a pair."""
    left, right = (None if x is not None and x >= shape.kv_len - 1 else x for x in window)
    if (left, right) == (None, None):
        return Mask(parts) if parts else FULL
    if (left, right) == (None, 0):
        return Mask((*CAUSAL.parts, *parts))
    far = shape.kv_len
    sides = far if left is None else left, far if right is None else right
    return Mask((Part("window", sides), *parts))


def _whole(window: Window, masks: Masks, shape: Shape) -> FoundMask:
    return FoundMask(_mask(window, shape))


def _differences(starts: Tensor) -> tuple[int, ...]:
    return tuple(b - a for a, b in pairwise(starts.tolist()))


def _packed(
    starts: Tensor, starts_k: Tensor, window: Window, masks: Masks, shape: Shape
) -> FoundMask:
    """Sequences one after the other, each of which sees its own keys alone."""
    if starts.is_cuda and torch.cuda.is_current_stream_capturing():
        return FoundMask(FULL, UNKNOWN_LENGTHS)
    q, k = (_lengths.get(x, None, partial(_differences, x)) for x in (starts, starts_k))
    if q != k or not sum(q) == shape.q_len == shape.kv_len:
        return FoundMask(FULL, "it packs queries and keys of unlike lengths")
    some = tuple(n for n in q if n)
    documents = (Part("document", some),) if len(some) > 1 else ()
    return FoundMask(_mask(window, shape, documents))


def put_library(stands: Stands, module: str) -> None:
    """Stand for the functions of a module that has been imported."""
    read, names = LIBRARIES[module]
    library = sys.modules[module]
    for name in names:
        original = getattr(library, name, None)
        if callable(original) and not hasattr(original, "__attnbench__"):
            via = f"{module.partition('.')[0]} {name}"
            stands.put(library, name, partial(_stand_in, partial(read, via)))


def _stand_in(read: Callable[[Values], CapturedCall], original: Function) -> Function:
    """A function that is recorded as ``read`` reads its arguments; what it calls is part of it."""
    signature = inspect.signature(original)
    name = getattr(original, "__name__", type(original).__name__)

    def function(*args: Any, **more: Any) -> Any:
        query = next((x for x in (*args, *more.values()) if isinstance(x, Tensor)), None)

        def call() -> CapturedCall:
            bound = signature.bind(*args, **more)
            bound.apply_defaults()
            call = read({**bound.arguments, **bound.arguments.get("kwargs", {})})
            return call._replace(unread=bool(call.returns) and second_unread(sys._getframe()))

        run = partial(original, *args, **more)
        return call_recorded(run, query, call, outer=name, inner=[])

    return function


def _sage(via: str, values: Values) -> CapturedCall:
    heads_first = values.get("tensor_layout", "HND") == "HND" and "cu_seqlens_q" not in values
    call = call_of(via, values, heads_first=heads_first)
    mask = values.get("attn_mask")
    return call if mask is None else call._replace(attn_mask=mask, find_mask=None)


def _diffusers(via: str, values: Values) -> CapturedCall:
    module: Any = sys.modules["diffusers.models.attention_dispatch"]
    backend = values.get("backend") or module._AttentionBackendRegistry.get_active_backend()[0]
    names = ("query", "key", "value", "dropout_p", "scale")
    call = call_of(f"diffusers {getattr(backend, 'value', backend)}", {x: values[x] for x in names})
    mask = values["attn_mask"]
    if mask is not None and mask.dim() == 2 and mask.shape == (call.q.shape[0], call.k.shape[2]):
        mask = mask[:, None, None]  # a padding
    if values.get("parallel_config") is not None:
        call = call._replace(note="its sequence lies on several devices")
    return call._replace(attn_mask=mask, is_causal=bool(values["is_causal"]), find_mask=None)


def _xformers(via: str, values: Values) -> CapturedCall:
    qkv = [values[x] for x in ("query", "key", "value")]
    ends = tuple(qkv)
    if qkv[0].dim() == 3:
        qkv = [x[:, :, None] for x in qkv]
    if qkv[0].dim() == 5:  # groups, and their heads
        qkv = [x.flatten(2, 3) for x in qkv]
    numbers = {"dropout_p": values["p"], "scale": values["scale"]}
    call = call_of(via, dict(zip("qkv", qkv, strict=True)) | numbers)
    call = call._replace(ends=ends, returns="lse" if via.endswith(WITH_LOG_SUMS) else "")
    bias = values["attn_bias"]
    if bias is None:
        return call
    if type(bias).__name__ == "LowerTriangularMask":
        return call._replace(is_causal=True, find_mask=None)
    if isinstance(bias, Tensor) and not hasattr(bias, "materialize"):
        bias = bias[:, None] if bias.dim() == 3 else bias
        return call._replace(attn_mask=bias, find_mask=None)
    note = f"its {type(bias).__name__} was not read"
    return call._replace(note=note)


VARIANTS = (
    "func kvpacked_func qkvpacked_func varlen_func varlen_kvpacked_func varlen_qkvpacked_func"
)
FLASH = tuple(f"flash_attn_{name}" for name in (*VARIANTS.split(), "with_kvcache"))
KERNELS = "fp16_triton fp16_cuda fp8_cuda fp8_cuda_sm90"
SAGE = ("sageattn", "sageattn_varlen", *(f"sageattn_qk_int8_pv_{x}" for x in KERNELS.split()))
WITH_LOG_SUMS = "memory_efficient_attention_forward_requires_grad"
EFFICIENT = (
    "memory_efficient_attention", "memory_efficient_attention_forward", WITH_LOG_SUMS,
)  # fmt: skip
LIBRARIES: dict[str, tuple[Read, tuple[str, ...]]] = {
    "flash_attn.flash_attn_interface": (call_of, FLASH),
    "flash_attn.cute.interface": (call_of, FLASH),
    "flash_attn_interface": (call_of, FLASH),
    "xformers.ops.fmha": (_xformers, EFFICIENT),
    "sageattention.core": (_sage, SAGE),
    "sageattn3.api": (_sage, ("sageattn3_blackwell",)),
    "torch.nn.attention.varlen": (call_of, ("varlen_attn",)),
    "diffusers.models.attention_dispatch": (_diffusers, ("dispatch_attention_fn",)),
}
