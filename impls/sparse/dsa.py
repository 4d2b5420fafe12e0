"""DeepSeek's sparse attention: a small indexer scores the keys, and a query attends the best.

    I_ij  = sum over the indexer's heads of w_ih relu( iq_ih . ik_j )                   for j <= i
    T_i   = the `top` keys of the largest I_ij; of equal ones, the earlier
    out_i = softmax over j in T_i of ( q_i k_j d^-1/2 ) v_j

DeepSeek-V3.2, arXiv:2512.02556. The indexer's queries ``iq``, keys ``ik`` and weights ``iw`` are
inputs: half as many heads as the attention's and as wide (the model has 64 beside 128), one key a
token for all of them. All heads of the attention share the picks. No gradient flows through them:
the model trains its indexer by a loss of its own. The model takes 2,048 keys of up to 128K and its
indexer runs in 8 bits; the default here suits a few thousand. With `top` at or above kv_len it is
exact causal softmax attention.

The indexer's scores are quadratic, a block of rows at a time. Then each query gathers its keys and
values, which all heads that share them meet in one product; backward gathers them again.

Cost: d n m / 2 FLOPs for each head of the indexer, 2 (d + e) n top a head to attend; memory n top,
and the keys and values that a block of rows gathers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import widened
from impls.problem import Problem
from impls.sparse.selected import Defined, Selecting, again

TABLES = 4
"""How much more a block of rows gathers than keys and values are, where their gradients are wanted:
each block makes gradients for all of them."""


class Dsa(Selecting):
    """Legend in :mod:`impls.sparse.selected`; y heads of the indexer."""

    name = "dsa"

    def __init__(self, problem: Problem, top: int) -> None:
        super().__init__(problem, 1, top)

    def scores(self, q_bhnd: Tensor, k_bcmd: Tensor, **more: Tensor) -> Iterator[Tensor]:
        """The indexer's, for all heads."""
        iq_bnyd, ik_bmd, iw_bny = (more[name] for name in ("iq", "ik", "iw"))
        for rows in self.row_blocks(iq_bnyd.shape[2] * self.problem.kv_len):
            place = self.places(rows, ik_bmd.device)[:, None]
            key = torch.arange(self.items_of(rows), device=ik_bmd.device)
            near = iq_bnyd[:, rows].flatten(1, 2) @ ik_bmd[:, : len(key)].mT
            near = near.relu_().to(widened(iw_bny).dtype)
            near = near.unflatten(1, (-1, iq_bnyd.shape[2]))
            scores = (widened(iw_bny[:, rows, None]) @ near)[:, None, :, 0]
            yield scores.masked_fill_(key > place, -torch.inf)

    def selected(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, picks: Tensor, **more: Tensor
    ) -> Tensor:
        """Softmax over the keys that were picked, a block of rows at a time."""
        p = self.problem
        tables = [widened(x).reshape(-1, x.shape[-1]) for x in (k_bcmd, v_bcme)]
        unit = torch.arange(p.batch * p.kv_heads, device=picks.device).view(p.batch, -1, 1, 1)
        outs = []
        numbers = p.kv_heads * self.count * (p.head_dim + p.v_head_dim)
        least = TABLES * sum(x.numel() for x in tables) if p.gradients else 0
        for rows in self.row_blocks(numbers, least):
            some = picks[:, :, rows]
            at_bcrt = some.clamp(min=0) + unit * p.kv_len
            q_bhrd = widened(q_bhnd[:, :, rows]) * p.scale
            outs.append(again(_gathered, q_bhrd, *tables, at_bcrt, some < 0))
        return torch.cat(outs, 2).to(v_bcme.dtype)


def _gathered(q_bhrd: Tensor, k_xd: Tensor, v_xe: Tensor, at_bcrt: Tensor, no: Tensor) -> Tensor:
    """Softmax attention of some rows to rows of tables; ``no`` says which are none."""
    q_bcrgd = q_bhrd.unflatten(1, (at_bcrt.shape[1], -1)).transpose(2, 3)
    scores = q_bcrgd @ F.embedding(at_bcrt, k_xd).mT
    weights = scores.masked_fill(no[..., None, :], -torch.inf).softmax(-1)
    return (weights @ F.embedding(at_bcrt, v_xe)).transpose(2, 3).flatten(1, 2)


class Definition(Defined):
    """The indexer head by head."""

    def scores(self, q_bhnd: Tensor, k_bcmd: Tensor, rows: Tensor, **more: Tensor) -> Tensor:
        """I of some rows."""
        iq_bnyd, ik_bmd, iw_bny = (more[name] for name in ("iq", "ik", "iw"))
        total = torch.zeros_like(iq_bnyd[:, rows, 0] @ ik_bmd.mT)
        for head in range(iq_bnyd.shape[2]):
            near = (iq_bnyd[:, rows, head] @ ik_bmd.mT).clamp(min=0.0)
            total = total + iw_bny[:, rows, head, None] * near
        later = torch.arange(self.problem.kv_len, device=rows.device) > self.places(rows)
        return total.masked_fill(later, -torch.inf)[:, None]


build, definition = Dsa, partial(Definition, block=1)
