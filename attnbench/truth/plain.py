"""Softmax attention as one would write it, in whatever dtype comes: the yardstick for errors.

Backward has two textbook forms. One keeps the weights of the forward pass. The other, which every
fused kernel uses, keeps the output and the logarithm of the sum of exponentials, and computes the
weights again from new products, whose sums need not run in the same order. So the scores differ
from the log-sum by their own rounding: 1.5e-5 at a score of 200 in float32, and as much in the
weights. Half precisions compute inside in float32, as those kernels do, and keep a rounded output.
An implementation may be as far off as the worse of the two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impls.heads import Define, to_query_heads
from impls.problem import Problem


def softmax_define(problem: Problem) -> Define:
    """The output of some rows, differentiable."""

    def define(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        scores, blind = _scores(problem, q, k, rows)
        return (scores.softmax(-1) @ to_query_heads(v, problem)).masked_fill(blind, 0.0)

    return define


def recomputed(problem: Problem, q: Tensor, k: Tensor, v: Tensor, rows: Tensor,
               dout: Tensor | None) -> dict[str, Tensor]:  # fmt: skip
    """The output and, over the rows, the gradients, from weights computed a second time."""
    dtype = q.dtype
    inside = dtype if dtype.itemsize > 2 else torch.float32
    q, k, v = (x.to(inside) for x in (q, k, v))
    k_bhmd, v_bhme = to_query_heads(k, problem), to_query_heads(v, problem)
    scores, blind = _scores(problem, q, k, rows)
    log_sum = scores.logsumexp(-1, keepdim=True)
    out = (scores.softmax(-1) @ v_bhme).masked_fill(blind, 0.0).to(dtype).to(inside)
    again, _ = _scores(problem, q, k, rows, another_order=True)
    weights = (again - log_sum).exp().masked_fill(blind, 0.0)
    made = {"forward": weights @ v_bhme}
    if dout is not None:
        dout = dout.to(inside)
        ds = weights * (dout @ v_bhme.mT - (dout * out).sum(-1, keepdim=True))
        made["dq"] = (ds @ k_bhmd) * problem.scale
        made["dk"] = _kv_heads((ds.mT @ q[:, :, rows]) * problem.scale, problem)
        made["dv"] = _kv_heads(weights.mT @ dout, problem)
    return {name: tensor.to(dtype) for name, tensor in made.items()}


def _scores(problem: Problem, q: Tensor, k: Tensor, rows: Tensor, *,
            another_order: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Masked scores, rows that see nothing left open, and which rows those are."""
    picked = rows.cpu().numpy()
    seen = torch.from_numpy(problem.mask.visible(problem.shape, picked)).to(q.device)
    added = problem.mask.bias(problem.shape, picked)
    q_bhrd, k_bhmd = q[:, :, rows], to_query_heads(k, problem)
    if another_order:
        even, odd = (q_bhrd[..., i::2] @ k_bhmd[..., i::2].mT for i in (0, 1))
        scores = (even + odd) * problem.scale
    else:
        scores = (q_bhrd @ k_bhmd.mT) * problem.scale
    if added is not None:
        scores = scores + torch.from_numpy(added).to(q.device, q.dtype)
    blind = ~seen.any(-1, keepdim=True)
    open_scores = scores if added is None else scores.nan_to_num(neginf=0.0).where(blind, scores)
    return open_scores.masked_fill(~(seen | blind), -torch.inf), blind


def _kv_heads(x_bhmd: Tensor, problem: Problem) -> Tensor:
    return x_bhmd.unflatten(1, (problem.kv_heads, problem.group)).sum(2)
