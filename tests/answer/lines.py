"""Records made by hand, one variant at several lengths."""

from attnbench.core.record import Distance, Ranks, Record, Status, Time
from impls.problem import Problem
from tests.times import around, figures


def timed(
    variant,
    length,
    median,
    *,
    near=0.01,
    computes="softmax",
    skill=None,
    world=None,
    flags=(),
    node="",
    **problem,
):
    """``near``: how far the interval's ends are, as a share of the median."""
    problem = {"q_len": length, "kv_len": length, **problem}
    low, high = (None, None) if median is None else (median * (1 - near), median * (1 + near))
    of_none = {
        "median_s": median,
        "low_s": low,
        "high_s": high,
        "q25_s": low,
        "q75_s": high,
        "min_s": low,
        "n": 9,
        "samples_s": [],
    }
    sound = median is not None and 0 < median < float("inf")
    time = Time(
        clock="host",
        stop="converged",
        flags=list(flags),
        **(figures(around(median, near)) if sound else of_none),
    )
    distance = (
        None
        if skill is None
        else Distance(relative=1 - skill, max=None, worst_row=None, cosine=None, skill=skill)
    )
    ranks = (
        Ranks(world=world, time_s=[], peak_bytes=[], sent_bytes=[], backend="gloo")
        if world
        else None
    )
    return Record(
        status=Status.MEASURED,
        variant=variant,
        problem=Problem(**problem).to_dict(),
        time=time,
        computes=computes,
        family="dense",
        distance=distance,
        ranks=ranks,
        node=node,
    )


def line(variant, times, **more):
    """``times``: seconds by length."""
    return [timed(variant, length, median, **more) for length, median in times.items()]


def untimed(variant, length, status="out_of_memory", **problem):
    problem = Problem(**{"q_len": length, "kv_len": length, **problem})
    return Record(
        status=Status(status),
        reason="why",
        variant=variant,
        computes="softmax",
        problem=problem.to_dict(),
    )
