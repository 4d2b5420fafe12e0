"""cosFormer: relu features with a cosine of the distance (Qin and others, arXiv:2202.08791).

    w_nm  = relu(q_n) . relu(k_m) cos(pi/2 (i_n - j_m) / M),    M = max(q_len, kv_len)
    out_n = sum w_nm v_m / sum w_nm     over the visible m

i and j are positions, the last query at the last key. All lie in [0, M), so that the cosine is
positive, and since cos(a - b) = cos a cos b + sin a sin b the weights are products of 2 d features,
relu(x) cos(pi/2 i / M) and relu(x) sin(pi/2 i / M), all of them positive too: no digits are lost
near the ends, where the cosine is small. The paper has no scale, and nor does this. A row whose
weights are all zero (no channel where query and key are both positive) gives zeros, as does its
gradient: the paper divides by a small constant there. Weights fall off with the distance, so unlike
in its kin the order of the keys matters. M is that of the problem: a decoder must know it
beforehand, since another M is another operator. Masks: none, causal (in chunks).

Cost: twice that of linear attention with d features: 4 d e FLOPs a key and a query of each head.
"""

import math

import torch
from torch import Tensor

from impls.heads import Attend, Define, to_query_heads, wide, widened
from impls.linear.common import FeatureMap, Linear
from impls.linear.defined import plain
from impls.problem import Problem


class Turned(FeatureMap):
    """relu(x) times the cosine and the sine of the position's angle, laid end to end."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.width = 2 * problem.head_dim
        self.longest = max(problem.q_len, problem.kv_len)
        angles = torch.arange(self.longest, dtype=torch.float64) * (0.5 * math.pi / self.longest)
        table = torch.stack((angles.cos(), angles.sin()), -1)[..., None]
        self.turns_n21 = table.to(problem.device, wide(problem))

    def queries(self, q_bhnd: Tensor, start: int) -> Tensor:
        """Base features of queries."""
        turns = self.turns_n21[start : start + q_bhnd.shape[2]]
        return (q_bhnd.relu()[..., None, :] * turns).flatten(-2)


def build(problem: Problem, chunk: int) -> Attend:
    """Legend in :mod:`impls.linear.common`."""
    return Linear(problem, Turned(problem), "weights", chunk)


def definition(problem: Problem, chunk: int) -> Define:
    """The plain form: every weight as the formula has it."""
    longest = max(problem.q_len, problem.kv_len)

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        q, k = widened(q_bhnd[:, :, rows]), to_query_heads(widened(k_bcmd), problem)
        keys = torch.arange(problem.kv_len, device=rows.device)
        away_rm = (rows[:, None] + (problem.kv_len - problem.q_len) - keys).double()
        near_rm = torch.cos(0.5 * math.pi / longest * away_rm).to(q.dtype)
        return plain(q.relu() @ k.relu().mT * near_rm, v_bcme, problem, rows, "weights")

    return define
