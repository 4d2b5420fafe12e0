"""Cost of a problem: the work of the mathematics and the bytes of the ends.

``flops`` counts the matrix products that the definition needs on the pairs its mask lets meet: two
forward (scores, output), four more backward (dq, dk, dv and the gradient of the weights). What an
implementation computes again, or computes and throws away, is its own affair; so a rate in FLOP/s
compares implementations. (Published backward figures often count a fifth product, the recomputed
scores: multiply our backward by 5/4 to compare.) ``bytes`` reads every input that is seen once and
writes every output once: nobody can move less.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from impls.operators import outputs
from impls.problem import ITEM_BYTES, Problem


class Cost(NamedTuple):
    """Work, traffic, and the memory an implementation expects to need above its inputs."""

    flops: int
    bytes: int
    peak_bytes: int | None = None
    """At the worst instant, output included; None where no formula is known."""


def softmax(problem: Problem, **options: Any) -> Cost:
    """Softmax attention under the problem's mask, whatever computes it."""
    pairs = problem.mask.pairs(problem.shape)
    product_pair = 2 * pairs * (problem.head_dim + problem.v_head_dim)
    return Cost(by_phase(problem, product_pair), end_bytes(problem))


def mean(problem: Problem) -> Cost:
    """The mean of the values a row may see: values are read, queries and keys are not.

    One addition a key and column: running sums hold the sum of every span. Backward the same over
    rows. What a mask from a file asks besides is not counted.
    """
    values = problem.mask.keys_seen(problem.shape) * problem.kv_heads * problem.v_head_dim
    outputs = problem.batch * problem.heads * problem.q_len * problem.v_head_dim
    adds = {"backward": outputs, "train": values + outputs}.get(problem.phase, values)
    moved = values + outputs  # backward: dout is read, dv written
    return Cost(adds, moved * problem.item_bytes * (2 if problem.phase == "train" else 1))


def by_phase(problem: Problem, forward: int) -> int:
    """Forward work as the phase multiplies it: two products backward for each one forward."""
    return forward * {"forward": 1, "decode": 1, "backward": 2, "train": 3}[problem.phase]


def output_bytes(problem: Problem) -> int:
    """The outputs alone."""
    rows = problem.batch * problem.heads * problem.q_len
    return rows * problem.v_head_dim * problem.item_bytes + besides_bytes(problem)


def besides_bytes(problem: Problem) -> int:
    """What a problem asks for besides the output."""
    specs = outputs(problem).values()
    return sum(math.prod(x.shape(problem)) * ITEM_BYTES[x.dtype_on(problem)] for x in specs)


def end_bytes(problem: Problem, keys: int | None = None, values: int | None = None) -> int:
    """Inputs read once and outputs written once; keys that no row sees are not read.

    ``keys`` and ``values``: how many of either are read, over the batch and the key/value heads,
    where the variant itself leaves some of those in sight unread.
    """
    rows = problem.batch * problem.heads * problem.q_len
    visible = problem.mask.keys_seen(problem.shape) * problem.kv_heads
    keys, values = (visible if x is None else x for x in (keys, values))
    values = 0 if problem.v_in_k else values  # they are read with the keys
    inputs = rows * problem.head_dim + keys * problem.head_dim + values * problem.v_head_dim
    outputs = rows * problem.v_head_dim
    if problem.phase == "train":  # and reads dout, writes dq, dk, dv
        numbers = 2 * (inputs + outputs)
    elif problem.phase == "backward":  # the forward's output need not be read
        numbers = 2 * inputs + outputs
    else:
        numbers = inputs + outputs
    besides = besides_bytes(problem) * (2 if problem.phase == "train" else 1)
    return numbers * problem.item_bytes + besides
