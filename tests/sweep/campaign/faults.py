"""What a variant may do wrong, and how its cell should end; between every two stands ``honest``."""

import atexit
import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from impls.spec import Unavailable, Unsupported, Variant

MARK = "ATTNBENCH_CAMPAIGN"
"""In the environment of everything that a sweep starts."""
GIGABYTE = 1 << 30
KEPT = []
"""What nobody lets go of."""


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
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
    for file in files:
        os.close(file)
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


def noted(problem, note):
    inner = right(problem)

    def attend(q, k, v):
        return inner(q, k, v)

    attend.note = note
    return attend


@dataclass(frozen=True)
class Kind:
    """A fault: the statuses that its cell may end with, and a word of the reason or the note."""

    label: str
    statuses: tuple[str, ...]
    word: str
    hangs: bool
    """It is given a short time."""
    quick: bool
    """It is tried by default, the others where slow tests are."""


KINDS = []
ROWS = []


def row(name, **more):
    given = {"title": name, "family": "campaign", "computes": "softmax"}
    ROWS.append(Variant(name=f"c.{name}", **given, **more))


def kind(statuses, word="", *, hangs=False, quick=False, **more):
    """The function that follows is the ``build`` of such a kind."""

    def take(function):
        name = function.__name__
        KINDS.append(Kind(f"c.{name}", tuple(statuses.split()), word, hangs, quick))
        row(name, **{"build": f":{name}", **more})
        return function

    return take


row("honest", build=":honest", options={"n": 0})


# ---- it raises, or gives what is no result; the worker lives -------------------------------------


@kind("failed", "RecursionError")
def recursion_without_end(problem):
    return recursion_without_end(problem)


@kind("wrong failed")
def returns_what_raises_at_every_touch(problem):
    def no(self, *_):
        raise RuntimeError("not even this")

    names = ("getattribute", "repr", "str", "eq", "bool", "len", "iter", "float", "array", "hash")
    monster = type("Monster", (), {f"__{name}__": no for name in names})
    return lambda q, k, v: monster()


@kind("wrong", "carries more than its values")
def output_with_something_of_a_hundred_megabytes(problem):
    inner = right(problem)

    def attend(q, k, v):
        out = inner(q, k, v)
        setattr(out, "a" * (100 << 20), 1)
        return out

    return attend


# ---- it leaves the process changed: whoever comes next must not suffer from it -------------------


@kind("measured", quick=True)
def chatters(problem):
    def deed():
        os.write(1, b"out " * 5000)
        os.write(2, b"err " * 5000)
        print('{"record": 1}', flush=True)

    return in_a_call(problem, deed)


@kind("measured wrong")
def stands_in_a_folder_that_is_gone(problem):
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)  # noqa: PTH106
    return right(problem)


@kind("measured wrong")
def clears_the_environment(problem):
    os.environ.clear()
    return right(problem)


@kind("measured wrong failed crashed")
def closes_the_streams(problem):
    for number in (0, 1, 2):
        os.close(number)
    return right(problem)


@kind("wrong", "replaced")
def replaces_the_clock(problem):
    time.perf_counter = lambda: float("nan")
    return right(problem)


@kind("wrong", "it replaced torch.nn.functional.scaled_dot_product_attention")
def replaces_a_function_of_torch(problem):
    import torch

    torch.nn.functional.scaled_dot_product_attention = lambda q, k, v, **_: torch.zeros_like(v)
    return right(problem)


@kind("measured wrong")
def ignores_every_signal(problem):
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    return right(problem)


@kind("measured failed wrong crashed")
def opens_all_the_files_it_may_and_keeps_them(problem):
    inner = right(problem)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most[1]))
    try:
        while True:
            KEPT.append(socket.socket())
    except OSError:
        return inner


@kind("measured wrong failed crashed")
def forgets_all_modules(problem):
    inner = right(problem)
    sys.modules.clear()
    return inner


def sleeper(*how, **more):
    """A process that stays, whose command says whose it is though its environment may not."""
    code = f"import time; time.sleep(599)  # {os.environ.get(MARK, '')}"
    return subprocess.Popen([*how, sys.executable, "-S", "-c", code], **more)


@kind("measured wrong")
def leaves_a_daemon_that_hides(problem):
    if os.fork() == 0:
        os.setsid()
        KEPT.append(sleeper("nohup", start_new_session=True, env={}, stderr=subprocess.DEVNULL))
        os._exit(0)
    os.wait()
    return right(problem)


# ---- it ends the worker's process: that costs its own cell, and is tried once more alone ---------


def pipe():
    """The descriptor of the pipe to the parent: the one socket that is connected."""
    for number in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return number
        except OSError:
            continue
    raise LookupError("there is none")


def asked():
    """The question that is being answered, and its number."""
    frame = sys._getframe()
    while frame is not None:
        answers, question = map(frame.f_locals.get, ("answers", "question"))
        if isinstance(number := getattr(answers, "asked", None), int) and question:
            return question, number
        frame = frame.f_back
    raise LookupError("nobody asked")


@kind("crashed", "status 3", quick=True)
def exits(problem):
    def deed():
        print("my last words are xyzzy", file=sys.stderr, flush=True)
        os._exit(3)

    return in_a_call(problem, deed)


@kind("wrong", "it answered twice: one of the answers is forged")
def answers_in_the_workers_place(problem):
    def deed():
        from attnbench.core.record import Record, Status
        from impls.problem import Problem

        question, number = asked()
        job = question["job"]
        variant, of = Variant.from_dict(job["variant"]), Problem.from_dict(job["problem"])
        record = Record.of(variant, of, Status.FAILED, "forged", seed=0).to_dict()
        os.write(pipe(), json.dumps({"record": record, "asked": number}).encode() + b"\n")

    return in_a_call(problem, deed)


@kind("crashed wrong")
def answers_too_deep(problem):
    def deed():
        deep = b'{"a":' * 700 + b"1" + b"}" * 700
        said = b'{"asked":%d,"record":{"schema":1,"x":%s}}\n'
        os.write(pipe(), said % (asked()[1], deep))

    return in_a_call(problem, deed)


@kind("crashed", "SIGKILL")
def kills_its_keeper_and_lives(problem):
    def deed():
        ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG
        sleeper()
        os.kill(os.getppid(), signal.SIGKILL)

    return in_a_call(problem, deed)


@kind("crashed", "more than 512 processes")
def forks_without_end(problem):
    while True:
        os.fork()


# ---- it never ends, or says more than anybody can hear -------------------------------------------


@kind("timed_out", "still running", hangs=True)
def stops_its_keeper_and_hangs(problem):
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(600)


@kind("timed_out", "still running", hangs=True)
def shouts_for_ever(problem):
    while True:
        os.write(2, b"x" * (1 << 16))


@kind("timed_out", "still running", hangs=True)
def says_for_ever_what_it_is_doing(problem):
    def deed():
        said, to = b'{"doing": "work", "asked": %d}\n' % asked()[1], pipe()
        while True:
            os.write(to, said * 100)

    return in_a_call(problem, deed)


# ---- in a word -----------------------------------------------------------------------------------


def fail(error):
    raise error


def then(problem, deed):
    deed()
    return right(problem)


NOISE = "\ud800\x00 \x1b[2J\x9b31m\u202e\udfff\nsecond line"
SIMPLE = {
    "raises": ("failed", ": first line", lambda p: fail(RuntimeError("first line\nsecond line"))),
    "message_with_surrogates_and_nulls": ("failed", "KeyError", lambda p: fail(KeyError(NOISE))),
    "build_that_returns_nothing": ("failed", "it must return attend", lambda p: None),
    "gives_nan": ("wrong", "finite", lambda p: lambda q, k, v: v * float("nan")),
    "note_that_raises": (
        "failed",
        "its note",
        lambda p: noted(p, lambda: fail(OSError("its note"))),
    ),
    "refuses_without_a_word": (
        "unsupported",
        "it doesn't say why",
        lambda p: fail(Unsupported("")),
    ),
    "unavailable_for_an_object": ("unavailable", "", lambda p: fail(Unavailable(object(), {1: 2}))),
    "asks_for_a_terabyte": ("out_of_memory", "", lambda p: lambda q, k, v: q.new_zeros(1 << 40)),
}
"""Statuses, a word of the reason, and the ``build``; all of these are tried by default."""
SLOW = {
    "reads_nothing": ("crashed", "SIGSEGV", lambda p: in_a_call(p, lambda: ctypes.string_at(0))),
    "message_of_a_gigabyte": ("failed out_of_memory", "", lambda p: fail(OSError("x" * GIGABYTE))),
    "quits_with_0": ("crashed failed", "", lambda p: sys.exit(0)),
    "forks": ("wrong", "left a copy of its process running", lambda p: in_a_call(p, os.fork)),
    "says_something": ("crashed", "", lambda p: in_a_call(p, lambda: os.write(pipe(), b"junk\n"))),
    "floods_the_pipe_without_a_line": (
        "crashed", "does not end",
        lambda p: in_a_call(p, lambda: [os.write(pipe(), b"x" * (1 << 20)) for _ in range(200)]),
    ),
    "hangs_at_the_end": (
        "measured wrong", "", lambda p: then(p, lambda: atexit.register(time.sleep, 600)),
    ),
}  # fmt: skip
HANGING = {
    "closes_all_pipes": (
        "crashed timed_out", "", lambda p: in_a_call(p, lambda: os.closerange(3, 256)),
    ),
    "stands_still": ("timed_out", "still running", lambda p: os.kill(os.getpid(), signal.SIGSTOP)),
    "holds_the_interpreter": (
        "timed_out", "still running", lambda p: in_a_call(p, lambda: ctypes.PyDLL(None).sleep(600)),
    ),
}  # fmt: skip
for table, more in ((SIMPLE, {"quick": True}), (SLOW, {}), (HANGING, {"hangs": True})):
    for name, (statuses, word, build) in table.items():
        build.__name__ = name
        globals()[name] = kind(statuses, word, **more)(build)


def _broken_cost(problem):
    raise ZeroDivisionError("in its cost")


@kind("failed", "ZeroDivisionError", cost=":_broken_cost", quick=True)
def cost_that_raises(problem):
    return right(problem)


@kind("failed", "fails_at_import", build=f"{Path(__file__).with_name('fails_at_import.py')}:build")
def module_that_fails_at_import(problem):
    """Its code is elsewhere."""
