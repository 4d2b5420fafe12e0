"""Variants that misbehave, in a table file of their own."""

import textwrap

import pytest

from attnbench.core.run_folder import RunFolder
from tests.sweep.build import HEADER

HOSTILE = """
import ctypes, os, sys, time
from pathlib import Path
from impls.spec import Variant

HERE = Path(__file__).parent

def honest(problem):
    from impls.dense.einsum import build
    return build(problem)

def exits(problem):
    def attend(q, k, v):
        print("my last words are xyzzy", file=sys.stderr, flush=True)
        os._exit(3)
    return attend

def exits_in_build(problem):
    os._exit(4)

def segfaults(problem):
    return lambda q, k, v: ctypes.string_at(0)

def hangs(problem):
    (HERE / "hangs.pid").write_text(str(os.getpid()))
    return lambda q, k, v: time.sleep(3600)

def chatters(problem):
    inner = honest(problem)
    def attend(q, k, v):
        os.write(1, b"out " * 5000)
        os.write(2, b"err " * 5000)
        print("{\\"record\\": 1}", flush=True)
        return inner(q, k, v)
    return attend

def closes(problem):
    def attend(q, k, v):
        os.closerange(3, 256)
        return honest(problem)(q, k, v)
    return attend

def raises(problem):
    raise RuntimeError("first line\\nsecond line")

def quits(problem):
    sys.exit(5)

def waits(problem):
    inner = honest(problem)
    (HERE / "waits.pid").write_text(str(os.getpid()))
    end = time.monotonic() + 60
    while (HERE / "hold").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return inner

def row(name, build):
    return Variant(name=name, title=name, family="hostile", computes="softmax", build=build)

ROWS = [row(f"h.{name}", f":{name}") for name in (
    "honest", "exits", "exits_in_build", "segfaults", "hangs", "chatters", "closes", "raises",
    "quits", "waits",
)]
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The table file; ``hold`` beside it makes ``h.waits`` wait."""
    file = tmp_path_factory.mktemp("hostile") / "hostile.py"
    file.write_text(textwrap.dedent(HOSTILE))
    return file


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path, "box", HEADER)
    yield made
    made.close()
