"""Files and words that are not what they should be: a sentence, soon, and status 2."""

import json
import os

import numpy as np
import pytest

from tests.faults.campaign import TINY, Fault

DEEP = "[" * 100_000 + "]" * 100_000
DIGITS = "9" * 5_000
PROBLEM = {"batch": 1, "heads": 1, "q_len": 16, "kv_len": 16, "head_dim": 8, "phase": "forward"}
MASKED = ("run", "einsum", *TINY, "--mask", "dense:m.npy")
CAPTURED = ("run", "einsum", *TINY, "--inputs", "captured:x.npz")
RESUME = ("run", "--resume", "{run}", "--no-report")
REPORT, COMPARE = ("report", "{run}"), ("compare", "{run}", "{run}")


def record(**changes):
    """A run whose first record says something else."""
    return lambda place: place.records(
        lambda lines: [json.dumps({**json.loads(lines[0]), **changes}).encode() + b"\n", lines[1]]
    )


def file(name, content):
    return lambda place: place.file(name, content)


def of_run(name, content):
    """A file of the run's folder that holds something else; a FIFO or a folder in its place."""

    def prepare(place):
        (place.run / name).unlink(missing_ok=True)
        make = {"FIFO": os.mkfifo, "folder": os.mkdir}.get(content)
        path = place.run / name
        make(path) if make else place.file(str(path), content)

    return prepare


def fifo(name):
    return lambda place: os.mkfifo(place.here / name)


def shaped(kind, shape):
    """An .npy file whose header is made up."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text + bytes(64)


def objects(place):
    """Inputs of which one would run code when it is read."""
    good = {name: np.ones((1, 1, 16, 8), np.float32) for name in "qk"}
    np.savez(place.here / "x.npz", **good, v=np.array([{}] * 2, object))


RECORDS = {
    "a problem of 10^13 heads": {"problem": {**PROBLEM, "heads": 10**13}},
    "a variant that is a number": {"variant": 3},
}
WORDS = {
    "a length of 5,000 digits": ("run", "--seq", DIGITS),
    "heads of 10^13": ("run", "--heads", str(10**13), "--kv-heads", "7"),
    "a mask of many documents": ("run", "--mask", "document:" + ",".join(["1"] * 60_000)),
    "a line's end in a mask": ("run", "--mask", "dense:a\nb.npy"),
    "a table that is a device": ("list", "--table", "/dev/zero"),
}  # fmt: skip
MASKS = {
    "is huge": shaped("|b1", (16, 1 << 40)), "holds objects": shaped("|O", (16, 16)),
    "is a pickle": b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.",
}  # fmt: skip
FAULTS = [
    Fault("a header nested deep", RESUME, of_run("run.json", DEEP), (1, 2)),
    *(Fault(f"a record with {name}", COMPARE, record(**changes), (0, 1, 2))
      for name, changes in RECORDS.items()),
    Fault("a record nested deep", REPORT, of_run("records.jsonl", f"{DEEP}\n{{}}\n"), (1, 2)),
    *(Fault(f"{name} is a {kind}", REPORT, of_run(name, kind))
      for name, kind in (("run.json", "folder"), ("records.jsonl", "FIFO"))),
    Fault("the facts of the machine nested deep", COMPARE, of_run("../env.json", DEEP), (0, 1)),
    *(Fault(name, words) for name, words in WORDS.items()),
    *(Fault(f"a mask's file that {name}", MASKED, file("m.npy", data))
      for name, data in MASKS.items()),
    Fault("a mask's file that is a FIFO", MASKED, fifo("m.npy")),
    Fault("inputs that are a FIFO", CAPTURED, fifo("x.npz"), says="no file"),
    Fault("inputs that hold objects", CAPTURED, objects, says="can't be read"),
    Fault("calls nested deep", ("run", "--problems", "calls.json"), file("calls.json", DEEP)),
    Fault("a table whose row lacks fields", ("list", "--table", "t.py"),
          file("t.py", "from impls.spec import Variant\nROWS = [Variant()]\n"), (0, 2)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(bring_about, fault):
    bring_about(fault)
