"""Records made by hand, and a made-up machine whose times have a closed form."""

from attnbench.core.record import Distance, Error, Memory, Ranks, Record, Status, Time
from impls.masks import Mask
from impls.problem import Problem
from tests.times import around, figures

EXACT = Error(relative=2e-7, max=2e-7, worst_row=2e-7, cosine=1.0)


def memory(peak, expected=None):
    return Memory(peak_bytes=peak, saved_bytes=None, expected_bytes=expected, method="made up")


def timed(variant, length, median, *, near=0.01, skill=None, world=None, flags=(), **more):
    """``near``: how far the interval's ends are, as a share of the median."""
    given = {"computes": "softmax", "node": ""}
    given = {name: more.pop(name, plain) for name, plain in given.items()}
    found = {**dict.fromkeys(figures([1.0]), median), "n": 9, "samples_s": []}
    if median is not None and 0 < median < float("inf"):
        found = figures(around(median, near))
    far = {"max": None, "worst_row": None, "cosine": None, "skill": skill}
    ranks = {"time_s": [], "peak_bytes": [], "sent_bytes": [], "backend": "gloo"}
    return Record(
        status=Status.MEASURED,
        variant=variant,
        problem=Problem(**{"q_len": length, "kv_len": length, **more}),
        time=Time(clock="host", stop="converged", flags=list(flags), **found),
        family="dense",
        distance=None if skill is None else Distance(relative=1 - skill, **far),
        ranks=Ranks(world=world, **ranks) if world else None,
        **given,
    )


def line(variant, times, **more):
    """``times``: seconds by length."""
    return [timed(variant, length, median, **more) for length, median in times.items()]


def untimed(variant, length, status="out_of_memory", **problem):
    return ended(variant, Problem(**{"q_len": length, "kv_len": length, **problem}), status)


def ended(variant, p, status):
    said = {"status": Status(status), "reason": "the reason", "computes": "softmax"}
    return Record(variant=variant, problem=p, **said)


def problem(length=1024, *, heads=4, width=64, mask="causal", phase="forward", **more):
    asked = {"q_len": 1 if phase == "decode" else length, "kv_len": length, "kv_heads": heads}
    wide = {"head_dim": width, "v_head_dim": width}
    return Problem(heads=heads, mask=Mask.parse(mask), phase=phase, **{**asked, **wide, **more})


def dense(p, once=5e-5, rate=3e10):
    """Seconds of something that computes all pairs."""
    return once + p.batch * p.heads * p.q_len * p.kv_len * 4 * p.head_dim / rate


def linear(p, once=3e-4, rate=2e10):
    """Seconds of something whose work grows with the tokens."""
    return once + p.batch * p.heads * p.kv_len * 4 * p.head_dim**2 / rate


def seen(variant, p, seconds, *, peak=None, computes="softmax", error=None, **more):
    """As a choice sees it. ``error``: of another operator, relative to softmax."""
    peak = peak or p.batch * p.heads * p.q_len * p.kv_len * p.item_bytes
    skill = None if error is None else 1 - error
    record = timed(variant, p.kv_len, seconds, computes=computes, skill=skill)
    known = {"problem": p, "memory": memory(peak), "error": {"forward": EXACT}, "setup_s": 1e-3}
    return record.with_(**{**known, **more})
