"""Longformer: a window for all, and a few global tokens that see all and are seen by all.

    out_i = softmax over j in S_i of ( q_i k_j d^-1/2 ) v_j
    S_i = { j : |i - j| <= W } and { j : j < G },     S_i = { all j } for i < G

W is ``window``, the keys on each side; the first G = ``globals`` tokens are global. One softmax
over the union, each pair counted once. Under a causal mask all sets are cut to j <= i, the global
rows' too: nothing sees later keys. (The paper projects global tokens by weights of their own; at
this level they are tokens like others.) arXiv:2004.05150.

In blocks: a block of queries meets the global keys and the span of keys around it in one product;
the global rows are done apart.

Cost: 2 n (2 W + 1 + 2 G) (d + e) FLOPs a head; memory n (2 W + G + a block), linear.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from impls.heads import Noted
from impls.problem import Problem
from impls.sparse.band import Band
from impls.sparse.common import Pattern, decoder, defined_on, global_rows, need_one_sequence
from impls.spec import at_least


def build(problem: Problem, window: int, globals: int) -> Noted:
    """Legend in :mod:`impls.heads`; the band's rows are those after the global ones."""
    at_least("window", window, 0, "(a row sees itself alone)")
    at_least("globals", globals, 0, "(no global token)")
    need_one_sequence(problem, "longformer")
    if problem.phase == "decode":
        return decoder(problem, pattern_of(problem, window, globals))
    n, causal = problem.q_len, "causal" in problem.mask.kinds
    top = min(globals, n)
    apart = 0 if causal else top  # a causal global row sees but global keys
    row = torch.arange(apart, n)
    first = (row - window).clamp(min=top)
    past = (row + 1 if causal else row + window + 1).clamp(max=n)
    extra_past = (row + 1).clamp(max=top) if top else None
    band = None
    if apart < n:
        band = Band(problem, first[None, None], past[None, None], offset=apart,
                    extra_past=extra_past)  # fmt: skip

    top_rows = partial(global_rows, problem, apart)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        if band is None:
            return top_rows(q_bhnd, k_bcmd, v_bcme)
        if not apart:
            return band(q_bhnd, k_bcmd, v_bcme)
        rest = band(q_bhnd[:, :, apart:], k_bcmd, v_bcme)
        return torch.cat([top_rows(q_bhnd, k_bcmd, v_bcme), rest], 2)

    some = "every pair meets" if band is None else band.note()
    return Noted(attend, f"{top} global tokens of {n}: {some}")


def pattern_of(problem: Problem, window: int, globals: int) -> Pattern:
    """The sets above, over the whole sequence."""

    def pattern(rows: Tensor) -> Tensor:
        row, key = rows[:, None], torch.arange(problem.kv_len, device=rows.device)
        return (((row - key).abs() <= window) | (key < globals) | (row < globals))[None, None]

    return pattern


definition = defined_on(pattern_of)
