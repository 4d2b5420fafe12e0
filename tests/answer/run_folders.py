"""What run folders are written of: headers, records with a time and without."""

import numpy as np

from attnbench.core.record import PROTOCOL, Memory
from tests.answer import lines
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
    record = lines.timed(variant, length, 1.0, device=device)
    time = record.time.with_(**{**figures(samples() if taken is None else taken), **more})
    memory = Memory(peak_bytes=peak, saved_bytes=None, expected_bytes=None, method="made up")
    return record.with_(time=time, memory=memory)


def ended(status, variant="sdpa", reason="it was so"):
    return lines.untimed(variant, 8, status).with_(reason=reason)


def verdicts(found):
    return [c.comparison and c.comparison.verdict for c in found.cells]
