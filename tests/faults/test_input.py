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


def told(**changes):
    """A run whose header says something else."""
    return lambda place: place.told(**changes)


def record(**changes):
    """A run whose first record says something else."""
    return lambda place: place.records(
        lambda lines: [json.dumps({**json.loads(lines[0]), **changes}).encode() + b"\n", lines[1]]
    )


def file(name, content):
    return lambda place: place.file(name, content)


def of_run(name, content):
    """A file of the run's folder that holds something else, or a folder in its place."""

    def prepare(place):
        (place.run / name).unlink(missing_ok=True)
        path = place.run / name
        path.mkdir() if content == "folder" else place.file(str(path), content)

    return prepare


def fifo(name):
    return lambda place: os.mkfifo(place.here / name)


def array(described, size=64):
    """An .npy file whose header is made up."""
    text = described.encode() + b"\n"
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text + bytes(size)


def shaped(kind, shape):
    return array(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}")


def arrays(**changes):
    """Good inputs but for what is changed."""

    def prepare(place):
        good = {name: np.ones((1, 1, 16, 8), np.float32) for name in "qkv"}
        np.savez(place.here / "x.npz", **{**good, **changes})

    return prepare


STRANGE = {
    "nested 100,000 deep": DEEP, "of 5,000 digits": f'{{"schema": {DIGITS}}}', "no JSON": "{",
    "not UTF-8": "\udcff",
}  # fmt: skip
HEADERS = {
    "tables that are a number": {"tables": 3}, "a machine without a name": {"machine": {"cpu": 1}},
    "problems that are numbers": {"problems": [1]},
    "variants that are text": {"variants": "x"}, "settings that are a list": {"settings": [1]},
    "code that is text": {"code": "abc"},
    "a device that is a list": {"grid__device": ["cpu"]},
    "heads of 10^13": {"grid__heads": [10**13]}, "a mask that is a number": {"grid__mask": [3]},
}  # fmt: skip
RECORDS = {
    "a problem of 10^13 heads": {"problem": {**PROBLEM, "heads": 10**13}},
    "a variant that is a number": {"variant": 3},
    "a time that is text": {"time": "fast"},
    "options that are a list": {"options": [1]},
    "an unknown status": {"status": "splendid"},
}
WORDS = {
    "a length of 5,000 digits": ("run", "--seq", DIGITS),
    "heads of 10^13": ("run", "--heads", str(10**13), "--kv-heads", "7"),
    "a mask of many documents": ("run", "--mask", "document:" + ",".join(["1"] * 60_000)),
    "a budget of NaN": ("run", "--budget", "nan"), "a limit of NaN": ("run", "--limit", "nans"),
    "a window beyond 64 bits": ("run", "--mask", "window:10000000000000000000,0"),
    "a git reference of 300 characters": ("compare", "a" * 300, "HEAD"),
    "a run's name of 5,000 characters": ("report", "x" * 5_000),
    "a name of 100,000 characters": ("run", "x" * 100_000),
    "a range of 5,000 digits": ("crossover", "sdpa", "matmul", "--seq", f"128,{DIGITS}"),
    "a core in a core, 10,000 deep": ("run", "mha?core=" + "mha(core=" * 10_000),
    "a line's end in a mask": ("run", "--mask", "dense:a\nb.npy"),
    "a table that is a device": ("list", "--table", "/dev/zero"),
}  # fmt: skip
MASKS = {
    "is nested deep": array("(" * 5_000 + ")" * 5_000), "is huge": shaped("|b1", (16, 1 << 40)),
    "holds objects": shaped("|O", (16, 16)), "has less than none": shaped("|b1", (-16, 16)),
    "is a pickle": b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.",
}  # fmt: skip
FAULTS = [
    *(Fault(f"a header that is {name}", RESUME, of_run("run.json", text), (1, 2))
      for name, text in STRANGE.items()),
    *(Fault(f"a header with {name}", RESUME, told(**changes), says="attnbench: ")
      for name, changes in HEADERS.items()),
    *(Fault(f"a record with {name}", COMPARE, record(**changes), (0, 1, 2))
      for name, changes in RECORDS.items()),
    Fault("a record nested deep", REPORT, of_run("records.jsonl", f"{DEEP}\n{{}}\n"), (1, 2)),
    Fault("a header that is a folder", REPORT, of_run("run.json", "folder")),
    Fault("the facts of the machine nested deep", COMPARE, of_run("../env.json", DEEP), (0, 1)),
    *(Fault(name, words) for name, words in WORDS.items()),
    *(Fault(f"a mask's file that {name}", MASKED, file("m.npy", data))
      for name, data in MASKS.items()),
    Fault("a mask's file that is a FIFO", MASKED, fifo("m.npy")),
    Fault("inputs that are a FIFO", CAPTURED, fifo("x.npz"), says="no file"),
    Fault("inputs that hold objects", CAPTURED, arrays(v=np.array([{}] * 2, object)),
          says="can't be read"),
    Fault("inputs that are complex", CAPTURED, arrays(q=np.ones((1, 1, 16, 8), complex)),
          says="complex128, no numbers"),
    Fault("calls that are a FIFO", ("run", "--problems", "calls.json"), fifo("calls.json")),
    *(Fault(f"calls that are {name}", ("run", "--problems", "calls.json"), file("calls.json", text))
      for name, text in STRANGE.items()),
    Fault("a table whose row lacks fields", ("list", "--table", "t.py"),
          file("t.py", "from impls.spec import Variant\nROWS = [Variant()]\n"), (0, 2)),
    Fault("word vectors that are a FIFO", ("show", "einsum", "--text", "a b", "--embeddings", "v"),
          fifo("v")),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(bring_about, fault):
    bring_about(fault)
