"""Softmax attention on a layout of blocks: the user's, or a plain default.

    out_i = softmax over the visible j with layout[i // block, j // block] of s_ij, times v

`layout` names an .npy file of booleans, [q_blocks, k_blocks] or [heads, q_blocks, k_blocks], where
q_blocks is q_len over block, rounded up, and k_blocks likewise. Without one, a block of queries
sees the block of keys that it stands at, the one before, and the first (where the queries stand
across two blocks of keys, both). Whatever the layout, the problem's mask still hides what it hides,
so every mask holds. A row that is left with nothing gives zeros.

The kernel is FlexAttention, which reads the blocks named and no others; a block that the mask
leaves whole is not masked inside. On CUDA blocks are multiples of 128; on the CPU of any size,
without backward and float64. arXiv:2412.05496.

Cost: 4 d FLOPs a head forward for each pair that layout and mask allow; compiled at the first call.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from impls.graph import Graph
from impls.heads import Define
from impls.problem import Problem
from impls.sparse.common import softmax_on
from impls.sparse.flex_kernel import Flex
from impls.sparse.layouts import block_layout
from impls.spec import Unsupported

TILE = 128
"""A multiple of the tiles of the kernels generated for CUDA."""


def build(problem: Problem, layout: str, block: int, graph: Graph | None = None) -> Flex:
    """Compiles at the first call."""
    if block < 1 or (problem.device != "cpu" and block % TILE):
        valid = "1 or more" if problem.device == "cpu" else f"a multiple of {TILE} on CUDA"
        raise Unsupported(f"block={block} must be {valid}")
    again = partial(build, layout=layout, block=block)
    return Flex(problem, block, again, graph, block_layout(problem, layout, block)[None])


def definition(problem: Problem, layout: str, block: int) -> Define:
    """The plain form: all the scores of some rows, those outside the layout at -inf."""
    block = max(block, 1)

    before = problem.kv_len - problem.q_len

    def pattern(places: Tensor) -> Tensor:
        rows = places - before  # a layout's lines count queries
        table = torch.from_numpy(block_layout(problem, layout, block)).to(rows.device)
        key = torch.arange(problem.kv_len, device=rows.device)
        return table[None, :, (rows // block)[:, None], key // block]

    return softmax_on(problem, pattern)
