"""Attention with a running maximum and sum over blocks of keys (Rabe and Staats, arXiv:2112.05682).

    m' = max(m, max s);  p = exp(s - m');  c = exp(m - m')
    l' = c l + sum p;    a' = c a + p v;   out = a / l

No row of scores is ever whole: the memory above the output is one tile. On a GPU, where a launch is
dear, tiles grow from the blocks asked for until one holds 2^28 scores. Tiles that nobody sees are
skipped. Half precisions sum in float32. With gradients, autograd keeps every tile.

Cost: 4 n m d FLOPs a head forward over the tiles read; two tiles of q_block x k_block scores.
"""

from typing import Any

from torch import Tensor

from impls.dense.common import Tiles, attend_online
from impls.dense.cost import online_tile
from impls.heads import Attend
from impls.problem import Problem
from impls.spec import Unsupported


def build(problem: Problem, q_block: int, k_block: int) -> Attend:
    """Legend in :mod:`impls.heads`."""
    if min(q_block, k_block) < 1:
        raise Unsupported(f"q_block={q_block} and k_block={k_block} must be 1 or more")
    tiles = Tiles(problem, *online_tile(problem, q_block, k_block))

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, sinks: Tensor | None = None) -> Any:
        return attend_online(
            tiles, q_bhnd, lambda keys: k_bcmd[:, :, keys], lambda keys: v_bcme[:, :, keys], sinks
        )

    return attend
