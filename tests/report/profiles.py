"""Profiles made by hand for whoever shows them."""

from attnbench.core.wire import plain
from impls.masks import Mask
from impls.problem import Problem

MIB = 2**20


def operator(name, seconds, calls=1, rate=None):
    some = {"share": 0.0, "flops": None, "flop_rate": rate}
    return {"name": f"aten::{name}", "self_s": seconds, "calls": calls, **some}


def phase(name, operators, outside=0.001):
    whole = sum(x["self_s"] for x in operators) + outside
    times = {"plain_s": whole, "profiled_s": whole, "outside_s": outside}
    return {"name": name, "of": "operators", **times, "operators": operators}


def memory(peak, saved):
    """As the memory meter has it, in MiB."""
    sizes = {"peak_bytes": peak * MIB, "saved_bytes": saved * MIB, "scores_bytes": 32 * MIB}
    return {**sizes, "flags": []}


def dense():
    """Scores, weights, and a gradient that peaks."""
    forward = phase("forward", [operator("bmm", 0.02, 2, 6e10), operator("_softmax", 0.01)])
    tiny = [operator(f"tiny{i}", 1e-6) for i in range(12)]
    about = {"variant": "dense", "computes": "softmax", "note": "as written"}
    about["problem"] = plain(Problem(phase="train", mask=Mask.parse("causal")))
    return {
        **about,
        "slug": "b1 h8/8 n1024 d64 f32 causal train",
        "phases": [forward, phase("backward", [operator("bmm", 0.04, 4, 5e10), *tiny])],
        "plain": {"clock": "host", "forward_s": 0.03, "backward_s": 0.04, "total_s": 0.07},
        "cost": {"flops": 10**9, "bytes": 10**6, "flop_rate": 1.4e10},
        "memory": memory(96, 32),
    }


def fused():
    """One operator, and next to no memory."""
    forward = phase("forward", [operator("_scaled_dot_product_flash_attention_for_cpu", 0.01)])
    backward = phase("backward", [operator("_scaled_dot_product_flash_backward", 0.02)])
    made = dense() | {"variant": "fused", "phases": [forward, backward], "note": ""}
    made["plain"] = {"clock": "host", "forward_s": 0.01, "backward_s": 0.02, "total_s": 0.03}
    return made | {"memory": memory(8, 2)}
