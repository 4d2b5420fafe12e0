"""Calls inside of what torch.compile compiles: met once, when their code is traced.

The compiler is asked to call us at that moment; it goes on as if we had not been there. Which
problem it is can be told from the sizes that it traces with, but not how often the code will run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from attnbench.models.capture.asked import Asked, four, site_of
from attnbench.models.capture.masks import Found
from attnbench.models.capture.where import Place, found_in, place_of
from attnbench.models.mask_of import FULL, causal_of
from impls.asked import CantBeDone
from impls.masks import Shape

if TYPE_CHECKING:
    from attnbench.models.capture.recorder import Recorder

NOTE = "compiled into larger code: how often it ran, and for how long, is not known"


def sdpa_call(context: Any, recorder: Recorder) -> None:
    """A call of ``F.scaled_dot_product_attention``, by its arguments' names."""
    site = None
    try:
        site = site_of(_asked(context))
    except CantBeDone as error:
        recorder.amiss[str(error)] += 1
    except Exception as error:  # how the compiler keeps its values may change with its version
        recorder.amiss[f"torch.compile did not say what it is: {error!r:.120}"] += 1
    recorder.compiled.add(site)


def _asked(context: Any) -> Asked:
    q, k, v = (context.get_local(name).as_fake() for name in ("query", "key", "value"))
    masked, causal, scale, dropout = (
        _constant(context, name) for name in ("attn_mask", "is_causal", "scale", "dropout_p")
    )
    forms = (four(q, 0), four(k, 0), four(v, 0))
    shape = Shape(forms[0][0], forms[0][1], forms[0][2], forms[1][2])
    found = Found(causal_of(shape) if causal is True else FULL)
    if masked is not None:
        found = Found(FULL, "its mask has no values while it is compiled")
    return Asked(
        found_in(_places(context)), "sdpa, compiled", *forms, q.dtype, q.device,
        torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)), found,
        scale if isinstance(scale, float) else None,
        dropout if isinstance(dropout, float) else 0.0, NOTE, True,
    )  # fmt: skip


def nameless(_: Any, recorder: Recorder) -> None:
    """A call of which nothing is asked."""
    recorder.compiled.add(None)


def _constant(context: Any, name: str) -> Any:
    """The value of an argument that is one, or something that is none of them."""
    try:
        return context.get_local(name).as_python_constant()
    except Exception:
        return ...


def _places(context: Any) -> Iterator[Place]:
    """The frames that are being traced, the innermost first."""
    frame = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
    while frame is not None:
        yield place_of(frame.f_code, frame.lineno)
        frame = getattr(frame, "parent", None)
