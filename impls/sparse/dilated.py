"""Dilated windows: neighbours a few keys apart.

    out_i = softmax over j in S_i of ( q_i k_j d^-1/2 ) v_j
    S_i = { j : i - j = u D, |u| <= W }     causal: 0 <= u <= W

D is ``dilation`` and W is ``width``. A row sees W keys on each side and itself, spread over 2 W D
places. i and j differ by a multiple of D where they leave the same remainder, so the tokens fall
apart into D phases that never meet, and each phase is an ordinary window: blocks of queries against
spans of keys. This is the dilated window of Longformer, arXiv:2004.05150, one dilation for all
heads; LongNet, arXiv:2307.02486, keeps such phases too, but of segments, and mixes several.
dilation=1 is a plain window. Causal strictly: no row depends on later keys.

Cost: 2 n (2 W + 1) (d + e) FLOPs a head, half of that causal; memory n (W + a block), linear.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import Noted
from impls.problem import Problem
from impls.sparse.band import Band
from impls.sparse.common import Pattern, decoder, defined_on, need_one_sequence
from impls.spec import at_least


def build(problem: Problem, dilation: int, width: int) -> Noted:
    """Legend in :mod:`impls.heads`; p phases of u tokens each, the last ones padded."""
    at_least("dilation", dilation, 1)
    at_least("width", width, 0, "(a row sees itself alone)")
    need_one_sequence(problem, "dilated")
    if problem.phase == "decode":
        return decoder(problem, pattern_of(problem, dilation, width))
    b, n, phases = problem.batch, problem.q_len, min(dilation, problem.q_len)
    each = -(-n // phases)
    place = torch.arange(each)
    real = torch.tensor([len(range(p, n, phases)) for p in range(phases)])[None, :, None]
    if n % phases == 0:
        real = real[:, :1]
    right = 0 if "causal" in problem.mask.kinds else width
    reach = width if dilation < n else 0
    first = (place - reach).clamp(min=0).expand(1, real.shape[1], -1)
    past = torch.minimum(place + min(right, reach) + 1, real)
    band = Band(problem, first, past.expand_as(first))

    def apart(x_bhnd: Tensor) -> Tensor:
        """Tokens by their phase: [b c, p g, u, d], with g = 1 for keys."""
        heads, d = x_bhnd.shape[1], x_bhnd.shape[3]
        x = F.pad(x_bhnd, (0, 0, 0, each * phases - n)) if n % phases else x_bhnd
        x = x.reshape(b * problem.kv_heads, heads // problem.kv_heads, each, phases, d)
        return x.permute(0, 3, 1, 2, 4).reshape(x.shape[0], -1, each, d)

    def attend(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        out = band(apart(q_bhnd), apart(k_bcmd), apart(v_bcme))
        out = out.reshape(b * problem.kv_heads, phases, problem.group, each, -1)
        out = out.permute(0, 2, 3, 1, 4).reshape(b, problem.heads, each * phases, -1)
        return out[:, :, :n]

    sight = "each row sees itself alone" if each == 1 else "all of its phase in sight"
    some = band.note() if width < each - 1 else sight
    plural = "" if each == 1 else "s"
    return Noted(attend, f"{phases} phases, of at most {each} token{plural}: {some}")


def pattern_of(problem: Problem, dilation: int, width: int) -> Pattern:
    """The sets above, over the whole sequence."""

    def pattern(rows: Tensor) -> Tensor:
        away = (rows[:, None] - torch.arange(problem.kv_len, device=rows.device)).abs()
        return ((away % max(dilation, 1) == 0) & (away <= width * dilation))[None, None]

    return pattern


definition = defined_on(pattern_of)
