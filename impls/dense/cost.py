"""Cost of the dense variants: the work of softmax attention, and the memory each form needs.

S is one matrix of scores (batch x heads x q_len x kv_len numbers), O the output. Peaks are in the
worst instant above the inputs. Forward, the plain forms hold the scores while the softmax writes
its own matrix: 2 S. Backward, the weights, their gradient and the gradient of the scores: 3 S,
with the output and dv already there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from impls.cost import Cost, output_bytes, softmax
from impls.problem import Problem


def scores_bytes(problem: Problem) -> int:
    """One matrix of scores in the problem's dtype."""
    return problem.batch * problem.heads * problem.q_len * problem.kv_len * problem.item_bytes


def _value_bytes(problem: Problem) -> int:
    return (
        problem.batch * problem.kv_heads * problem.kv_len * problem.v_head_dim * problem.item_bytes
    )


def _query_bytes(problem: Problem) -> int:
    return problem.batch * problem.heads * problem.q_len * problem.head_dim * problem.item_bytes


def _with_peak(problem: Problem, peak: int | None) -> Cost:
    return softmax(problem)._replace(peak_bytes=peak)


def two_matrices(problem: Problem) -> Cost:
    """Scores and weights: bmm, baddbmm, matmul."""
    s, o = scores_bytes(problem), output_bytes(problem)
    peak = 3 * s + o + _value_bytes(problem) if problem.gradients else max(2 * s, s + o)
    return _with_peak(problem, peak)


def einsum(problem: Problem) -> Cost:
    """The same, and backward one more matrix: einsum lays the gradient out anew."""
    more = scores_bytes(problem) if problem.gradients else 0
    cost = two_matrices(problem)
    return cost._replace(peak_bytes=(cost.peak_bytes or 0) + more)


def two_matrices_prescale(problem: Problem) -> Cost:
    """The same with a scaled copy of the queries: gone before the softmax, kept for backward."""
    s, q = scores_bytes(problem), _query_bytes(problem)
    cost = two_matrices(problem)
    peak = cost.peak_bytes or 0
    return cost._replace(peak_bytes=peak + q if problem.gradients else max(peak, s + q))


def one_matrix(problem: Problem) -> Cost:
    """Scores overwritten by their exponentials; a column of sums; the output."""
    s, o = scores_bytes(problem), output_bytes(problem)
    return _with_peak(problem, s + o + _column_bytes(problem))


def one_matrix_divided(problem: Problem) -> Cost:
    """The same with the quotient in a tensor of its own; backward as with two."""
    s, o, column = scores_bytes(problem), output_bytes(problem), _column_bytes(problem)
    if problem.gradients:
        return _with_peak(problem, 3 * s + o + _value_bytes(problem) + column)
    return _with_peak(problem, s + 2 * o + column)


def sdpa_math(problem: Problem) -> Cost:
    """Scores, weights, a byte a score for the rows that see nothing, the output."""
    s, o = scores_bytes(problem), output_bytes(problem)
    if problem.gradients or problem.dtype not in ("float32", "float64"):
        return softmax(problem)
    return _with_peak(problem, 2 * s + s // problem.item_bytes + o)


def fused(problem: Problem) -> Cost:
    """The output and a float32 log-sum a row; backward is the library's own affair."""
    peak = output_bytes(problem) + _log_sums(problem)
    return _with_peak(problem, None if problem.gradients else peak)


def flash(problem: Problem) -> Cost:
    """On the CPU also the scratch of each thread: a tile of scores and a block of output.

    The tile is 32, 64 or 256 queries by 512 keys (aten/native/cpu/FlashAttentionKernel.cpp).
    """
    if problem.device != "cpu" or problem.item_bytes < 4 or problem.gradients:
        return fused(problem) if not problem.gradients else softmax(problem)
    queries = 256 if problem.q_len >= 768 else 64 if problem.q_len >= 192 else 32
    queries, keys = min(queries, problem.q_len), min(512, problem.kv_len)
    scratch = queries * (keys + 2 + problem.head_dim) * problem.item_bytes
    threads = _threads()
    peak = output_bytes(problem) + _log_sums(problem) + threads * scratch
    return _with_peak(problem, peak)


def triton_flash(problem: Problem, **options: Any) -> Cost:
    """The output and a float32 a row; backward another, with dq, dk and dv; dq in float32 too where
    it is added to in place.
    """
    if not problem.gradients:
        return fused(problem)
    ends = 2 * _query_bytes(problem) + 2 * _value_bytes(problem)
    wide = _query_bytes(problem) * 4 // problem.item_bytes if options.get("fused") else 0
    return _with_peak(problem, ends + wide + 2 * _log_sums(problem))


def gluon_flash(problem: Problem, stages: int, lazy: float) -> Cost:
    """The output and a float32 a row, of whole tiles of 128; backward another, with dq, dk, dv."""
    tiles = -(-problem.q_len // 128) * 128
    column = 4 * problem.batch * problem.heads * tiles
    if not problem.gradients:
        return _with_peak(problem, output_bytes(problem) + column)
    ends = 2 * _query_bytes(problem) + 2 * _value_bytes(problem)
    return _with_peak(problem, ends + 2 * column)


def few_bits(problem: Problem, **options: Any) -> Cost:
    """The codes of the cache, and float32 scales; new tokens are also written."""
    tokens = problem.mask.keys_seen(problem.shape) * problem.kv_heads
    new = problem.batch * problem.kv_heads * problem.q_len
    width = problem.head_dim + problem.v_head_dim
    ends = _query_bytes(problem) + output_bytes(problem) + new * width * problem.item_bytes
    codes = (tokens + new) * width // (2 if problem.kv_dtype == "int4" else 1)
    covered = {"head": problem.kv_len, "block": 64}.get(problem.kv_scale or "", 1)
    return softmax(problem)._replace(bytes=ends + codes + 2 * 4 * (tokens + new) // covered)


def chunked(problem: Problem, block: int) -> Cost:
    """The blocks of output so far, and a block's scores and weights; at the end two outputs."""
    return _blocked(problem, block, lambda rows, keys: 2 * rows * keys)


MOST = 1 << 28
"""Scores of a tile of ``online`` on a GPU, over the batch and the heads, at the most."""


def online_tile(problem: Problem, q_block: int, k_block: int) -> tuple[int, int]:
    """Queries and keys of a tile. On a GPU, where a launch is dear, it grows on both sides."""
    scores = problem.batch * problem.heads * q_block * k_block
    longest = max(problem.q_len, problem.kv_len)
    while problem.device != "cpu" and 4 * scores <= MOST and min(q_block, k_block) < longest:
        q_block, k_block, scores = 2 * q_block, 2 * k_block, 4 * scores
    return q_block, k_block


def online(problem: Problem, q_block: int, k_block: int) -> Cost:
    """The same with tiles, and four blocks of output while a tile is added."""
    width = problem.v_head_dim
    q_block, k_block = online_tile(problem, q_block, k_block)

    def tile(rows: int, keys: int) -> int:
        accumulators = 4 if keys > k_block else 2
        return rows * (2 * min(keys, k_block) + accumulators * width)

    return _blocked(problem, q_block, tile)


def _blocked(problem: Problem, block: int, numbers: Callable[[int, int], int]) -> Cost:
    if problem.gradients or block < 1:
        return softmax(problem)
    first, past = problem.mask.spans(problem.shape)
    each = problem.batch * problem.heads * problem.item_bytes
    peak = 2 * output_bytes(problem)
    for start in range(0, problem.q_len, block):
        stop = min(start + block, problem.q_len)
        keys = int(past[:, start:stop].max() - first[:, start:stop].min())
        done = start * problem.v_head_dim
        peak = max(peak, each * (done + numbers(stop - start, max(keys, 0))))
    return _with_peak(problem, peak)


def _threads() -> int:
    """The number of threads that torch will take: as OpenMP is told, else one a core."""
    setting = re.match(r"\s*(\d+)", os.environ.get("OMP_NUM_THREADS", ""))
    return int(setting[1]) if setting else len(os.sched_getaffinity(0))


def _column_bytes(problem: Problem) -> int:
    return problem.batch * problem.heads * problem.q_len * problem.item_bytes


def _log_sums(problem: Problem) -> int:
    wide = 8 if problem.dtype == "float64" else 4
    return problem.batch * problem.heads * problem.q_len * wide
