"""Stand-ins for ``torch.compile`` and ``torch.jit.script``, and what the compiler meets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from attnbench.models.capture.captured_call import CapturedCall
from attnbench.models.capture.masks import FoundMask, Masks
from attnbench.models.capture.places import locate_traced
from attnbench.models.capture.recorder import NOW
from attnbench.models.capture.stands import Function, Stands
from attnbench.models.mask_of import FULL, causal_of
from impls.errors import CantBeDone
from impls.masks import Shape

COMPILED_NOTE = "compiled into larger code: how often it ran, and for how long, is not known"


def put_compilers(stands: Stands) -> None:
    """Stand for what compiles."""
    stands.put(torch, "compile", _compile)
    stands.put(torch.jit, "script", partial(_script, stands))


def _compile(original: Function) -> Function:
    """``torch.compile``: a stand-in that is compiled by itself stands for the compiled function."""

    def compile(model: Any = None, *args: Any, **more: Any) -> Any:
        inner, make = getattr(model, "__attnbench__", (model, None))
        compiled = original(inner, *args, **more)
        return compiled if make is None else make(compiled)

    return compile


def _script(stands: Stands, original: Function) -> Function:

    def script(*args: Any, **more: Any) -> Any:
        more["_frames_up"] = more.get("_frames_up", 0) + 1  # names are looked up at its caller
        with stands.paused():
            return original(*args, **more)

    return script


def meet_sdpa(context: Any) -> None:
    """Note ``F.scaled_dot_product_attention``, whose frame torch's compiler is in."""
    _meet(context, "sdpa, compiled", ("attn_mask",))


def meet_flex(context: Any) -> None:
    """Note ``flex_attention``, whose frame torch's compiler is in."""
    _meet(context, "flex, compiled", ("block_mask", "score_mod"))


def _meet(context: Any, via: str, masks: tuple[str, ...]) -> None:
    if (recorder := NOW.recorder) is None:
        return

    def constant(name: str) -> Any:
        """The value of an argument, else something that is no argument's value."""
        try:
            return context.get_local(name).as_python_constant()
        except Exception:
            return ...

    def find(_: Masks, shape: Shape) -> FoundMask:
        if any(constant(name) is not None for name in masks):
            return FoundMask(FULL, "its mask has no values while it is compiled")
        return FoundMask(causal_of(shape) if constant("is_causal") is True else FULL)

    site, where = None, locate_traced(context)
    try:
        q, k, v = (_sized(context.get_local(name).as_fake()) for name in ("query", "key", "value"))
        scale, dropout = (constant(name) for name in ("scale", "dropout_p"))
        call = CapturedCall(via, q, k, v, find_mask=find, note=COMPILED_NOTE)
        call = call._replace(
            scale=scale if isinstance(scale, float) else None,
            dropout=dropout if isinstance(dropout, float) else 0.0,
        )
        mask, _ = call.look(where, recorder.masks)
        site = call.site(where, mask, call.full_form())
    except CantBeDone as error:
        recorder.refuse(str(error))
    except Exception as error:  # how the compiler keeps its values may change with its version
        recorder.refuse(f"torch.compile did not say what it is: {error!r:.120}")
    recorder.meet_compiled(site, where)


class _Sized:
    """The facts of a tensor that a problem needs, its lengths as they are in this call.

    To ask a length of the compiler's own for its value would tie the code to that value.
    """

    def __init__(self, fake: Any) -> None:
        self.shape = tuple(n if isinstance(n, int) else n.node.hint for n in fake.shape)
        self.dtype, self.device, self.requires_grad = fake.dtype, fake.device, fake.requires_grad
        self.dim, self.stride = fake.dim, tuple


_sized: Callable[[Any], Any] = _Sized
