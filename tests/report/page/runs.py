"""Run folders made by hand: a header, records of invented times, and what may be amiss."""

import json
from pathlib import Path

from attnbench.core.record import (
    PROTOCOL,
    SCHEMA,
    Distance,
    Error,
    Memory,
    Record,
    Status,
    Time,
    Work,
)
from impls.masks import Mask
from impls.problem import Problem
from tests.times import around, figures

PROBLEM = Problem(heads=2, kv_heads=2, q_len=64, kv_len=64)
MACHINE = {
    "name": "slow-box-2c", "cpu": "Slow Box", "cores": 2, "memory_bytes": 25 << 30,
    "system": "Linux 6 x86_64", "python": "3.11.7", "torch_cuda": None, "gpus": [],
    "versions": {"torch": "2.13.0+cpu", "numpy": "2.4.6"}, "compiler": "/usr/bin/g++",
    "devices": ["cpu"],
}  # fmt: skip
HEADER = {
    "run": "20260102-030405", "schema": SCHEMA, "protocol": PROTOCOL, "seed": 7, "budget_s": 0.1,
    "machine": MACHINE, "tables": [], "command": "attnbench run --seq 64,128,256",
    "settings": {"threads": 1, "tf32": False, "environment": {"OMP_NUM_THREADS": "1"}},
    "code": {"commit": "0123abcd" * 5, "dirty": False}, "started": "2026-01-02T03:04:05+00:00",
    "noise": [{"call_s": 1e-3, "floor": 0.004}],
    "selfcheck": {"line": "ruler self-check: 74/74 on this machine", "date": "2026-01-01T00:00:00"},
    "ceilings": {"flops": {"float32": 1e11}, "copy": {"262144": 8e10, "268435456": 2e10}},
}  # fmt: skip
CAUSAL = Mask.parse("causal")
LENGTHS = (64, 128, 256)
MARKUP = "<img src=x onerror=alert(1)>|`*_&{{7*7}}\\end{table}"
FAMILIES = ("dense", "sparse", "lowrank", "linear", "layers", "parallel", "external")


def at(length, **more):
    return PROBLEM.with_(q_len=length, kv_len=length, **more)


def timed(variant, median, problem=PROBLEM, *, flags=(), spread=0.02, **more):
    time = Time(clock="host", stop="budget", flags=list(flags), **figures(around(median, spread)))
    n = problem.kv_len
    given = {
        "memory": Memory(
            peak_bytes=n << 12, saved_bytes=n << 10, expected_bytes=n << 12, method="profiler"
        ),
        "error": {"forward": Error(relative=2e-7, max=1e-6, worst_row=3e-7, cosine=1.0, ratio=1.2)},
        "cost": Work(flops=512 * n * n, bytes=2048 * n),
        "share_of_ceiling": 0.42,
        "computes": "softmax",
        "family": "dense",
        "run": HEADER["run"],
        "canary_s": 1e-3,
        **more,
    }
    return Record(status=Status.MEASURED, variant=variant, problem=problem, time=time, **given)


def untimed(variant, status, reason="it has its reason", problem=PROBLEM, **more):
    given = {"computes": "softmax", "family": "dense", **more}
    return Record(status=status, reason=reason, variant=variant, problem=problem, **given)


def far(skill):
    return Distance(relative=1 - skill, max=1.0, worst_row=1.0, cosine=0.9, skill=skill)


def small():
    """Two exact variants that change places, one faster and inexact, and what has no time."""
    found = []
    for phase, slow in (("forward", 1.0), ("train", 3.0)):
        for n in LENGTHS:
            problem = at(n, phase=phase, mask=CAUSAL)
            found += [
                timed("sdpa", slow * 1e-3 * n / 64, problem),
                timed("matmul", slow * 0.8e-3 * (n / 64) ** 2, problem),
                timed(
                    "window?size=8",
                    slow * 2e-4 * n / 64,
                    problem,
                    family="sparse",
                    computes="softmax on its own pattern",
                    distance=far(0.7),
                ),
                timed(
                    MARKUP,
                    slow * 1e-4 * n / 64,
                    problem,
                    family="linear",
                    computes="its own operator",
                    distance=far(0.1),
                ),
                untimed(
                    "sdpa.efficient",
                    "unavailable",
                    "sdpa.efficient runs on cuda; this machine has cpu",
                    problem,
                    remedy="run it on a machine with a GPU",
                ),
            ]
    long = at(256, phase="train", mask=CAUSAL)
    found.append(untimed("einsum", "out_of_memory", f"{MARKUP} took 9 GiB", long))
    return found


PARTS = {"train": ("forward", "dq", "dk", "dv")} | dict.fromkeys(
    ("forward", "backward", "decode"), ("forward",)
)
KERNELS = ["aten::bmm", "aten::_softmax", "aten::copy_", "aten::masked_fill_", "aten::mul"]


def rough(number):
    """An error of as many digits as a true one."""
    some = 1e-7 * (1 + number % 13 / 7)
    return Error(
        relative=some,
        max=some * 1.7,
        worst_row=some / 0.3,
        cosine=1 - some,
        ratio=1 + some / 3e-7,
        worst_at=[0, number % 4, number % 99],
    )


def many(variants, lengths, phases=("train",)):
    """A run of any size: every second variant is exact."""
    found = []
    for phase in phases:
        for n in lengths:
            for number in range(variants):
                problem = at(n, phase=phase, mask=CAUSAL)
                exact = number % 2 == 0
                power = 2 if number % 3 else 1.2
                found.append(
                    timed(
                        "sdpa" if number == 0 else f"variant{number}?block={number}",
                        1e-6 * (1 + number % 17 / 7) * n**power,
                        problem,
                        family=FAMILIES[number % 7],
                        computes="softmax" if exact else "approximates softmax",
                        distance=None if exact else far(0.3 + 0.6 * number / variants),
                        error={part: rough(number * n) for part in PARTS[phase]},
                        kernels=KERNELS,
                        spent_s=dict.fromkeys(("build", "gate", "time"), 1 / (number + n)),
                        setup_s=1 / (number + 3),
                        entropy=1 / (n + 0.3),
                        seed=n,
                        started="2026-01-02T03:04:05+00:00",
                        node="slow-box-2c-0a1b2c",
                    )
                )
    return found


def written(folder: Path, records, *, tail=b"", **header):
    """The run's folder."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({**HEADER, "run": folder.name, **header}))
    lines = "".join(r if isinstance(r, str) else r.line() + "\n" for r in records)
    (folder / "records.jsonl").write_bytes(lines.encode() + tail)
    return folder


def changed(record, **values):
    """A line of what no attnbench writes: ``time__median_s=NAN``."""
    told = record.to_dict()
    for path, value in values.items():
        *way, last = path.split("__")
        part = told
        for name in way:
            part = part[name]
        part[last] = value
    return json.dumps(told) + "\n"
