"""Cost of layers: a product for each projection, and the core's own work.

A projection of T tokens from E numbers to w is 2 T E w FLOPs, twice that backward. In a decoder
only the new tokens are projected. Bytes are tokens and weights read once and the output written
once; backward the same again for the gradients; decoding moves besides what the core alone does:
the cache it reads, or its state.
"""

from __future__ import annotations

from typing import Any

from impls import cost as core_cost
from impls.cost import Cost, by_phase
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Variant


def mha(
    problem: Problem, core: Variant | None = None, key_bias: bool = True, bias: bool = True,
    **options: Any,
) -> Cost:  # fmt: skip
    """Four projections around a core; without one, around exact softmax."""
    biases = (problem.width + _keys(problem)) * bias + _keys(problem) * (bias and key_bias)
    weights = _projections(problem) + biases + problem.width * bias
    return _whole(problem, _projecting(problem), weights, _inside(problem, core))


def block(problem: Problem, ff: int, core: Variant | None = None, **options: Any) -> Cost:
    """The feed-forward part besides."""
    width, ff = problem.width, max(ff, 1)
    forward = _projecting(problem) + 4 * problem.batch * problem.q_len * ff * width * width
    weights = _attention_weights(problem) + (2 * width + 1) * ff * width + 5 * width
    return _whole(problem, forward, weights, _inside(problem, core))


def mla(problem: Problem, latent: int, rope: int, absorbed: bool) -> Cost:
    """As the two forms differ: what is projected up, and how wide a pair is."""
    latent, rope = latent_sizes(problem, latent, rope)
    h, d, width = problem.heads, problem.head_dim, problem.width
    pairs = problem.mask.pairs(problem.shape)
    queries, new, keys = problem.batch * problem.q_len, _new(problem), _all(problem)
    down = 2 * width * (new * (latent + rope) + queries * (h * (d + rope) + width))
    up = 4 * width * latent * (queries if absorbed else keys)
    each = 2 * latent + rope if absorbed else 2 * d + rope
    weights = width * (h * (d + rope) + latent + rope + width) + 2 * width * latent
    cached = problem.batch * (problem.kv_len - problem.q_len) * (latent + rope)
    inside = Cost(by_phase(problem, 2 * pairs * each), cached * problem.item_bytes)
    return _whole(problem, down + up, weights, inside)


def mixed(problem: Problem, form: str, edges: int, hidden: int, seed: int) -> Cost:
    """Softmax with R edge numbers a pair; what the batch shares counts once."""
    softmax, h, d = _inside(problem, None), problem.heads, problem.head_dim
    pairs = problem.mask.pairs(problem.shape)
    once = pairs // problem.batch
    keys, queries = _all(problem), problem.batch * problem.q_len
    if form == "matnet":
        more = hidden * (5 * pairs + (2 * edges + 1) * once)
        weights = h * hidden * (edges + 3)
    else:
        more = 4 * edges * pairs + 2 * h * d * edges * (keys + queries)
        more += once * edges * (edges + 1) * (form == "full")
        weights = (h + problem.kv_heads) * d * edges
    score_bytes = problem.q_len * problem.kv_len * edges * problem.item_bytes
    inside = Cost(softmax.flops + by_phase(problem, more), softmax.bytes)
    whole = _whole(problem, _projecting(problem), _attention_weights(problem) + weights, inside)
    return Cost(whole.flops, whole.bytes + score_bytes * (2 if problem.phase == "train" else 1))


def latent_sizes(problem: Problem, latent: int, rope: int) -> tuple[int, int]:
    """The latent's width and the rotated key's, where zero leaves them to the problem."""
    own = max(2, problem.head_dim // 4 * 2)
    return (latent if latent > 0 else max(1, problem.width // 4)), (rope if rope > 0 else own)


def _keys(problem: Problem) -> int:
    """Numbers of a token's keys."""
    return problem.kv_heads * problem.head_dim


def _all(problem: Problem) -> int:
    """Tokens that are keys, over the batch."""
    return problem.batch * problem.kv_len


def _new(problem: Problem) -> int:
    """Those whose keys are made now."""
    return problem.batch * (problem.q_len if problem.phase == "decode" else problem.kv_len)


def _projections(problem: Problem) -> int:
    """Numbers in the four matrices."""
    return 2 * problem.width * (problem.width + _keys(problem))


def _attention_weights(problem: Problem) -> int:
    return _projections(problem) + 2 * (problem.width + _keys(problem))


def _projecting(problem: Problem) -> int:
    """FLOPs of the four projections, forward."""
    of_queries = problem.batch * problem.q_len * 2 * problem.width
    return 2 * problem.width * (of_queries + _new(problem) * 2 * _keys(problem))


def _inside(problem: Problem, core: Variant | None) -> Cost:
    """The core's work and bytes by its own row; exact softmax's where that says no more."""
    if core is None or core.cost is None:
        return core_cost.softmax(problem.with_(level="core"))
    cost: Cost = load_function(core.cost)(problem.with_(level="core"), **core.chosen)
    return cost


def _whole(problem: Problem, forward: int, weights: int, inside: Cost) -> Cost:
    """Projections and what is inside; tokens, weights and output moved once.

    Heads need not be moved inside a layer, so what is inside moves nothing, but for a decoder,
    whose memory lies outside.
    """
    crossed = problem.kv_len if problem.crosses else 0
    tokens = problem.batch * (problem.q_len + crossed) * problem.width
    out = problem.batch * problem.q_len * problem.width
    moved = (tokens + weights + out) * problem.item_bytes
    if problem.gradients:
        moved *= 2
    if problem.phase == "decode":
        moved += inside.bytes
    return Cost(by_phase(problem, forward) + inside.flops, moved)
