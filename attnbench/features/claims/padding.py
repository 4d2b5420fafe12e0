"""Padding scored 0 in cuDNN's backward: gradients where all scores of a row lie far below zero.

Where the padded half of a block keeps the score 0, its weight overflows, since the row's own scores
are all far below that; times a key of zeros that is NaN, in the queries' gradient alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimRequest, ClaimTable
from attnbench.gate.inputs import make
from impls.problem import Problem

DEVICE, DTYPE = "cuda", "bfloat16"
MASKED, CAUSAL = "a mask", "is_causal"
"""How a call is made causal: by a tensor, or by torch's own flag."""
CALLS = (
    *((SDPBackend.CUDNN_ATTENTION, MASKED, n) for n in (64, 192, 640, 704, 768, 1088)),
    (SDPBackend.CUDNN_ATTENTION, CAUSAL, 704),
    (SDPBackend.EFFICIENT_ATTENTION, MASKED, 704),
)


def sdpa(backend: SDPBackend, form: str, length: int) -> Callable[..., Tensor]:
    """torch's attention by one backend, causal by a tensor or by its flag."""
    visible = torch.ones(length, length, dtype=torch.bool, device=DEVICE).tril()[None, None]
    how = {"is_causal": True} if form == CAUSAL else {"attn_mask": visible}

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v, **how)

    return attend


def not_finite(attend: Callable[..., Tensor], length: int, seed: int) -> dict[str, float]:
    """The share of numbers that are not finite, of the output and of each gradient."""
    sizes = {"heads": 1, "kv_heads": 1, "head_dim": 64, "v_head_dim": 64}
    extent = {"q_len": length, "kv_len": length, "dtype": DTYPE, "device": DEVICE}
    inputs = make(Problem(**sizes, **extent, phase="train", inputs="sunk"), seed)  # type: ignore[arg-type]
    leaves = [x.requires_grad_() for x in inputs.values()]
    out = attend(*leaves)
    tensors = [out, *torch.autograd.grad(out, leaves, torch.ones_like(out))]
    return {
        name: 1 - float(x.isfinite().double().mean())
        for name, x in zip(("output", "dq", "dk", "dv"), tensors, strict=True)
    }


def measure_padding(request: ClaimRequest) -> ClaimFindings:
    """The shares of all calls: of the queries' gradient, and the largest of the others."""
    figures, rows = dict[str, ClaimFigure](), list[list[str | int | float]]()
    for backend, form, length in CALLS:
        shares = not_finite(sdpa(backend, form, length), length, request.seed)
        name = f"{backend.name.removesuffix('_ATTENTION').lower()} {form} {length}"
        rest = max(share for which, share in shares.items() if which != "dq")
        figures |= {f"dq {name}": ClaimFigure(shares["dq"]), f"rest {name}": ClaimFigure(rest)}
        rows.append([name, *shares.values()])
    columns = ["call", "output", "dq", "dk", "dv"]
    return ClaimFindings(figures, (), [ClaimTable("share of numbers not finite", columns, rows)])
