"""Stand-ins for torch's operators of attention, as Python code calls them.

``F.scaled_dot_product_attention`` reaches them below Python. Called there, they are the program's
own calls, or those of code that torch.compile or torch.export made, which are counted so.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor

from attnbench.models.capture.captured_call import CapturedCall
from attnbench.models.capture.kernels import kernel_of
from attnbench.models.capture.libraries import call_of
from attnbench.models.capture.places import in_generated
from attnbench.models.capture.readers import second_unread
from attnbench.models.capture.recorder import NOW, call_recorded
from attnbench.models.capture.stands import Function, Stands, as_itself
from attnbench.models.mask_of import has_data

OPERATORS = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
ALONE = OPERATORS[:2]
"""Those that give no log-sum-exp besides."""
LOWER_RIGHT = "_scaled_dot_product_flash_attention"
"""The one that puts the last query at the last key where it is causal."""
RECORDING = tuple(str(Path(__file__).with_name(name)) for name in ("functions.py", "recorder.py"))


def put_operators(stands: Stands) -> None:
    """Stand for the operators, and for what computes their gradients in compiled code."""
    for name in OPERATORS:
        if (packet := getattr(torch.ops.aten, name, None)) is None:
            continue
        words = _words(packet)
        for owner in (packet, packet.default):
            stands.put(owner, "_op", partial(_operator, name, words))
        if hasattr(torch, name):  # the same without the packet
            stands.put(torch, name, as_itself(partial(_stand_in, name, words)))
        if (packet := getattr(torch.ops.aten, f"{name}_backward", None)) is not None:
            stands.put(packet.default, "_op", partial(_gradient, _words(packet)))


def _words(packet: Any) -> list[str]:
    return [argument.name for argument in packet.default._schema.arguments]


class _Entered:
    """An operator's entry in the place of another, of which torch's tables know the hash."""

    def __init__(self, original: Function, call: Function) -> None:
        self._original, self._call = original, call

    def __call__(self, /, *args: Any, **more: Any) -> Any:
        return self._call(*args, **more)

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _operator(name: str, words: list[str], original: Function) -> Function:
    return _Entered(original, _stand_in(name, words, original))


def _stand_in(name: str, words: list[str], original: Function) -> Function:

    def call(*args: Any, **more: Any) -> Any:
        if NOW.recorder is None or torch.compiler.is_compiling():
            return original(*args, **more)
        if not _computes(args[0] if args else more.get("query")):
            return original(*args, **more)
        began = perf_counter()
        trains = _trains()
        NOW.state().looked += perf_counter() - began
        run = partial(original, *args, **more)
        return run() if trains is None else _recorded(name, words, trains, run)

    return call


def _computes(query: Any) -> bool:
    """True for a call that computes something, and no compiler only asks for its form."""
    return isinstance(query, Tensor) and has_data(query) and not isinstance(query, FunctionalTensor)


def _trains() -> bool | None:
    """True where compiled code calls it whose gradient may be asked for; None where it is called
    within what is recorded already.
    """
    trains = False
    frame: FrameType | None = sys._getframe(3)  # past the stand-in
    while frame is not None:
        if frame.f_code.co_filename in RECORDING:
            return None
        trains = trains or ".CompiledFunction." in frame.f_code.co_qualname
        frame = frame.f_back
    return trains


def _recorded(name: str, words: list[str], trains: bool, run: partial[Any]) -> Any:
    """Call an operator, and record it."""
    values = {**dict(zip(words, run.args, strict=False)), **run.keywords}
    alone = name in ALONE or values.get("compute_log_sumexp") is False
    alone = alone or in_generated(frame := sys._getframe(1)) or second_unread(frame)
    read = partial(_read, name, values, trains, "" if alone else "lse")
    return call_recorded(run, values["query"], read, outer=name, inner=[])


def _read(name: str, values: dict[str, Any], trains: bool, returns: str) -> CapturedCall:
    via, causal = f"aten {name}", bool(values.get("is_causal", False))
    mask = values.get("attn_mask", values.get("attn_bias", values.get("bias")))
    if name == LOWER_RIGHT:
        call = call_of(via, values, heads_first=True)
        return call._replace(gradient=trains, returns=returns)
    q, k, v = (values[x] for x in ("query", "key", "value"))
    dropout, scale = values.get("dropout_p") or 0.0, values.get("scale")
    grouped = bool(values.get("enable_gqa"))
    words = via, q, k, v, mask, causal, scale, dropout, grouped
    call = CapturedCall(*words, api="sdpa", returns=returns)
    call = call._replace(form=(form := call._replace(gradient=trains).full_form()))
    if (recorder := NOW.recorder) is not None and (form, q.device) not in recorder.kernels:
        tensors = {"query": q, "key": k, "value": v, "attn_mask": mask}
        more = {"dropout_p": dropout, "is_causal": causal, "scale": scale, "enable_gqa": grouped}
        recorder.note_kernel(form, kernel_of(name), {**tensors, **more})
    return call


def _gradient(words: list[str], original: Function) -> Function:
    """The stand-in for a gradient in compiled code: its seconds are those of the call before."""

    def call(*args: Any, **more: Any) -> Any:
        if (recorder := NOW.recorder) is None:
            return original(*args, **more)
        out = {**dict(zip(words, args, strict=False)), **more}.get("out")
        if not isinstance(out, Tensor) or not _computes(out):
            return original(*args, **more)
        if (entry := recorder.outputs.get(out.data_ptr())) is None:
            return original(*args, **more)
        span = recorder.begin(out)
        gradients = original(*args, **more)
        span = span._replace(end=span.clock.now())
        span.clock.add(span, recorder.tally, entry, backward=True)
        recorder.tally.note_end(perf_counter())
        entry.asked = True
        return gradients

    return _Entered(original, call)
