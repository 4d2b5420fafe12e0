"""Linear attention with no softmax and no feature map: Q (K^T V).

    out_n = sum over the visible m of s (q_n . k_m) v_m,          s = d^-1/2
    out_n = the same / the number of visible keys                 with normalise

The weights have either sign and don't add up to one: an operator of its own, linear in each of q, k
and v, and the least that a linear variant can cost. Since nothing is divided by default, outputs
grow with the length; in float16 large inputs may pass its range, as the operator itself does.
Masks: none, causal (in chunks), for which the state before a chunk is a running sum of k v^T.

Cost: 2 d e FLOPs a key and a query of each head; chunks add 2 C (d + e) a query.
"""

from torch import Tensor

from impls.heads import Attend, Define, to_query_heads, widened
from impls.linear.common import FeatureMap, Linear
from impls.linear.defined import plain
from impls.problem import Problem


class Scaled(FeatureMap):
    """Queries times the scale, keys as they are."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.scale = problem.scale

    def queries(self, q_bhnd: Tensor, start: int) -> Tensor:
        """Base features of queries."""
        return q_bhnd * self.scale

    def keys(self, k_bcmd: Tensor, start: int) -> Tensor:
        """Base features of keys."""
        return k_bcmd


def build(problem: Problem, normalise: bool, chunk: int) -> Attend:
    """Legend in :mod:`impls.linear.common`."""
    return Linear(problem, Scaled(problem), "count" if normalise else "none", chunk)


def definition(problem: Problem, normalise: bool, chunk: int) -> Define:
    """The plain form: every score, times v."""

    def define(q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, rows: Tensor) -> Tensor:
        k_bhmd = to_query_heads(widened(k_bcmd), problem)
        scores_bhrm = widened(q_bhnd[:, :, rows]) @ k_bhmd.mT * problem.scale
        return plain(scores_bhrm, v_bcme, problem, rows, "count" if normalise else "none")

    return define
