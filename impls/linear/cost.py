"""Cost of the linear variants: a state of D features by e, made of the keys and read by queries.

Forward, each key adds an outer product, D e multiplications and additions, to its head's state, and
each query reads the state, as many. Where the weights of all visible pairs are less work, as for
few queries, that counts. What chunks do besides is an implementation's own affair. A decoder with a
state is given the new tokens and the state alone: that is its work and its traffic.
"""

from __future__ import annotations

from impls.cost import Cost, by_phase, end_bytes
from impls.problem import Problem


def state(problem: Problem, width: int, base: int | None = None, work: int = 0) -> Cost:
    """A state of ``width`` features; ``base`` are those of pairs; ``work`` besides, forward."""
    wide = max(width, 1) * problem.v_head_dim
    heads = problem.kv_heads + problem.heads
    if problem.phase == "decode":
        products = 2 * problem.batch * heads * problem.q_len * wide
        return Cost(products + work, _step_bytes(problem, wide))
    keys = problem.mask.keys_seen(problem.shape) * problem.kv_heads
    queries = problem.batch * problem.heads * problem.q_len
    pairs = problem.mask.pairs(problem.shape) * ((base or width) + problem.v_head_dim)
    products = 2 * min((keys + queries) * wide, pairs)
    return Cost(by_phase(problem, products + work), end_bytes(problem))


def _step_bytes(problem: Problem, numbers: int) -> int:
    """The state read and written, new tokens read, their outputs written."""
    item = max(4, problem.item_bytes)
    states = 2 * problem.batch * problem.kv_heads * numbers * item
    widths = problem.head_dim + problem.v_head_dim
    tokens = problem.batch * (problem.heads + problem.kv_heads) * problem.q_len * widths
    return states + tokens * problem.item_bytes


def _tokens(problem: Problem) -> int:
    """Queries and keys that a map is applied to at every call, over the heads."""
    keys = problem.q_len if problem.phase == "decode" else problem.kv_len
    return problem.batch * (problem.heads * problem.q_len + problem.kv_heads * keys)


def identity(problem: Problem, normalise: bool, chunk: int) -> Cost:
    """No features."""
    return state(problem, problem.head_dim)


def elu(problem: Problem, chunk: int, segments: int = 1) -> Cost:
    """A feature a channel, however the tokens are cut."""
    return state(problem, problem.head_dim)


def cosformer(problem: Problem, chunk: int) -> Cost:
    """Two features a channel; a pair needs one, and a cosine."""
    return state(problem, 2 * problem.head_dim, problem.head_dim)


def hedgehog(problem: Problem, init: str, chunk: int) -> Cost:
    """Two features a channel, after a product with W where it isn't the identity."""
    d = problem.head_dim
    return state(problem, 2 * d, 2 * d, 2 * _tokens(problem) * d * d * (init == "random"))


def taylor(problem: Problem, features: int, chunk: int) -> Cost:
    """Products of order 0, 1 and 2 of the projected channels, and the projection."""
    projected = 0 < features < problem.head_dim
    base = features if projected else problem.head_dim
    width = 1 + base + base * (base + 1) // 2
    work = 2 * _tokens(problem) * problem.head_dim * base * projected
    return state(problem, width, base, work)


def cosine(problem: Problem, normalise: str, temperature: float, chunk: int) -> Cost:
    """A state where there is no softmax and the mask allows it, else all visible pairs."""
    aligned = problem.q_len == problem.kv_len or not problem.mask.upper_left
    factors = problem.mask.plain or (problem.mask.kinds == ("causal",) and aligned)
    if normalise != "softmax" and factors:
        return state(problem, problem.head_dim)
    pairs = problem.mask.pairs(problem.shape) * (problem.head_dim + problem.v_head_dim)
    return Cost(by_phase(problem, 2 * pairs), end_bytes(problem))


def retention(problem: Problem, chunk: int, gates: str) -> Cost:
    """Written once a key and read once a query."""
    return _recurrence(problem, 2, 0, 1 if gates == "input" else 0)


def gla(problem: Problem, chunk: int, seed: int, gates: str) -> Cost:
    """The same, and two products with matrices of rank 16 for gates that keys make."""
    if gates == "input":
        return _recurrence(problem, 2, 0, problem.head_dim)
    return _recurrence(problem, 2, 2 * 2 * 16 * problem.head_dim)


def ssd(problem: Problem, chunk: int, seed: int, gates: str) -> Cost:
    """The same, and a product for a dt that keys make."""
    if gates == "input":
        return _recurrence(problem, 2, 0, 2)
    return _recurrence(problem, 2, 2 * problem.head_dim)


def delta(problem: Problem, chunk: int, seed: int, gates: str) -> Cost:
    """The state under the key is read as well, before it is written; a product for b."""
    if gates == "input":
        return _recurrence(problem, 4, 0, 1)
    return _recurrence(problem, 4, 2 * problem.head_dim)


def gated_delta(problem: Problem, chunk: int) -> Cost:
    """The delta rule's with a state for each head of values, and a decay and a rate a token."""
    return _recurrence(problem.with_(kv_heads=problem.heads), 4, 0, 2)


def kda(problem: Problem, chunk: int) -> Cost:
    """The same with a decay a channel."""
    return _recurrence(problem.with_(kv_heads=problem.heads), 4, 0, problem.head_dim + 1)


def _recurrence(problem: Problem, operations: int, gate: int, inputs: int = 0) -> Cost:
    """``operations`` a number of the state for each key, 2 for each query; ``gate`` a key,
    which brings ``inputs`` numbers of gates with it, in float32.

    The state is the definition: weights of pairs are no smaller form of all of these.
    """
    numbers = problem.head_dim * problem.v_head_dim
    decodes = problem.phase == "decode"
    keys = problem.batch * problem.kv_heads * (problem.q_len if decodes else problem.kv_len)
    queries = problem.batch * problem.heads * problem.q_len
    forward = keys * (operations * numbers + gate) + queries * 2 * numbers
    moved = _step_bytes(problem, numbers) if decodes else end_bytes(problem)
    moved += keys * inputs * max(4, problem.item_bytes) * (2 if problem.gradients else 1)
    return Cost(by_phase(problem, forward), moved)
