"""The gradient of what is added to the scores, where it is learned, as T5's relative bias is.

A variant takes a bias as data: none gives its gradient. So it is computed beside, in plain form,

    dS = P (dO V^T - rowsum(dO O))        dBias = dS summed over what was broadcast

with P = softmax(scale Q K^T + bias) made again from Q and K. That costs 4 n m d FLOPs a head and
three matrices of scores, at every layer's backward, whatever the variant saves: with a learned bias
no variant trains in less memory than the plain form.

Legend in :mod:`impls.heads`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.models.mask_of import hides


def with_bias_gradient(
    out_bhne: Tensor, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, terms: tuple[Tensor, ...],
    scale: float | None = None, is_causal: bool = False,
) -> Tensor:  # fmt: skip
    """``out`` as it is, with the gradients of those ``terms`` that want one behind it.

    ``terms`` are all that made the mask: booleans (true: may see) and numbers to add; ``is_causal``
    as F.scaled_dot_product_attention takes it.
    """
    if not torch.is_grad_enabled() or not any(term.requires_grad for term in terms):
        return out_bhne
    scale = q_bhnd.shape[-1] ** -0.5 if scale is None else scale
    data = (x.detach() for x in (q_bhnd, k_bcmd, v_bcme))
    apply: Any = _BiasGradient.apply  # torch leaves it untyped
    made: Tensor = apply(out_bhne, *data, scale, is_causal, *terms)
    return made


class _BiasGradient(torch.autograd.Function):
    """The identity of ``out``, from whose gradient those of the terms are made."""

    @staticmethod
    def forward(
        ctx: Any, out: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, is_causal: bool,
        *terms: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(out, q, k, v, *terms)
        ctx.scale, ctx.is_causal = scale, is_causal
        return out.view_as(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        out, q, k, v, *terms = ctx.saved_tensors
        group = q.shape[1] // k.shape[1]
        k, v = (x.to(out.dtype).repeat_interleave(group, 1) for x in (k, v))
        weights = _weights((q.to(out.dtype) @ k.mT) * ctx.scale, terms, ctx.is_causal)
        dscores = weights * (dout @ v.mT - (dout * out).sum(-1, keepdim=True))
        wanted = ctx.needs_input_grad[6:]
        grads = [
            dscores.sum_to_size(_padded(term)).reshape(term.shape).to(term.dtype) if want else None
            for term, want in zip(terms, wanted, strict=True)
        ]
        return dout, None, None, None, None, None, *grads


def _padded(term: Tensor) -> tuple[int, ...]:
    return (1,) * (4 - term.dim()) + tuple(term.shape)


def _weights(scores: Tensor, terms: list[Tensor], is_causal: bool) -> Tensor:
    """The softmax, zero in rows that see nothing."""
    for term in terms:
        seen = term if term.dtype == torch.bool else ~(term <= hides(term.dtype))
        added = scores if term.dtype == torch.bool else scores + term
        scores = added.masked_fill(~seen, -torch.inf)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0)
