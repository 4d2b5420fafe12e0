"""Attention by cosines: the score of a pair is the cosine of the angle between query and key.

    c_nm  = q_n . k_m / (|q_n| |k_m|)
    out_n = sum over the visible m of c_nm v_m                                  normalise=none
    out_n = sum softmax over the visible m of (c_nm / temperature) v_m          normalise=softmax

A vector of zeros has the cosine 0 with everything. Cosines don't depend on how long queries and
keys are, so there is no scale, and "peaky" inputs are as mild as any. Without softmax the sum is
linear in the normed keys, and under the masks none and causal it is computed so, as a state
(:mod:`impls.linear.common`); other masks take all cosines, with zeros where the mask hides. Such
sums grow with the number of keys. With softmax (Swin v2, arXiv:2111.09883, where the temperature is
learned from 0.1 on) all cosines are needed under any mask.

Cost: 2 d e FLOPs a key and a query of each head; all cosines: 2 (d + e) for each visible pair.
"""

import torch
from torch import Tensor

from impls.heads import Attend, Define, grouped, to_query_heads, ungrouped, wide, widened
from impls.linear.common import FeatureMap, Linear, nonzero
from impls.linear.defined import plain
from impls.problem import Problem
from impls.score_mask import ScoreMask, grouped_mask, visible_pairs
from impls.spec import Unsupported, at_least


def unit(x: Tensor) -> Tensor:
    """Vectors of length one in the same directions; zeros stay zeros, with a gradient of zero."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * nonzero(length).reciprocal().masked_fill(length == 0, 0.0)


class Normed(FeatureMap):
    """Directions alone."""

    def queries(self, q_bhnd: Tensor, start: int) -> Tensor:
        """Base features of queries."""
        return unit(q_bhnd)


class _Pairs:
    """All cosines: hidden ones set to zero, or left out of a softmax."""

    def __init__(self, problem: Problem, temperature: float | None) -> None:
        self.problem, self.temperature = problem, temperature
        self.wide = wide(problem)
        self.mask: ScoreMask | None = None
        self.hidden: Tensor | None = None
        if temperature is not None:
            self.mask = ScoreMask(problem)
        elif not problem.mask.plain:
            rows = torch.arange(problem.q_len, device=problem.device)
            self.hidden = grouped_mask(~visible_pairs(problem, rows), problem)

    def __call__(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor) -> Tensor:
        q, k = unit(q_bhnd.to(self.wide)), unit(k_bcmd.to(self.wide))
        scores_bcrm = grouped(q, self.problem) @ k.mT
        if self.mask is None or self.temperature is None:
            if self.hidden is not None:
                scores_bcrm.masked_fill_(self.hidden, 0.0)
            out_bcre = scores_bcrm @ v_bcme.to(self.wide)
            return ungrouped(out_bcre, self.problem).to(v_bcme.dtype)
        weights_bcrm = self.mask.add_(scores_bcrm.div_(self.temperature)).softmax(-1)
        return self.mask.close(weights_bcrm @ v_bcme.to(self.wide)).to(v_bcme.dtype)

    def note(self) -> str:
        """Which of the two forms ran."""
        return "all cosines, one matrix of them a head"


def build(problem: Problem, normalise: str, temperature: float, chunk: int) -> Attend:
    """Legend in :mod:`impls.linear.common`."""
    if normalise not in ("none", "softmax"):
        raise Unsupported(f"normalise={normalise!r} must be none or softmax")
    if not temperature > 0:
        raise Unsupported(f"temperature={temperature} must be above 0")
    at_least("chunk", chunk, 1)
    if normalise == "softmax":
        return _Pairs(problem, temperature)
    aligned = problem.q_len == problem.kv_len or not problem.mask.upper_left
    if problem.mask.plain or (problem.mask.kinds == ("causal",) and aligned):
        return Linear(problem, Normed(problem), "none", chunk)
    return _Pairs(problem, None)


def definition(problem: Problem, normalise: str, temperature: float, chunk: int) -> Define:
    """The plain form: every dot product over both lengths, times v."""

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        q, k = widened(q_bhnd[:, :, rows]), to_query_heads(widened(k_bcmd), problem)
        lengths = q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :]
        cosines_bhrm = (q @ k.mT / nonzero(lengths)).masked_fill(lengths == 0, 0.0)
        if normalise != "softmax":
            return plain(cosines_bhrm, v_bcme, problem, rows, "none")
        hidden = ~visible_pairs(problem, rows)
        top = cosines_bhrm.detach().masked_fill(hidden, -1.0).amax(-1, keepdim=True)
        weights = ((cosines_bhrm - top).masked_fill(hidden, 0.0) / temperature).exp()
        return plain(weights, v_bcme, problem, rows, "weights")

    return define
