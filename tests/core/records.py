"""Records made by hand: small ones, and ones as large and as various as a sweep's."""

import random

import pytest

from attnbench.core.disk import RECORDS, StoreError
from attnbench.core.record import Distance, Error, Memory, Record, Status, Time, Work
from attnbench.core.run_folder import RunFolder
from impls.problem import Problem
from tests.times import figures

ENDINGS = {
    Status.UNSUPPORTED: "numpy serves forward, decode, not train: it has no backward",
    Status.WRONG: "row 17 of head 3 is off by 0.25",
}
OPTIONS = (
    {}, {"block": 128}, {"window": 64, "globals": 1}, {"normalise": True}, {"normalise": "rows"},
    {"gamma": 0.9, "shared": False},
)  # fmt: skip
SPENT = ("inputs", "setup", "warmup", "gate", "memory", "sampling", "audit", "own", "total")
KERNELS = [f"aten::{name}" for name in ("bmm", "mul", "cumsum", "clamp_min", "cat", "add", "slice")]


def record(variant="a", length=8, **more):
    problem = Problem(q_len=length, kv_len=length)
    return Record(**{"status": Status.MEASURED, "variant": variant, "problem": problem, **more})


def timed(variant="timed", length=8, median=0.25, samples=None):
    time = Time(clock="host", stop="budget", **figures(samples or [median]))
    return record(variant, length, time=time)


def sweep_like(number, seed=0):
    """So many records, as various as a sweep's, and as long: some 1.9 KB a line."""
    draw = random.Random(seed)
    for cell in range(number):
        phase = draw.choice(("forward", "train", "decode"))
        length = draw.choice((128, 512, 1024, 4096)) + cell // 40
        about = {
            "variant": f"variant{cell % 40}",
            "options": draw.choice(OPTIONS),
            "family": "linear",
            "problem": Problem(
                q_len=1 if phase == "decode" else length, kv_len=length, phase=phase
            ),
            "run": "20261122-015809",
        }
        if draw.random() < 0.4:
            status = draw.choice(list(ENDINGS))
            yield Record(status=status, reason=ENDINGS[status], **about)
            continue
        gradients = ("dq", "dk", "dv") if phase == "train" else ()
        call, share = draw.uniform(1e-5, 1e-1), draw.random()
        samples = [call * draw.uniform(0.9, 1.3) for _ in range(draw.randint(7, 60))]
        norms = {"relative": share, "max": share * 3, "cosine": 1 - 1e-15, "worst_row": share / 7}
        yield Record(
            status=Status.MEASURED,
            started="2026-11-22T01:59:07+00:00",
            **about,
            time=Time(clock="host", stop="budget", audit_s=call, **figures(samples)),
            memory=Memory(
                peak_bytes=draw.randrange(1 << 30),
                method="allocation events",
                saved_bytes=draw.randrange(1 << 30) if gradients else None,
                expected_bytes=None,
            ),
            error={
                name: Error(**norms, ratio=draw.random(), worst_at=[0, 2, 17])
                for name in ("forward", *gradients)
            },
            distance=Distance(**norms, skill=draw.random()) if share < 0.5 else None,
            entropy=draw.random(),
            cost=Work(flops=draw.randrange(1 << 40), bytes=1 << 22),
            share_of_ceiling=draw.random(),
            setup_s=draw.random(),
            kernels=draw.sample(KERNELS, draw.randint(1, len(KERNELS))),
            spent_s={name: draw.random() for name in SPENT},
        )


def refused(call, *words):
    """The sentence with which a call is refused, holding these words."""
    with pytest.raises(StoreError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert [word for word in words if word not in sentence] == [], sentence
    return sentence


def written(path, lines):
    """A run that holds these lines."""
    run = RunFolder.create(path, "box", {})
    (run.path / RECORDS).write_text("".join(line + "\n" for line in lines))
    run.close()
    return run.path
