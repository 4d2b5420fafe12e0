"""Cost of the low-rank variants: the products of thin matrices, and the bytes of the ends.

A decoder with sums over its keys is given the new tokens and the sums alone: that is its work and
its traffic, however many keys there were.
"""

from __future__ import annotations

from impls.cost import Cost, by_phase, end_bytes
from impls.problem import Problem


def linformer(problem: Problem, rank: int, projection: str, seed: int) -> Cost:
    """Mixing m keys and values into r, and attention to those."""
    width, rank = problem.head_dim + problem.v_head_dim, min(rank, problem.kv_len)
    mixing = (2 * rank if projection == "random" else 1) * problem.kv_len * width
    attending = 2 * problem.q_len * rank * width
    return _total(problem, problem.heads * attending + problem.kv_heads * mixing)


def nystrom(problem: Problem, landmarks: int, iterations: int) -> Cost:
    """Two thin softmaxes, and the steps to the inverse; a decomposition is not counted."""
    n, m, d, e = _sizes(problem)
    r, u = min(landmarks, n), min(landmarks, m)
    thin = 2 * n * u * (d + e) + 2 * r * m * (d + e) + 2 * r * u * (d + e)
    steps = iterations * 4 * r * r * (r + u)
    return _total(problem, problem.heads * (thin + steps))


def skyformer(problem: Problem, landmarks: int, iterations: int, gamma: float, seed: int) -> Cost:
    """Two thin kernels, and the steps to the inverse; a decomposition is not counted."""
    n, m, d, e = _sizes(problem)
    r = min(landmarks, n + m)
    thin = 2 * (n + m + r) * r * (d + e)
    return _total(problem, problem.heads * (thin + iterations * 8 * r**3))


def performer(problem: Problem, features: int, seed: int, chunk: int) -> Cost:
    """The features of queries and keys, the sums over keys and what each query reads of them.

    In decode of the new tokens alone.
    """
    return _features(problem, features, features)


def rfa(problem: Problem, features: int, sigma: float, floor: float, seed: int,
        chunk: int) -> Cost:  # fmt: skip
    """The same; a sine and a cosine of each product."""
    return _features(problem, features, 2 * features)


def _features(problem: Problem, products: int, features: int) -> Cost:
    n, m, d, e = _sizes(problem)
    products, features = max(products, 1), max(features, 1)
    decodes = problem.phase == "decode"
    tokens = n * problem.heads + (n if decodes else m) * problem.kv_heads
    whole = _total(problem, 2 * (products * d + features * e) * tokens)
    if not decodes:
        return whole
    sums = 2 * problem.kv_heads * features * (e + 1) * max(4, problem.item_bytes)
    return whole._replace(bytes=problem.batch * (sums + tokens * (d + e) * problem.item_bytes))


def _sizes(problem: Problem) -> tuple[int, int, int, int]:
    return problem.q_len, problem.kv_len, problem.head_dim, problem.v_head_dim


def _total(problem: Problem, forward: int) -> Cost:
    return Cost(by_phase(problem, problem.batch * forward), end_bytes(problem))
