"""Times whose figures are those of their samples, as every reader of records insists."""

import msgspec
from msgspec import structs

from attnbench.core.stats import paired, summary


def figures(samples):
    """What a Time says of these samples."""
    s = summary(samples)
    return {
        "median_s": s.median,
        "low_s": s.low,
        "high_s": s.high,
        "q25_s": s.q25,
        "q75_s": s.q75,
        "min_s": s.least,
        "n": len(samples),
        "samples_s": list(samples),
    }


def around(median, near=0.0):
    """Nine samples with this median, whose interval ends so far from it, as a share of it."""
    low, high = median * (1 - near), median * (1 + near)
    return [low, low, *[median] * 5, high, high]


def in_pairs(logs, margin=0.01, a_s=1e-3, b_s=1e-3):
    """The comparison of pairs with these logarithms of b/a; each call takes so long."""
    times = {"a_s": [a_s] * len(logs), "b_s": [b_s] * len(logs)}
    return structs.replace(paired(logs, margin), **times, stop="decided")


def pairs_answer(*same, **more):
    """The answer of a worker that took such pairs."""
    return {"comparison": msgspec.to_builtins(in_pairs(*same, **more))}
