"""Stand-ins for the attention functions of other libraries, wherever the program imports them.

A function is replaced in the module that defines it, as soon as that has been imported, so that
whoever imports it from there or through another name has the stand-in.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnbench.models.capture.functions import Function, Stands
from attnbench.models.capture.layouts import LARGEST, Values, call_of
from attnbench.models.capture.masks import FoundMask, Masks
from attnbench.models.capture.operators import watched
from attnbench.models.capture.recorder import CapturedCall
from attnbench.models.mask_of import FULL, WhileAlive
from impls.masks import Shape

Read = Callable[[str, Values], CapturedCall]
_materialised = WhileAlive()


def put_library(stands: Stands, module: str) -> None:
    """Stand for the functions of a module that has been imported."""
    read, names = LIBRARIES[module]
    found = sys.modules[module]
    for name in names:
        original = getattr(found, name, None)
        if callable(original) and not hasattr(original, "__attnbench__"):
            via = f"{module.partition('.')[0]} {name}"
            stands.put(found, name, partial(stand_in, partial(read, via)))


def stand_in(read: Callable[[Values], CapturedCall], original: Function) -> Function:
    """A function that is recorded as ``read`` reads its arguments; what it calls is part of it."""
    signature = inspect.signature(getattr(original, "forward", original))
    name = getattr(original, "__name__", type(original).__name__)

    def function(*args: Any, **more: Any) -> Any:
        query = next((x for x in (*args, *more.values()) if isinstance(x, Tensor)), None)

        def call() -> CapturedCall:
            bound = signature.bind(*args, **more)
            bound.apply_defaults()
            return read({**bound.arguments, **bound.arguments.get("kwargs", {})})

        run = partial(original, *args, **more)
        return watched(run, query, call, outer=name, inner=[])

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
        call = call._replace(note="its sequence lies on several devices", faithful=False)
    return call._replace(attn_mask=mask, is_causal=bool(values["is_causal"]), find_mask=None)


def _xformers(via: str, values: Values) -> CapturedCall:
    qkv = [values[x] for x in ("query", "key", "value")]
    ends = tuple(qkv)
    if qkv[0].dim() == 3:
        qkv = [x[:, :, None] for x in qkv]
    if qkv[0].dim() == 5:  # groups, and heads that may be one that is repeated
        shared = [qkv[0], *(x[:, :, :, :1] if x.stride(3) == 0 else x for x in qkv[1:])]
        qkv = [x.flatten(2, 3) for x in shared]
    asked = {"dropout_p": values["p"], "scale": values["scale"]}
    call = call_of(via, dict(zip("qkv", qkv, strict=True)) | asked)._replace(ends=ends)
    bias = values["attn_bias"]
    if bias is None:
        return call
    if type(bias).__name__ == "LowerTriangularMask":
        return call._replace(is_causal=True, find_mask=None)
    if isinstance(bias, Tensor) and not hasattr(bias, "materialize"):
        bias = bias[:, None] if bias.dim() == 3 else bias
        return call._replace(attn_mask=bias, find_mask=None)
    return call._replace(find_mask=partial(_of_bias, bias))


def _of_bias(bias: Any, masks: Masks, shape: Shape) -> FoundMask:
    """The mask that one of xFormers' objects stands for."""
    if shape.q_len * shape.kv_len > LARGEST:
        return FoundMask(FULL, f"its {type(bias).__name__} is too large to be looked at")
    alike = "TensorBias" not in type(bias).__name__  # for all heads
    form = (1, 1, *shape[2:]) if alike else tuple(shape)
    mask: Tensor = _materialised.get(
        bias, form, lambda: bias.materialize(form, dtype=torch.float32, device="cpu")
    )
    return masks.of(mask, False, shape)


def _fading(via: str, values: Values) -> CapturedCall:
    return call_of(via, {**values, "causal": True})


FLASH = tuple(
    f"flash_attn_{name}"
    for name in (
        "func",
        "kvpacked_func",
        "qkvpacked_func",
        "varlen_func",
        "varlen_kvpacked_func",
        "varlen_qkvpacked_func",
        "with_kvcache",
    )
)
SAGE = tuple(
    f"sageattn{name}"
    for name in (
        "",
        "_varlen",
        "_qk_int8_pv_fp16_triton",
        "_qk_int8_pv_fp16_cuda",
        "_qk_int8_pv_fp8_cuda",
        "_qk_int8_pv_fp8_cuda_sm90",
    )
)
EFFICIENT = ("memory_efficient_attention", "memory_efficient_attention_forward")
LIBRARIES: dict[str, tuple[Read, tuple[str, ...]]] = {
    "flash_attn.flash_attn_interface": (call_of, FLASH),
    "flash_attn.cute.interface": (call_of, FLASH),
    "flash_attn_interface": (call_of, FLASH),
    "mslk.attention.fmha": (_xformers, EFFICIENT),
    "xformers.ops.fmha": (_xformers, EFFICIENT),
    "sageattention.core": (_sage, SAGE),
    "sageattn3.api": (_sage, ("sageattn3_blackwell",)),
    "fla.ops.attn": (_fading, ("parallel_attn",)),
    "torch.nn.attention.varlen": (call_of, ("varlen_attn",)),
    "diffusers.models.attention_dispatch": (_diffusers, ("dispatch_attention_fn",)),
}
