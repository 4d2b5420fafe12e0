"""Times whose figures are those of their samples, as every reader of records insists."""

from attnbench.core.stats import summary


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
