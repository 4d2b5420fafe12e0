"""flash-sparse-attn: attention in Triton that leaves out tiles of small weights.

    dense:   softmax( q k^T d^-1/2 + mask ) v
    sparse:  the same in tiles of 64 queries by 64 keys, from the last keys to the first; a tile is
             left out where in none of its rows the largest weight, exp(max s - top) / sum by what
             the row has seen so far, reaches threshold / (keys in sight)

q, k and v in the layout [b, n, h, d]; aligned lower-right; grouped heads native; head_dim is a
multiple of 16. ``threshold`` is a multiple of a uniform row's weight; 0 leaves nothing out. The
sparse kernel is launched in the package's own blocks of 64 by 64 and is not tuned, since what it
leaves out depends on them. Its backward leaves out other tiles than its forward, so it has the
forward pass alone here; lengths are multiples of 64, where no tile has rows that do not exist.

Cost: 4 n m d FLOPs a head forward for the dense kernel; for the sparse one 2 n m d for the scores
and as much for the tiles that stay.
"""

import math
from typing import Any

import torch
from torch import Tensor

from impls.external.common import find, load, need, need_multiple, pattern, swap
from impls.heads import Attend, Define, to_query_heads
from impls.problem import Problem

REMEDY = (
    "pip install 'flash-sparse-attn>=2.0.6' 'triton_kernels @ "
    "git+https://github.com/triton-lang/triton#subdirectory=python/triton_kernels', "
    "which it imports and no index has"
)
MODULE = "flash_sparse_attn.ops.triton.interface"
TILE = 64


def build_dense(problem: Problem) -> Attend:
    """``flash_dense_attn_func``, which tunes itself at its first calls."""
    return _attend(problem, "fsa.dense", "flash_dense_attn_func", {})


def build(problem: Problem, threshold: float) -> Attend:
    """``flash_sparse_attn_func`` in blocks of 64 by 64."""
    need(threshold >= 0.0, f"fsa.sparse's threshold is {threshold}; it must be 0 or more")
    causal = "causal" in problem.mask.kinds
    need(
        problem.q_len % TILE == 0 == problem.kv_len % TILE
        and not (causal and problem.q_len > problem.kv_len),
        f"fsa.sparse takes lengths that are multiples of {TILE} here, and under a causal mask no "
        f"more queries than keys, not {problem.q_len} queries and {problem.kv_len} keys",
    )
    options = {"softmax_threshold": threshold, "is_autotune": False, "tile_mn": (TILE, TILE)}
    return _attend(problem, "fsa.sparse", "flash_sparse_attn_func", options)


def _attend(problem: Problem, variant: str, name: str, options: dict[str, Any]) -> Attend:
    need_multiple(problem, variant, 16)
    mask = pattern(problem, variant)
    function = find(load(MODULE, variant, REMEDY), name, variant, REMEDY)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        out_bnhe: Tensor = function(
            swap(q_bhnd), swap(k_bcmd), swap(v_bcme), is_causal=mask.causal,
            softmax_scale=problem.scale, **options,
        )  # fmt: skip
        return swap(out_bnhe)

    return attend


def definition(problem: Problem, threshold: float) -> Define:
    """The same tiles in the same order; which are left out is decided in float32, as there."""
    causal, own = "causal" in problem.mask.kinds, getattr(torch, problem.dtype)
    offset, scale = problem.kv_len - problem.q_len, problem.scale * math.log2(math.e)

    def tile(q_bhrd: Tensor, k_bhmd: Tensor, v_bhme: Tensor, first: int) -> Tensor:
        """A block of queries from ``first`` on, all of its keys."""
        place = first + torch.arange(TILE, device=q_bhrd.device) + offset
        sight = place + 1 if causal else torch.full_like(place, problem.kv_len)
        least = (threshold / sight).clamp(0.0, 1.0).float().log2()
        shape = (*q_bhrd.shape[:3], 1)
        top = q_bhrd.new_full(shape, -torch.inf)
        total, out = q_bhrd.new_zeros(shape), torch.zeros_like(v_bhme[:, :, :TILE])
        end = min(problem.kv_len, first + TILE + offset) if causal else problem.kv_len
        for start in range(end - TILE, -1, -TILE):
            keys = slice(start, start + TILE)
            scores = q_bhrd @ k_bhmd[:, :, keys].mT * scale
            decided = (q_bhrd.to(own).float() @ k_bhmd[:, :, keys].to(own).float().mT) * scale
            if causal:
                hidden = torch.arange(start, start + TILE, device=place.device) > place[:, None]
                scores = scores.masked_fill(hidden, -torch.inf)
                decided = decided.masked_fill(hidden, -torch.inf)
            weight = decided.amax(-1) - top[..., 0].float() - total[..., 0].float().log2()
            stays = ((weight - least).amax(-1) >= 0.0)[..., None, None]
            higher = torch.maximum(top, scores.amax(-1, keepdim=True))
            p, decay = (scores - higher).exp2(), (top - higher).exp2()
            out = torch.where(stays, out * decay + p @ v_bhme[:, :, keys], out)
            total = torch.where(stays, total * decay + p.sum(-1, keepdim=True), total)
            top = torch.where(stays, higher, top)
        return out / total

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        k, v = to_query_heads(k_bcmd, problem), to_query_heads(v_bcme, problem)
        parts = []
        for number in (rows // TILE).unique().tolist():
            first = number * TILE
            some = rows[(rows >= first) & (rows < first + TILE)] - first
            parts.append(tile(q_bhnd[:, :, first : first + TILE], k, v, first)[:, :, some])
        return torch.cat(parts, 2)

    return define
