"""The kernel that ran in a call of torch's attention, and the reasons why no faster one did.

The first call of each form is made under a dispatch mode that sees torch's operators, so the kernel
is read from what ran; the results are the same to the last bit. Which one torch chooses follows
from the form, so later calls of it need no mode.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.backends import cuda
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _pop_mode,
    _push_mode,
)

from attnbench.core.call import BACKENDS

WHICH = {"flash": "flash", "efficient": "efficient", "cudnn": "cudnn", "overrideable": "device"}
"""Kernels, by a word of their operators' names."""
CHOICES = {getattr(SDPBackend, name).value: kernel for kernel, name in BACKENDS.items()}
FLAGS: dict[str, Callable[[], bool]] = {
    "flash": torch._C._get_flash_sdp_enabled,
    "math": torch._C._get_math_sdp_enabled,
    "efficient": torch._C._get_mem_efficient_sdp_enabled,
    "cudnn": torch._C._get_cudnn_sdp_enabled,
}
ON_CPU = {name: FLAGS[name] for name in ("flash", "math")}


def disabled_kernels(device: str) -> tuple[str, ...]:
    """The kernels that are switched off, by sdpa_kernel or torch.backends.cuda."""
    flags = ON_CPU if device == "cpu" else FLAGS
    return tuple(name for name, enabled in flags.items() if not enabled())


class _Operators(TorchDispatchMode):
    """Notes the names of torch's operators; it is pushed and popped for this thread alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to skip it, torch would import its compiler, which takes two seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def observe(run: Callable[[], Any], q: Tensor) -> tuple[Any, str]:
    """Call ``run``: its result, and the kernel that ran; empty where that can't be seen."""
    if type(q) not in (Tensor, torch.nn.Parameter) or _get_current_dispatch_mode() is not None:
        return run(), ""
    _push_mode(operators := _Operators())
    try:
        out = run()
    finally:
        _pop_mode()
    fused = next(filter(None, map(kernel_of, operators.names)), "")
    if not fused and any("softmax" in name for name in operators.names):
        fused = "math"
    return out, fused


def kernel_of(operator: str) -> str:
    """The kernel that an operator of torch's attention is; empty for any other."""
    if "attention" not in operator:
        return ""
    words = (kernel for word, kernel in WHICH.items() if word in operator)
    return next(words, "math" if operator.endswith("_math") else "")


Arguments = dict[str, Any]


def torch_choice(arguments: Arguments) -> str:
    """The kernel that torch would choose for a call; empty where it won't say."""
    try:
        return CHOICES.get(torch._fused_sdp_choice(**arguments), "")
    except (RuntimeError, NotImplementedError):
        return ""


def why_math(arguments: Arguments) -> tuple[str, ...]:
    """The reasons why torch chose its plain mathematics for a call, and no fused kernel."""
    if arguments["query"].is_cuda:
        return tuple(_reasons_of_torch(arguments))
    if not FLAGS["flash"]():
        return ("FLASH_ATTENTION is switched off, by sdpa_kernel or torch.backends.cuda",)
    changes = dict(_changes(arguments))
    alone = [x for x, change in changes.items() if torch_choice({**arguments, **change}) != "math"]
    return tuple(alone or changes)


def _changes(a: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Things that a fused kernel may not take, each with what it takes in their place."""
    q, k, v, mask = (a[name] for name in ("query", "key", "value", "attn_mask"))
    if a["dropout_p"]:
        yield f"dropout_p={a['dropout_p']:g}", {"dropout_p": 0.0}
    if mask is not None and mask.requires_grad:
        yield "attn_mask asks for a gradient", {"attn_mask": mask.detach()}
    if mask is not None and mask.dim() not in (2, 4):
        yield (
            f"attn_mask has {mask.dim()} axes, and the kernel takes 2 or 4",
            {"attn_mask": mask.detach().reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))},
        )
    if q.dim() != 4:
        four = {n: _four(x) for n, x in (("query", q), ("key", k), ("value", v))}
        yield f"q has {q.dim()} axes, and the kernel takes 4", four
    for name, x in (("query", q), ("key", k), ("value", v)):
        if x.stride(-1) != 1 and x.shape[-1] != 1:
            why = f"the last axis of {name} has a stride of {x.stride(-1)}"
            yield why, {name: torch.empty(x.shape, dtype=x.dtype, device=x.device)}
    if v.shape[-1] != q.shape[-1]:
        why = f"the heads of value are {v.shape[-1]} wide, and those of query {q.shape[-1]}"
        yield why, {"value": k}
    if k.shape[:-2] != q.shape[:-2]:
        wide = {n: _empty(x, (*q.shape[:-2], *x.shape[-2:])) for n, x in (("key", k), ("value", v))}
        why = "enable_gqa=True" if a["enable_gqa"] else "key and value are broadcast to the query"
        yield why, {**wide, "enable_gqa": False}


QKV = ("query", "key", "value")


def _four(x: Tensor) -> Tensor:
    return x.reshape((1,) * (4 - x.dim()) + tuple(x.shape)) if x.dim() < 4 else x.flatten(0, -4)


def _empty(x: Tensor, shape: Any) -> Tensor:
    return torch.empty(tuple(shape), dtype=x.dtype, device=x.device)


def _reasons_of_torch(a: Arguments) -> Iterator[str]:
    """Torch's own reasons why the kernels of a GPU don't take a call."""
    params = cuda.SDPAParams(
        *(a[name] for name in (*QKV, "attn_mask", "dropout_p", "is_causal", "enable_gqa"))
    )
    asks = {
        "flash": cuda.can_use_flash_attention,
        "efficient": cuda.can_use_efficient_attention,
        "cudnn": cuda.can_use_cudnn_attention,
    }
    for name, ask in asks.items():
        if not FLAGS[name]():
            yield f"{name}: switched off, by sdpa_kernel or torch.backends.cuda"
            continue
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            ask(params, debug=True)
        texts = [str(w.message).split(" (Triggered internally")[0] for w in messages]
        yield from (f"{name}: {text}" for text in texts if "not used because" not in text)


def repeated_heads(k: Tensor, v: Tensor) -> int:
    """The number of copies of each head of k and v, one beside the other."""
    if k.dim() != 4 or k.shape[1] < 2 or k.shape[:3] != v.shape[:3] or k.numel() == 0:
        return 1
    heads = k.shape[1]
    if not torch.equal(k[0, 0], k[0, 1]) or not bool(k[0, 0].any()):
        return 1
    for group in (n for n in range(heads, 1, -1) if heads % n == 0):
        some = (x.detach().unflatten(1, (-1, group)) for x in (k, v))
        if all(bool((x == x[:, :, :1]).all()) for x in some):
            return group
    return 1
