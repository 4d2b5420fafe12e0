"""Stand-ins for ``torch.compile`` and ``torch.jit.script``, and what the compiler meets."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import torch

from attnbench.models.capture.places import heads_of, locate_traced
from attnbench.models.capture.recorder import NOW
from attnbench.models.capture.stands import Function, Stands


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


def meet(context: Any) -> None:
    """Note an attention function whose frame torch's compiler is in, by its line and its heads."""
    if (recorder := NOW.recorder) is None:
        return
    heads, where = None, locate_traced(context)
    with suppress(Exception):  # how the compiler keeps its values may change with its version
        q, v = (context.get_local(name).as_fake() for name in ("query", "value"))
        heads = heads_of(q.shape, v.shape)
    recorder.compiled.meet(where[0] or where[1], heads)
    recorder.notice()
