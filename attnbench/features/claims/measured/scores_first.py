"""(Q K^T) V without softmax, in the order in which it is written: all scores first.

    out_n = sum over all m of s (q_n . k_m) v_m,          s = d^-1/2

The same operator as the table's ``linear.identity``, whose definition is its own too. It is here to
be slower: 2 n m (d + e) FLOPs a head, with a matrix of scores.
"""

from __future__ import annotations

from torch import Tensor

from impls.heads import Attend
from impls.problem import Problem
from impls.spec import Variant

ROW = Variant(
    name="scores_first",
    title="(Q K^T) V, all scores first",
    family="claims",
    computes="its own operator",
    build="attnbench.features.claims.measured.scores_first:build",
    definition="impls.linear.identity:definition",
    masks=("none",),
    gqa=False,
    options={"normalise": False, "chunk": 128},
)


def build(problem: Problem, normalise: bool, chunk: int) -> Attend:
    """The options are the definition's, and stay as they are."""
    scale = problem.scale

    def attend(q_bhnd: Tensor, k_bhmd: Tensor, v_bhme: Tensor) -> Tensor:
        scores_bhnm = (q_bhnd * scale) @ k_bhmd.mT
        return scores_bhnm @ v_bhme

    return attend
