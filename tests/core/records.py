"""Records made by hand: small ones, and ones as large and as various as a sweep's."""

import random

import pytest

from attnbench.core.disk import RECORDS, StoreError
from attnbench.core.record import Determinism, Distance, Error, Memory, Record, Status, Time, Work
from attnbench.core.run_folder import RunFolder
from impls.problem import Problem
from tests.times import figures

ENDINGS = {
    Status.UNSUPPORTED: "numpy serves forward, decode, not train: it has no backward",
    Status.UNAVAILABLE: "needs triton, which has no wheel for this machine",
    Status.WRONG: "row 17 of head 3 is off by 0.25",
    Status.FAILED: "RuntimeError: expected a contiguous tensor",
}
OPTIONS = (
    {}, {"block": 128}, {"window": 64, "globals": 1}, {"seed": 0, "projection": "gaussian"},
    {"normalise": True}, {"normalise": "rows"}, {"gamma": 0.9, "shared": False},
    {"features": 256, "seed": 1},
)  # fmt: skip

SPENT = ("inputs", "setup", "warmup", "gate", "memory", "sampling", "audit", "own", "total")


def record(variant="a", length=8, **more):
    problem = Problem(q_len=length, kv_len=length).to_dict()
    return Record(**{"status": Status.MEASURED, "variant": variant, "problem": problem, **more})


def time_of(samples):
    audited = sorted(samples)[len(samples) // 2] * 1.01
    return Time(
        clock="host", stop="budget", audit_s=audited, audit_clock="process", **figures(samples)
    )


def timed(variant="timed", length=8, median=0.25):
    return record(variant, length, time=time_of([median]))


def sweep_like(number, seed=0):
    """So many records, as various as a sweep's, and as long: some 1.9 KB a line."""
    draw = random.Random(seed)

    def error():
        return Error(
            relative=draw.random() * 1e-7,
            max=draw.random() * 1e-6,
            cosine=1 - 1e-15,
            worst_row=draw.random() * 1e-6,
            ratio=draw.uniform(0.5, 2),
            worst_at=[0, 2, 17],
        )

    for cell in range(number):
        phase, options = draw.choice(("forward", "train", "decode")), draw.choice(OPTIONS)
        length = draw.choice((128, 512, 1024, 4096)) + cell // 40
        about = {
            "variant": f"variant{cell % 40}",
            "options": options,
            "family": "linear",
            "problem": Problem(
                q_len=1 if phase == "decode" else length, kv_len=length, phase=phase
            ).to_dict(),
            "computes": draw.choice(("softmax", "its own operator")),
            "run": "20261122-015809",
        }
        if draw.random() < 0.4:
            status = draw.choice(list(ENDINGS))
            yield Record(status=status, reason=ENDINGS[status], **about)
            continue
        gradients = ("dq", "dk", "dv") if phase == "train" else ()
        call = draw.uniform(1e-5, 1e-1)
        yield Record(
            status=Status.MEASURED,
            started="2026-11-22T01:59:07+00:00",
            **about,
            time=time_of([call * draw.uniform(0.9, 1.3) for _ in range(draw.randint(7, 60))]),
            memory=Memory(
                peak_bytes=draw.randrange(1 << 30),
                method="allocation events",
                saved_bytes=draw.randrange(1 << 30) if gradients else None,
                expected_bytes=None,
            ),
            error={name: error() for name in ("forward", *gradients)},
            distance=None
            if draw.random() < 0.5
            else Distance(
                relative=draw.random(),
                max=draw.random(),
                worst_row=draw.random(),
                cosine=draw.random(),
                skill=draw.random(),
            ),
            entropy=draw.random(),
            cost=Work(flops=draw.randrange(1 << 40), bytes=1 << 22),
            share_of_ceiling=draw.random(),
            setup_s=draw.random(),
            kernels=draw.sample(
                [
                    "aten::bmm",
                    "aten::baddbmm_",
                    "aten::mul",
                    "aten::cumsum",
                    "aten::sum",
                    "aten::clamp_min",
                    "aten::cat",
                    "aten::div_",
                    "aten::add",
                    "aten::matmul",
                    "aten::slice",
                ],
                draw.randint(1, 11),
            ),
            determinism=None if draw.random() < 0.9 else Determinism(repeats=True, batch=True),
            spent_s={name: draw.random() for name in SPENT},
        )


def refused(call, *words):
    """The sentence with which a call is refused, holding these words."""
    with pytest.raises(StoreError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence
    return sentence


def written(path, lines):
    """A run that holds these lines."""
    run = RunFolder.create(path, "box", {})
    (run.path / RECORDS).write_text("".join(line + "\n" for line in lines))
    run.close()
    return run.path
