"""What a variant may do wrong, and how its cell should end; between every two stands ``honest``."""

import atexit
import ctypes
import mmap
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from impls.spec import Variant

MARK = "ATTNBENCH_FAULT"
"""In the environment of everything that a sweep starts."""


def honest(problem, n=0):
    """What is right, if the process is as one that was just started; ``n`` tells rows apart."""
    assert Path.cwd().is_dir()
    assert os.environ[MARK]
    assert sys.stdin and sys.stdout and sys.stderr
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert [t.name for t in threading.enumerate()] == ["MainThread"]
    for who, whose in ((os.getpid(), ""), (os.getppid(), f"{os.getpid()} ")):
        assert Path(f"/proc/{who}/task/{who}/children").read_text() == whose
    mmap.mmap(-1, 512 << 20).close()
    return right(problem)


def right(problem):
    from impls.dense.einsum import build

    return build(problem)


def in_a_call(problem, deed):
    """What is right, but for a deed when it is called the first time."""
    inner, done = right(problem), []

    def attend(q, k, v):
        if not done:
            done.append(True)
            deed()
        return inner(q, k, v)

    return attend


def then(problem, *deeds):
    for deed in deeds:
        deed()
    return right(problem)


def fail(error):
    raise error


def noted(problem, note):
    inner = right(problem)

    def attend(q, k, v):
        return inner(q, k, v)

    attend.note = note
    return attend


def untouchable():
    def no(self, *_):
        raise RuntimeError("not even this")

    names = ("getattribute", "repr", "str", "eq", "bool", "len", "iter", "float", "array", "hash")
    return type("Monster", (), {f"__{name}__": no for name in names})()


def chatter():
    os.write(1, b"out " * 5000)
    os.write(2, b"err " * 5000)
    print('{"record": 1}', flush=True)


def stand_in_a_folder_that_is_gone():
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)  # noqa: PTH106


def ignore_every_signal():
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)


def exit_loudly():
    print("my last words are xyzzy", file=sys.stderr, flush=True)
    os._exit(3)


def stop_its_keeper():
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(600)


def shout_for_ever():
    while True:
        os.write(2, b"x" * (1 << 16))


NOISE = "\ud800\x00 \x1b[2J\x9b31m\u202e\udfff\nsecond line"
HUNG = "still running"
FAULTS = {
    "chatters": ("measured", "", lambda p: in_a_call(p, chatter)),
    "raises": ("failed", ": first line", lambda p: fail(RuntimeError("first line\nsecond line"))),
    "message_with_surrogates_and_nulls": ("failed", "KeyError", lambda p: fail(KeyError(NOISE))),
    "exits": ("crashed", "status 3", lambda p: in_a_call(p, exit_loudly)),
    "note_that_raises": (
        "failed", "its note", lambda p: noted(p, lambda: fail(OSError("its note")))),
    "gives_nan": ("wrong", "finite", lambda p: lambda q, k, v: v * float("nan")),
    "returns_what_raises": ("wrong failed", "", lambda p: lambda q, k, v: untouchable()),
    "stands_in_a_folder_that_is_gone": (
        "measured wrong", "", lambda p: then(p, stand_in_a_folder_that_is_gone)),
    "clears_the_environment": ("measured wrong", "", lambda p: then(p, os.environ.clear)),
    "closes_the_streams": (
        "measured wrong failed crashed", "", lambda p: then(p, lambda: os.closerange(0, 3))),
    "ignores_every_signal": ("measured wrong", "", lambda p: then(p, ignore_every_signal)),
    "forgets_all_modules": (
        "measured wrong failed crashed", "", lambda p: (right(p), sys.modules.clear())[0]),
    "message_of_a_gigabyte": ("failed out_of_memory", "", lambda p: fail(OSError("x" * (1 << 30)))),
    "hangs_at_the_end": (
        "measured wrong", "", lambda p: then(p, lambda: atexit.register(time.sleep, 600))),
}  # fmt: skip
"""Statuses that a cell may end with, a word of the reason or the note, and the ``build``."""
HANGING = {
    "closes_all_pipes": (
        "crashed timed_out", "", lambda p: in_a_call(p, lambda: os.closerange(3, 256))),
    "stands_still": ("timed_out", HUNG, lambda p: os.kill(os.getpid(), signal.SIGSTOP)),
    "holds_the_interpreter": (
        "timed_out", HUNG, lambda p: in_a_call(p, lambda: ctypes.PyDLL(None).sleep(600))),
    "stops_its_keeper_and_hangs": ("timed_out", HUNG, lambda p: then(p, stop_its_keeper)),
    "shouts_for_ever": ("timed_out", HUNG, lambda p: then(p, shout_for_ever)),
}  # fmt: skip
"""These are given a short time."""


def row(name, build, **more):
    named = {"name": f"c.{name}", "title": name, "build": build}
    return Variant(**named, family="campaign", operator="softmax", **more)


ROWS = [row("honest", ":honest", options={"n": 0})]
for name, (*_, build) in {**FAULTS, **HANGING}.items():
    globals()[f"build_{name}"] = build
    ROWS.append(row(name, f":build_{name}"))
