"""Cost of other libraries' operators where they are not softmax over the problem's mask."""

from __future__ import annotations

from impls.cost import Cost, by_phase, end_bytes, output_bytes, softmax
from impls.problem import Problem


def onnxruntime(problem: Problem, op: str = "attention") -> Cost:
    """Softmax attention; in float32 the operator Attention holds all scores besides its output."""
    cost = softmax(problem)
    if op != "attention" or problem.dtype != "float32":
        return cost
    scores = problem.batch * problem.heads * problem.q_len * problem.kv_len * problem.item_bytes
    return cost._replace(peak_bytes=output_bytes(problem) + scores)


def near(problem: Problem, window: int = 128, backend: str = "") -> Cost:
    """Two products over the nearest keys: w a query, fewer at the start where causal."""
    n = problem.q_len
    w = max(1, min(window, n))
    pairs = w * (w + 1) // 2 + (n - w) * w if "causal" in problem.mask.kinds else n * w
    width = problem.head_dim + problem.v_head_dim
    flops = 2 * problem.batch * problem.heads * pairs * width
    return Cost(by_phase(problem, flops), end_bytes(problem))


def state(problem: Problem) -> Cost:
    """A state of d x e a head: k v^T added and q read out for each token, 2 d e each."""
    return _state(problem, 2)


def state_of_features(problem: Problem) -> Cost:
    """The same, with a normaliser: one more column."""
    return _state(problem, 2, more=1)


def delta(problem: Problem) -> Cost:
    """The delta rule reads the state at the key too: three products of d x e a token."""
    return _state(problem, 3)


def _state(problem: Problem, products: int, more: int = 0) -> Cost:
    d, e = problem.head_dim, problem.v_head_dim
    tokens = problem.batch * problem.heads * problem.kv_len
    flops = 2 * tokens * d * products * (e + more)
    return Cost(by_phase(problem, flops), end_bytes(problem))
