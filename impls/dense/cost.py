"""What the dense variants cost: the work of softmax attention, and the memory each form needs.

S is one matrix of scores (batch x heads x q_len x kv_len numbers), O the output. Peaks are in the
worst instant above the inputs. Forward, the plain forms hold the scores while the softmax writes
its own matrix: 2 S. Backward, the weights, their gradient and the gradient of the scores: 3 S,
with the output and dv already there.
"""

from __future__ import annotations

from impls.cost import Cost, output_bytes, softmax
from impls.problem import Problem


def scores_bytes(problem: Problem) -> int:
    """One matrix of scores in the problem's dtype."""
    return problem.batch * problem.heads * problem.q_len * problem.kv_len * problem.item_bytes


def _value_bytes(problem: Problem) -> int:
    return problem.batch * problem.kv_heads * problem.kv_len * problem.v_head_dim * problem.item_bytes


def _query_bytes(problem: Problem) -> int:
    return problem.batch * problem.heads * problem.q_len * problem.head_dim * problem.item_bytes


def _with_peak(problem: Problem, peak: int | None) -> Cost:
    return softmax(problem)._replace(peak_bytes=peak)


def two_matrices(problem: Problem) -> Cost:
    """Scores and weights: einsum, bmm, baddbmm, matmul."""
    s, o = scores_bytes(problem), output_bytes(problem)
    forward = max(2 * s, s + o)
    peak = 3 * s + o + _value_bytes(problem) if problem.gradients else forward
    return _with_peak(problem, peak)


def two_matrices_prescale(problem: Problem) -> Cost:
    """The same with a scaled copy of the queries: gone before the softmax, kept for backward."""
    s, o, q = scores_bytes(problem), output_bytes(problem), _query_bytes(problem)
    if problem.gradients:
        return _with_peak(problem, 3 * s + o + q + _value_bytes(problem))
    return _with_peak(problem, max(2 * s, s + o, s + q))


def one_matrix(problem: Problem) -> Cost:
    """Scores overwritten by their exponentials; the sums are a column; the output."""
    s, o = scores_bytes(problem), output_bytes(problem)
    column = o // problem.v_head_dim
    return _with_peak(problem, s + o + column)


def unknown(problem: Problem) -> Cost:
    """The work is known, the memory is whatever was chosen underneath."""
    return softmax(problem)
