"""Records and runs made by hand for whoever shows them, and what a figure says."""

import json
from itertools import product
from pathlib import Path

from attnbench.core import record as form
from attnbench.core.record import Distance, Error, Memory, Record, Status, Time, Work
from attnbench.core.wire import plain
from attnbench.features.report import contents
from attnbench.report.figures.style import looks
from attnbench.report.scenes import ReportRun, gather, scenes
from impls.masks import Mask
from impls.problem import Problem
from tests.times import around, figures

PROBLEM = Problem(heads=2, kv_heads=2, q_len=64, kv_len=64)
MACHINE = {
    "name": "slow-box-2c",
    "cpu": "Slow Box",
    "cores": 2,
    "memory_bytes": 25 << 30,
    "system": "Linux 6 x86_64",
    "python": "3.11.7",
    "torch_cuda": None,
    "gpus": [],
    "versions": {"torch": "2.13.0+cpu", "numpy": "2.4.6"},
    "compiler": "/usr/bin/g++",
    "devices": ["cpu"],
}
HEADER = {
    "run": "20260102-030405",
    "schema": form.SCHEMA,
    "protocol": form.PROTOCOL,
    "seed": 7,
    "budget_s": 0.1,
    "machine": MACHINE,
    "tables": [],
    "command": "attnbench run --seq 64,128,256",
    "settings": {"threads": 1, "tf32": False, "environment": {"OMP_NUM_THREADS": "1"}},
    "code": {"commit": "0123abcd" * 5, "dirty": False},
    "started": "2026-01-02T03:04:05+00:00",
    "noise": [{"call_s": 1e-3, "floor": 0.004}],
    "selfcheck": {"line": "ruler self-check: 74/74 on this machine", "date": "2026-01-01T00:00:00"},
    "ceilings": {"flops": {"float32": 1e11}, "copy": {"262144": 8e10, "268435456": 2e10}},
}
CAUSAL = Mask.parse("causal")
LENGTHS = (64, 128, 256)
MARKUP = "<img src=x onerror=alert(1)>|`*_&{{7*7}}\\end{table}"
FAMILIES = ("dense", "sparse", "lowrank", "linear", "layers", "parallel", "external")
PATTERN, NEAR, OWN = "softmax on its own pattern", "approximates softmax", "its own operator"


def at(length, **more):
    return PROBLEM.with_(q_len=length, kv_len=length, **more)


def memory(peak, saved=None, expected=None):
    return Memory(peak_bytes=peak, saved_bytes=saved, expected_bytes=expected, method="profiler")


def error(relative, ratio=1.2):
    return {"forward": Error(relative=relative, max=1e-6, worst_row=3e-7, cosine=1.0, ratio=ratio)}


def timed(variant, median=1e-3, problem=PROBLEM, *, flags=(), spread=0.02, **more):
    problem = at(problem) if isinstance(problem, int) else problem
    time = Time(clock="host", stop="budget", flags=list(flags), **figures(around(median, spread)))
    n = problem.kv_len
    given = {"memory": memory(n << 12, n << 10, n << 12), "error": error(2e-7), "canary_s": 1e-3}
    given |= {"cost": Work(flops=512 * n * n, bytes=2048 * n), "share_of_ceiling": 0.42}
    given |= {"computes": "softmax", "family": "dense", "run": HEADER["run"], **more}
    return Record(status=Status.MEASURED, variant=variant, problem=problem, time=time, **given)


def other(variant, median=1e-3, problem=PROBLEM, distance=0.5, skill=0.6, **more):
    """A record of an operator of its own."""
    given = {"family": "linear", "computes": OWN, "distance": far(skill, distance), **more}
    return timed(variant, median, problem, **given)


def untimed(variant, status, reason="it has its reason", problem=PROBLEM, **more):
    problem = at(problem) if isinstance(problem, int) else problem
    given = {"computes": "softmax", "family": "dense", **more}
    return Record(status=status, reason=reason, variant=variant, problem=problem, **given)


def far(skill, relative=None):
    relative = 1 - skill if relative is None else relative
    return Distance(relative=relative, max=1.0, worst_row=1.0, cosine=0.9, skill=skill)


def small():
    """Two exact variants that change places, one faster and inexact, and what has no time."""
    found, remedy = [], "run it on a machine with a GPU"
    no = ("sdpa.efficient", "unavailable", "sdpa.efficient runs on cuda; this machine has cpu")
    for phase, slow in (("forward", 1.0), ("train", 3.0)):
        for n in LENGTHS:
            problem, own = at(n, phase=phase, mask=CAUSAL), {"computes": OWN, "distance": far(0.1)}
            near = {"family": "sparse", "computes": PATTERN, "distance": far(0.7)}
            found += [
                timed("sdpa", slow * 1e-3 * n / 64, problem),
                timed("matmul", slow * 0.8e-3 * (n / 64) ** 2, problem),
                timed("window?size=8", slow * 2e-4 * n / 64, problem, **near),
                timed(MARKUP, slow * 1e-4 * n / 64, problem, family="linear", **own),
                untimed(*no, problem, remedy=remedy),
            ]
    long = at(256, phase="train", mask=CAUSAL)
    found.append(untimed("einsum", "out_of_memory", f"{MARKUP} took 9 GiB", long))
    return found


def many(variants, lengths, phases=("train",)):
    """A run of any size: every second variant is exact; records as long as true ones."""
    found = []
    for phase, n, number in product(phases, lengths, range(variants)):
        parts = ("forward", "dq", "dk", "dv") if phase == "train" else ("forward",)
        given = {"family": FAMILIES[number % 7], "computes": NEAR if number % 2 else "softmax"}
        given |= {"distance": far(0.3 + 0.6 * number / variants)} if number % 2 else {}
        given |= {"error": dict.fromkeys(parts, error(1e-7 * (1 + number / 7))["forward"])}
        given |= {"kernels": ["aten::bmm", "aten::_softmax", "aten::copy_", "aten::mul"]}
        name = "sdpa" if number == 0 else f"variant{number}?block={number}"
        seconds = 1e-6 * (1 + number % 17 / 7) * n ** (2 if number % 3 else 1.2)
        found.append(timed(name, seconds, at(n, phase=phase, mask=CAUSAL), **given))
    return found


def crowd(count, lengths=(512, 1024, 2048, 4096)):
    """Variants of every sort in a bunch: long names, markup, some end early, one does nothing."""
    found = []
    for number, n in product(range(count), lengths):
        if number % 11 == 5 and n == lengths[-1]:
            continue
        name = f"variant.{number}" + "?features=128" * (number % 7 == 0)
        kind = ("softmax", "softmax", NEAR, OWN)[number % 4]
        given = {"computes": kind, "family": (*FAMILIES, "<i>theirs" * 9)[number % 8]}
        given["distance"] = far(0.5, 0.2 + number / 50) if kind != "softmax" else None
        given["memory"] = memory((1 + number**2) * n * 300, n * 90 * (number % 3), n * 310)
        seconds = 1e-8 * n**2 * (1 + number % 9 / 5) / (1 + 3 * (kind != "softmax"))
        found.append(timed(MARKUP + "x" * 90 if number == 3 else name, seconds, at(n), **given))
    return found


def written(folder: Path, records, *, tail=b"", **header):
    """The run's folder."""
    folder.mkdir(parents=True)
    header = {**HEADER, "run": folder.name, **header}
    (folder / "run.json").write_text(json.dumps(header))
    run = header["run"]
    lines = "".join(r if isinstance(r, str) else r.with_(run=run).line() + "\n" for r in records)
    (folder / "records.jsonl").write_bytes(lines.encode() + tail)
    return folder


def gathered(folder, *records, **header):
    """Runs of a folder as they are read, one of each of these."""
    folders = [folder / "m" / f"run{n}" for n in range(len(records))]
    both = zip(folders, records, strict=True)
    return gather([written(path, some, **header) for path, some in both])


def filled(folder, *records, **header):
    """The contents of a report of these runs."""
    found = gathered(folder, *records, **header)
    return contents.contents_of(found, folder / "m" / "run0" / "report")


def changed(record, **values):
    """A line of what no attnbench writes: ``time__median_s=NAN``."""
    told = plain(record)
    for path, value in values.items():
        *way, last = path.split("__")
        part = told
        for name in way:
            part = part[name]
        part[last] = value
    return json.dumps(told) + "\n"


def ran(records, number=0, **header):
    """A run as it is read."""
    header = {**HEADER, "run": f"run{number}", "machine": {"name": "box"}, **header}
    path, lines = Path(f"results/box/run{number}"), range(1, len(records) + 1)
    return ReportRun(number, path, header, list(records), lines)


def staged(*records, **header):
    """The scenes of a run of these records, and their looks."""
    return scenes([ran(records, **header)]), looks(records)
