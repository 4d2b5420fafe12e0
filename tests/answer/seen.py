"""Records as a choice sees them, of a made-up machine whose times have a closed form."""

from attnbench.core.record import Error, Memory, Record
from impls.masks import Mask
from impls.problem import Problem
from tests.answer.lines import timed

EXACT = Error(relative=2e-7, max=2e-7, worst_row=2e-7, cosine=1.0)


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
    """``error``: of another operator, relative to softmax."""
    peak = peak or p.batch * p.heads * p.q_len * p.kv_len * p.item_bytes
    memory = Memory(peak_bytes=peak, saved_bytes=None, expected_bytes=None, method="made up")
    skill = None if error is None else 1 - error
    record = timed(variant, p.kv_len, seconds, computes=computes, skill=skill)
    known = {"problem": p, "memory": memory, "error": {"forward": EXACT}, "setup_s": 1e-3}
    return record.with_(**{**known, **more})


def ended(variant, p, status):
    return Record(
        status=status, variant=variant, problem=p, reason="the reason", computes="softmax"
    )
