"""Profiles made by hand for whoever shows them."""

from impls.masks import Mask
from impls.problem import Problem

MIB = 2**20


def operator(name, seconds, calls=1, rate=None):
    some = {"share": 0.0, "flops": None, "flop_rate": rate, "bytes": None}
    return {"name": f"aten::{name}", "self_s": seconds, "calls": calls, **some}


def phase(name, operators, outside=0.001):
    whole = sum(x["self_s"] for x in operators) + outside
    times = {"plain_s": whole, "profiled_s": whole, "outside_s": outside}
    return {"name": name, "of": "operators", **times, "operators": operators}


def source(place, code, name, *, backward, there, most):
    sizes = {"peak_bytes": there * MIB, "most_bytes": most * MIB}
    where = {"place": place, "code": code, "operator": f"aten::{name}"}
    return {**where, "backward": backward, **sizes}


def dense():
    """Scores, weights, and a gradient that peaks."""
    softmax = "w = scores.softmax(-1) # $"
    forward = phase("forward", [operator("bmm", 0.02, 2, 6e10), operator("_softmax", 0.01)])
    tiny = [operator(f"tiny{i}", 1e-6) for i in range(12)]
    alive = [[32, 0, 0], [32, 32, 0], [0, 32, 0], [0, 32, 64], [0, 0, 4]]
    weights = {"backward": False, "there": 32, "most": 32}
    gradient = {"backward": True, "there": 64, "most": 64}
    about = {"variant": "dense", "computes": "softmax", "note": "as written", "caveats": []}
    about["problem"] = Problem(phase="train", mask=Mask.parse("causal")).to_dict()
    line = {"place": "dense.py:22", "code": "scores = q @ k", "gradient": "BmmBackward0"}
    line |= {"forward_share": 0.2, "backward_share": 0.5, "allocated_bytes": 1, "peak_bytes": 1}
    return {
        **about,
        "slug": "b1 h8/8 n1024 d64 f32 causal train",
        "phases": [forward, phase("backward", [operator("bmm", 0.04, 4, 5e10), *tiny])],
        "plain": {"clock": "host", "forward_s": 0.03, "backward_s": 0.04, "total_s": 0.07},
        "cost": {"flops": 10**9, "bytes": 10**6, "flop_rate": 1.4e10},
        "memory": {
            **{"peak_bytes": 96 * MIB, "peak_phase": "backward", "peak_ms": 60.0},
            **{"turn_bytes": 32 * MIB, "turn_ms": 30.0, "end_ms": 80.0},
            "scores_bytes": 32 * MIB,
            "at_ms": [5.0, 15.0, 25.0, 60.0, 70.0],
            "alive": [[mib * MIB for mib in row] for row in alive],
            "largest": {"bytes": 32 * MIB, "count": 3, "forward": 2},
            "sources": [
                source("dense.py:22", "scores = q @ k", "bmm", backward=False, there=0, most=32),
                source("dense.py:23", softmax, "_softmax", **weights),
                source("dense.py:23", softmax, "_softmax_backward_data", **gradient),
            ],
        },
        "lines": [line],
    }


def fused():
    """One operator, and next to no memory."""
    forward = phase("forward", [operator("_scaled_dot_product_flash_attention_for_cpu", 0.01)])
    backward = phase("backward", [operator("_scaled_dot_product_flash_backward", 0.02)])
    made = dense() | {"variant": "fused", "phases": [forward, backward], "note": ""}
    made["plain"] = {"clock": "host", "forward_s": 0.01, "backward_s": 0.02, "total_s": 0.03}
    place = ("sdpa.py:31", "return F.sdpa(q, k, v)", "zeros")
    made["memory"] |= {"at_ms": [5.0, 20.0], "alive": [[2 * MIB], [8 * MIB]], "end_ms": 30.0}
    made["memory"] |= {"peak_bytes": 8 * MIB, "peak_ms": 20.0}
    made["memory"] |= {"turn_bytes": 2 * MIB, "turn_ms": 10.0}
    made["memory"]["sources"] = [source(*place, backward=True, there=8, most=8)]
    return made
