"""Attention with a running maximum and sum over blocks of keys (Rabe and Staats, arXiv:2112.05682).

    m' = max(m, max s);  p = exp(s - m');  c = exp(m - m')
    l' = c l + sum p;    a' = c a + p v;   out = a / l

No row of scores is ever whole: the memory above the output is one tile. Tiles that nobody sees are
skipped. With gradients, autograd keeps every tile.

Cost: 4 n m d FLOPs a head forward over the tiles read; two tiles of q_block x k_block scores.
"""

import torch
from torch import Tensor

from impls.dense.common import Attend, Tiles, ungrouped
from impls.problem import Problem
from impls.spec import Unsupported


def build(problem: Problem, q_block: int, k_block: int) -> Attend:
    """Legend in :mod:`impls.dense.common`; r = g n rows, n of them in a block."""
    if min(q_block, k_block) < 1:
        raise Unsupported(f"q_block={q_block} and k_block={k_block} must be 1 or more")
    tiles = Tiles(problem, q_block, k_block)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        outs = []
        for rows, blocks in tiles.blocks:
            if not blocks:
                outs.append(tiles.nothing(q_bhnd, rows))
                continue
            q_bcrd = tiles.queries(q_bhnd, rows)
            top = total = out = None
            for tile in blocks:
                scores_bcrm = tiles.scores(q_bcrd, k_bcmd, rows, tile)
                peak = scores_bcrm.detach().amax(-1, keepdim=True)
                if top is not None:
                    peak = torch.maximum(peak, top)
                shift = peak.clamp(min=torch.finfo(peak.dtype).min)  # a row that saw nothing yet
                p_bcrm = (scores_bcrm - shift).exp_()
                added, value = p_bcrm.sum(-1, keepdim=True), p_bcrm @ v_bcme[:, :, tile.keys]
                if top is None:
                    total, out = added, value
                else:
                    kept = (top - shift).exp()
                    total, out = total * kept + added, out * kept + value
                top = peak
            outs.append(ungrouped(out / total, problem))
        return tiles.close(outs)

    return attend
