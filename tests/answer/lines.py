"""Records made by hand, one variant at several lengths."""

from attnbench.core.record import Distance, Ranks, Record, Status, Time
from impls.problem import Problem
from tests.times import around, figures

FIGURES = ("median_s", "low_s", "high_s", "q25_s", "q75_s", "min_s")


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
    found = {**dict.fromkeys(FIGURES, median), "n": 9, "samples_s": []}
    if median is not None and 0 < median < float("inf"):
        found = figures(around(median, near))
    far = {"max": None, "worst_row": None, "cosine": None, "skill": skill}
    ranks = {"time_s": [], "peak_bytes": [], "sent_bytes": [], "backend": "gloo"}
    return Record(
        status=Status.MEASURED,
        variant=variant,
        problem=Problem(**{"q_len": length, "kv_len": length, **problem}).to_dict(),
        time=Time(clock="host", stop="converged", flags=list(flags), **found),
        computes=computes,
        family="dense",
        distance=None if skill is None else Distance(relative=1 - skill, **far),
        ranks=Ranks(world=world, **ranks) if world else None,
        node=node,
    )


def line(variant, times, **more):
    """``times``: seconds by length."""
    return [timed(variant, length, median, **more) for length, median in times.items()]


def untimed(variant, length, status="out_of_memory", **problem):
    problem = Problem(**{"q_len": length, "kv_len": length, **problem}).to_dict()
    said = {"status": Status(status), "reason": "why", "computes": "softmax"}
    return Record(variant=variant, problem=problem, **said)
