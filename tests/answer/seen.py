"""Records as a choice sees them, of a made-up machine whose times have a closed form."""

from attnbench.core.record import Distance, Error, Memory, Record, Status, Time
from impls.masks import Mask
from impls.problem import Problem
from tests.times import figures

EXACT = 2e-7


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


def seen(variant, p, seconds, *, peak=None, off=0.01, computes="softmax", error=EXACT, **more):
    ends = {"low_s": seconds * (1 - off), "high_s": seconds * (1 + off)}
    time = Time(**{**figures([seconds]), **ends, "clock": "host", "stop": "budget"})
    peak = peak or p.batch * p.heads * p.q_len * p.kv_len * p.item_bytes
    memory = Memory(peak_bytes=peak, saved_bytes=None, expected_bytes=None, method="made up")
    far = {"max": error, "worst_row": error, "cosine": 1.0, "relative": error, "skill": 1 - error}
    exact = Error(relative=EXACT, max=EXACT, worst_row=EXACT, cosine=1.0)
    known = {"error": {"forward": exact}, "setup_s": 1e-3, "time": time, "memory": memory, **more}
    distance = None if computes == "softmax" else Distance(**far)
    return Record(
        status=Status.MEASURED,
        variant=variant,
        problem=p,
        computes=computes,
        distance=distance,
        **known,
    )


def ended(variant, p, status, reason="the reason", computes="softmax"):
    return Record(status=status, variant=variant, problem=p, reason=reason, computes=computes)
