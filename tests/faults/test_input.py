"""Files and words that are not what they should be: a sentence, soon, and status 2."""

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from impls.loading import load_file

campaign = load_file(Path(__file__).with_name("campaign.py"))
Fault, TINY = campaign.Fault, campaign.TINY
pytestmark = pytest.mark.slow

DEEP = "[" * 100_000 + "]" * 100_000
DIGITS = "9" * 5_000
PROBLEM = {"batch": 1, "heads": 1, "q_len": 16, "kv_len": 16, "head_dim": 8, "phase": "forward"}


def written(name, text):
    """A file of the run's folder that holds something else."""
    return lambda place: (place.run / name).write_text(text)


def header(**changes):
    """A run whose header says something else."""

    def prepare(place):
        said = json.loads((place.run / "run.json").read_text())
        (place.run / "run.json").write_text(json.dumps({**said, **changes}))

    return prepare


def grid(**changes):
    def prepare(place):
        said = json.loads((place.run / "run.json").read_text())
        header(grid={**said["grid"], **changes})(place)

    return prepare


def record(**changes):
    """A run whose first record says something else."""

    def prepare(place):
        first, *rest = (place.run / "records.jsonl").read_text().splitlines()
        changed = json.dumps({**json.loads(first), **changes})
        (place.run / "records.jsonl").write_text("\n".join([changed, *rest, ""]))

    return prepare


def instead(name):
    """A folder where a file should be."""

    def prepare(place):
        (place.run / name).unlink()
        (place.run / name).mkdir()

    return prepare


def array(header_text, size=64):
    """An .npy file whose header is made up."""
    text = header_text.encode() + b"\n"
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text + bytes(size)


def bomb(place):
    """Six MB that unfold to six GiB."""
    head = array("{'descr': '<f4', 'fortran_order': False, 'shape': (1610612736,), }", 0)
    with zipfile.ZipFile(
        place.here / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as packed:
        with packed.open("q.npy", "w", force_zip64=True) as member:
            member.write(head)
            for _ in range(64):
                member.write(bytes(1 << 24))
        for name in "kv":
            packed.writestr(f"{name}.npy", head)


def arrays(place, **changes):
    """Good inputs, but for what is changed."""
    good = {name: np.ones((1, 1, 16, 8), np.float32) for name in "qkv"}
    np.savez(place.here / "x.npz", **{**good, **changes})


def encrypted(place):
    arrays(place)
    data = bytearray((place.here / "x.npz").read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(mark, at + 1)) >= 0:
            data[at + offset] |= 1
    (place.here / "x.npz").write_bytes(data)


def packed(method):
    def prepare(place):
        arrays(place)
        data = bytearray((place.here / "x.npz").read_bytes())
        for mark, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
            at = -1
            while (at := data.find(mark, at + 1)) >= 0:
                data[at + offset] = method
        (place.here / "x.npz").write_bytes(data)

    return prepare


RUN = ("run", "einsum", *TINY)
CAPTURED = ("run", "einsum", *TINY, "--inputs", "captured:x.npz")
RESUME = ("run", "--resume", "{run}", "--no-report")
READERS = {
    "resumed": RESUME,
    "reported": ("report", "{run}"),
    "compared": ("compare", "{run}", "{run}"),
    "chosen from": ("choose", "--from", "{run}", "--seq", "16", "--phase", "forward"),
}
STRANGE = {
    "nested 100,000 deep": DEEP, "a number of 5,000 digits": f'{{"schema": {DIGITS}}}',
    "no JSON": "{", "empty": "", "a list": "[]", "not UTF-8": "\udcff",
}  # fmt: skip
HEADERS = {
    "tables that are a number": header(tables=3), "variants that are text": header(variants="x"),
    "variants that are numbers": header(variants=[1, 2]), "a machine that is a list":
    header(machine=[]), "a machine without a name": header(machine={"cpu": 1}),
    "settings that are a list": header(settings=[1]), "a grid that is a number": header(grid=7),
    "a budget of NaN": header(budget_s=float("nan")), "a budget without end":
    header(budget_s=float("inf")), "code that is text": header(code="abc"),
    "noise that is text": header(noise="loud"), "a seed that is text": header(seed="x"),
    "problems that are numbers": header(problems=[1]), "heads of 10^13": grid(heads=[10**13]),
    "heads that are text": grid(heads=["many"]), "a length of 5,000 digits": grid(seq=[DIGITS]),
    "a mask that is a number": grid(mask=[3]), "a device that is a list": grid(device=["cpu"]),
}  # fmt: skip
RECORDS = {
    "a problem of 10^13 heads": record(problem={**PROBLEM, "heads": 10**13}),
    "a problem that is a list": record(problem=[1]), "a time that is text": record(time="fast"),
    "a variant that is a number": record(variant=3), "options that are a list":
    record(options=[1]), "an unknown status": record(status="splendid"),
    "a schema of the future": record(schema=10**6),
}  # fmt: skip


def word(name, *words, **more):
    return Fault(name=name, words=words, makes=(), **more)


FAULTS = [
    *(
        Fault(name=f"a header that is {name}, {how}", words=words, status=(1, 2),
              prepare=lambda place, text=text: (place.run / "run.json").write_bytes(
                  text.encode(errors="surrogateescape")))
        for name, text in STRANGE.items()
        for how, words in READERS.items()
        if how in ("resumed", "reported") or name.startswith("nested")
    ),
    *(
        Fault(name=f"a record nested 100,000 deep, {how}", words=words, status=(1, 2),
              prepare=written("records.jsonl", f"{DEEP}\n{{}}\n"))
        for how, words in READERS.items()
    ),
    Fault(name="a record with a number of 5,000 digits", words=RESUME, status=(1, 2),
          prepare=written("records.jsonl", f'{{"schema": {DIGITS}}}\n{{}}\n')),
    *(Fault(name=f"a header with {name}", words=RESUME, prepare=prepare, says="attnbench: ")
      for name, prepare in HEADERS.items()),
    *(Fault(name=f"a header with {name}, reported", words=("report", "{run}"), status=(0, 1, 2),
            prepare=HEADERS[name])
      for name in ("variants that are numbers", "a machine without a name", "heads of 10^13")),
    *(Fault(name=f"a record with {name}", words=("compare", "{run}", "{run}"), status=(0, 1, 2),
            prepare=prepare) for name, prepare in RECORDS.items()),
    Fault(name="run.json is a folder", words=RESUME, prepare=instead("run.json")),
    Fault(name="records.jsonl is a folder", words=RESUME, prepare=instead("records.jsonl")),
    *(Fault(name=f"{name} is a FIFO", words=("report", "{run}"), says="no file",
            prepare=lambda place, name=name: (
                (place.run / name).unlink(), os.mkfifo(place.run / name)))
      for name in ("run.json", "records.jsonl")),
    Fault(name="records.jsonl is a folder, reported", words=("report", "{run}"),
          prepare=instead("records.jsonl")),
    Fault(name="the facts of the machine nested 100,000 deep", words=("compare", "{run}", "{run}"),
          prepare=lambda place: (place.run.parent / "env.json").write_text(DEEP), status=(0, 1)),
    # words
    word("a length of 5,000 digits", "run", "--seq", DIGITS),
    word("a batch of 5,000 digits", "run", "--batch", DIGITS),
    word("heads of 10^13", "run", "--heads", str(10**13), "--kv-heads", "7"),
    word("a batch of 10^13", "run", "--batch", str(10**13)),
    word("a budget of NaN", "run", "--budget", "nan"),
    word("a limit of NaN", "run", "--limit", "nans"),
    word("a window beyond 64 bits", "run", "--mask", "window:10000000000000000000,0"),
    word("a prefix beyond 64 bits", "run", "--mask", f"prefix:{10**30}"),
    word("a mask of 100,000 documents", "run", "--mask", "document:" + ",".join(["1"] * 60_000)),
    word("a name of 100,000 characters", "run", "x" * 100_000),
    word("a core in a core, 10,000 deep", "run", "mha?core=" + "mha(core=" * 10_000),
    word("a git reference of 300 characters", "compare", "a" * 300, "HEAD"),
    word("a run's name of 5,000 characters", "report", "x" * 5_000),
    word("a NUL in a mask's text", "run", "--mask", "dense:a\nb.npy"),
    word("a table that is a folder", "list", "--table", "."),
    word("a table that is a device", "list", "--table", "/dev/zero"),
    # masks and inputs
    *(
        Fault(name=f"a mask's file that {name}", words=("run", "einsum", *TINY, "--mask",
              "dense:m.npy"), prepare=lambda place, data=data: place.file("m.npy", data))
        for name, data in {
            "is nested deep": array("(" * 5_000 + ")" * 5_000),
            "claims to be huge": array("{'descr': '|b1', 'fortran_order': False, "
                                       "'shape': (16, 1099511627776), }"),
            "holds objects": array("{'descr': '|O', 'fortran_order': False, 'shape': (16, 16), }"),
            "has less than none": array("{'descr': '|b1', 'fortran_order': False, "
                                        "'shape': (-16, 16), }"),
            "is a pickle": b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.",
        }.items()
    ),
    Fault(name="a mask's file that is a FIFO", words=("run", "einsum", *TINY, "--mask",
          "dense:m.npy"), prepare=lambda place: os.mkfifo(place.here / "m.npy")),
    Fault(name="inputs that are a FIFO", words=CAPTURED, says="no file",
          prepare=lambda place: os.mkfifo(place.here / "x.npz")),
    Fault(name="inputs that are encrypted", words=CAPTURED, prepare=encrypted),
    Fault(name="inputs of an unknown compression", words=CAPTURED, prepare=packed(97)),
    Fault(name="inputs that unfold to gigabytes", words=CAPTURED, prepare=bomb, says="larger"),
    Fault(name="inputs that are broken", words=CAPTURED,
          prepare=lambda place: place.file("x.npz", b"PK\x03\x04" + bytes(100))),
    Fault(name="inputs that hold objects", words=CAPTURED, says="can't be read",
          prepare=lambda place: arrays(place, v=np.array([{}] * 2, object))),
    Fault(name="calls that are a FIFO", words=("run", "--problems", "calls.json"), within_s=10,
          prepare=lambda place: os.mkfifo(place.here / "calls.json")),
    *(Fault(name=f"calls that are {name}", words=("run", "--problems", "calls.json"),
            prepare=lambda place, text=text: place.file("calls.json", text.encode(
                errors="surrogateescape")))
      for name, text in STRANGE.items()),
    *(Fault(name=f"a table whose row {name}", words=("list", "--table", "t.py"), status=(0, 2),
            says=says, prepare=lambda place, row=row: place.file(
                "t.py", f"from impls.spec import Variant\nROWS = [{row}]\n"))
      for name, (row, says) in {
          "lacks fields": ("Variant()", "missing"), "is a dict": ("{'name': 'x'}", "Variant"),
          "has a number for a name": ("Variant(name=3, title='', family='x', build=':b')", ""),
          "holds what is no data": ("Variant(name='x', title=object(), family='x', "
                                    "build=':b', computes='softmax')", "")}.items()),
    Fault(name="word vectors that are a FIFO", within_s=10, prepare=lambda place: os.mkfifo(
        place.here / "v.txt"), words=("show", "einsum", "--text", "a b", "--embeddings", "v.txt")),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(bring_about, fault):
    bring_about(fault)
