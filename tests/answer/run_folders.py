"""What run folders are written of: headers, records with a time and without."""

import numpy as np

from attnbench.core.record import PROTOCOL, Memory, Record, Status, Time
from impls.problem import Problem
from tests.times import figures

HEADER = {
    "protocol": PROTOCOL, "seed": 0, "budget_s": 0.12, "tables": [],
    "machine": {"name": "box", "cpu": "Some CPU", "cores": 2, "gpus": [], "torch_cuda": None,
                "versions": {"torch": "2.13.0", "numpy": "2.4.6"}},
    "settings": {"threads": 1, "environment": {"OMP_NUM_THREADS": "1"}},
    "code": {"commit": "aaaa", "dirty": False},
}  # fmt: skip
GPU = {"name": "NVIDIA H100", "driver": "570.1", "capability": 9.0}


def samples(seed=0, n=40, spread=0.005, scale=1e-3):
    return list(scale * np.random.default_rng(seed).lognormal(0, spread, n))


def timed(variant="sdpa", taken=None, *, peak=1000, length=8, device="cpu", **more):
    taken = samples() if taken is None else taken
    of_none = {**figures([1.0]), "n": 0, "samples_s": []}
    time = Time(
        **{"clock": "host", "stop": "budget", **(figures(taken) if taken else of_none), **more}
    )
    memory = Memory(peak_bytes=peak, saved_bytes=None, expected_bytes=None, method="made up")
    problem = Problem(q_len=length, kv_len=length, device=device)
    return Record(
        status=Status.MEASURED, variant=variant, problem=problem.to_dict(), time=time, memory=memory
    )


def ended(status, variant="sdpa", reason="it was so"):
    problem = Problem(q_len=8, kv_len=8).to_dict()
    said = "" if status == "measured" else reason
    return Record(status=Status(status), variant=variant, problem=problem, reason=said)


def verdicts(found):
    return [c.comparison and c.comparison.verdict for c in found.cells]
