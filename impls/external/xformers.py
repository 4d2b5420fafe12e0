"""xFormers' memory_efficient_attention, with the operator forced.

    softmax( q k^T d^-1/2 + mask ) v      q, k, v in the layout [b, n, h, d]

The mask is one of its bias objects, made once: LowerTriangular* for causal, Local* for windows,
BlockDiagonal* for documents; from-bottom-right where lengths differ. ``op=fa2`` forces its
FlashAttention-2, ``op=fa3`` its FlashAttention-3; left to itself it would choose. Grouped heads go
in as five dimensions [b, n, groups, heads, d] with keys and values expanded, and have no
backward. Half precision, head_dim a multiple of 8 up to 256.

arXiv:2112.05682, arXiv:2307.08691. Cost: 4 n m d FLOPs a head forward on the pairs that the mask
lets meet; memory linear in n.
"""

from typing import Any

import torch
from torch import Tensor

from impls.external.common import Pattern, load, need, need_multiple, pattern
from impls.heads import Attend
from impls.problem import Problem
from impls.spec import Unsupported

REMEDY = "pip install 'xformers>=0.0.35' (its wheels are built for one torch and CUDA each)"


def build(problem: Problem, op: str = "fa2") -> Attend:
    """A bias and an operator, once."""
    need(op in ("fa2", "fa3"), f"xformers has no operator {op!r} here; op is fa2 or fa3")
    fmha: Any = load("xformers.ops.fmha", "xformers", REMEDY)
    need_multiple(problem, "xformers")
    need(
        problem.group == 1 or not problem.gradients,
        "xformers has no backward for grouped heads; repeat the keys or take kv_heads = heads",
    )
    least = 64 if problem.gradients else 32
    need(
        op == "fa2" or problem.head_dim >= least,
        f"xformers' fa3 takes head_dim {least} or more in phase {problem.phase}, "
        f"not {problem.head_dim}",
    )
    mask = pattern(problem, "xformers")
    bias = _bias(problem, fmha.attn_bias, mask)
    module = fmha.flash if op == "fa2" else fmha.flash3
    operator = (module.FwOp, module.BwOp)
    batch = 1 if mask.documents else problem.batch

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        laid_out = _laid_out(problem, batch, q_bhnd, k_bcmd, v_bcme)
        try:
            out = fmha.memory_efficient_attention(
                *laid_out, attn_bias=bias, scale=problem.scale, op=operator
            )
        except ValueError as error:  # a paragraph: the inputs, and for each operator why not
            if "does not support inputs" not in str(error):
                raise
            why = str(error).partition("is not supported because:")[2].split("\n")
            reasons = "; ".join(filter(None, map(str.strip, why)))
            raise Unsupported(f"xformers refuses: {reasons}") from None
        return _back(out, problem)

    return attend


def _bias(problem: Problem, kinds: Any, mask: Pattern) -> Any:
    """The bias object that means the problem's mask; a window counts its own place too."""
    if mask.documents:
        device = torch.device(problem.device)
        blocks = kinds.BlockDiagonalMask.from_seqlens(list(mask.documents), device=device)
        if not mask.causal:
            need(not mask.local, "xformers has windows in documents only together with causal")
            return blocks
        return blocks.make_local_attention(mask.left + 1) if mask.local else blocks.make_causal()
    if mask.local and not mask.causal:
        return kinds.LocalAttentionFromBottomRightMask(mask.left, mask.right)
    if not mask.causal:
        return None
    if mask.local:
        corner = kinds.LowerTriangularFromBottomRightMask()
        return corner.make_local_attention(mask.left + 1)
    square = problem.q_len == problem.kv_len
    return kinds.LowerTriangularMask() if square else kinds.LowerTriangularFromBottomRightMask()


def _laid_out(
    problem: Problem, batch: int, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """[batch, n, h, d], or [batch, n, c, g, d] for grouped heads: views.

    Packed documents have batch 1, and the batch's heads side by side.
    """
    g = problem.group

    def laid_out(x_bhnd: Tensor, copies: int) -> Tensor:
        x = x_bhnd.flatten(0, 1).unflatten(0, (batch, -1)).transpose(1, 2)
        if g == 1:
            return x
        if copies == 1:
            return x.unflatten(2, (-1, g))
        return x[:, :, :, None].expand(-1, -1, -1, copies, -1)

    return laid_out(q_bhnd, 1), laid_out(k_bcmd, g), laid_out(v_bcme, g)


def _back(out: Tensor, problem: Problem) -> Tensor:
    """[b, h, n, e] from whichever layout went in."""
    heads_last = out.flatten(2, 3) if problem.group > 1 else out
    rows = heads_last.transpose(1, 2).flatten(0, 1)
    return rows.unflatten(0, (problem.batch, problem.heads))
