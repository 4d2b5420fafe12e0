"""Faults that end the worker's process: each costs its own cell, and is tried once more alone."""

import ctypes
import os
import signal
import socket
import stat
import subprocess
import sys

from campaign_rows import Kinds, at_first_call, beside, honest

kind = Kinds()
OWN = {"computes": "its own operator"}
libc = ctypes.CDLL(None)


def answers():
    """The descriptor of the pipe to the parent: the one socket that is connected."""
    for number in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return number
        except OSError:
            continue
    raise LookupError("there is none")


def _abort(problem):
    os.abort()


@kind("crashed", "SIGABRT", quick=True)
def aborts(problem):
    return at_first_call(problem, os.abort)


@kind("crashed", "SIGABRT", row={"cost": ":_abort"})
def aborts_in_its_cost(problem):
    return honest(problem)


@kind("crashed", "SIGABRT", row=OWN | {"definition": ":_abort"})
def aborts_in_its_definition(problem):
    return honest(problem)


@kind("crashed", "SIGABRT")
def throws_in_c_plus_plus(problem):
    library = ctypes.CDLL("libstdc++.so.6")
    return at_first_call(problem, library._ZSt9terminatev)


@kind("crashed", "SIGSEGV")
def reads_nothing(problem):
    return at_first_call(problem, lambda: ctypes.string_at(0))


@kind("crashed", "SIGSEGV")
def overflows_the_stack_of_c(problem):
    def deed():
        sys.setrecursionlimit(1 << 30)
        compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

        def less(_a, _b):
            items = (ctypes.c_int * 2)(2, 1)
            libc.qsort(items, 2, 4, call)
            return 0

        call = compare(less)
        less(0, 0)

    return at_first_call(problem, deed)


@kind("crashed", "SIGBUS")
def reads_beyond_the_end_of_a_file(problem):
    import mmap
    import tempfile

    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.truncate(4096)
    page = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    return at_first_call(problem, lambda: page[0])


@kind("crashed", "SIGKILL")
def kills_itself(problem):
    os.kill(os.getpid(), signal.SIGKILL)


@kind("crashed", "signal 42")
def dies_of_a_signal_without_a_name(problem):
    os.kill(os.getpid(), 42)


@kind("crashed", "status 0")
def exits_with_0_in_a_call(problem):
    return at_first_call(problem, lambda: os._exit(0))


@kind("crashed", "status 0")
def exits_with_0_in_its_note(problem):
    inner = honest(problem)

    def attend(q, k, v):
        return inner(q, k, v)

    attend.note = lambda: os._exit(0)
    return attend


@kind("crashed failed", "")
def quits_with_0(problem):
    sys.exit(0)


@kind("crashed failed", "")
def interrupts_itself(problem):
    raise KeyboardInterrupt


@kind("crashed failed", "")
def raises_what_is_no_exception(problem):
    class Mine(BaseException):
        pass

    raise Mine("below everybody")


@kind("crashed failed", "")
def message_that_quits(problem):
    class Quits(Exception):
        def __str__(self):
            sys.exit(0)

    raise Quits


@kind("crashed", "status 7", row={"build": beside("exits_at_import")})
def module_that_ends_the_process(problem):
    """Its code is elsewhere."""


@kind("crashed timed_out", hangs=True)
def closes_all_pipes(problem):
    return at_first_call(problem, lambda: os.closerange(3, 256))


@kind("crashed timed_out", hangs=True)
def puts_something_else_over_the_pipe(problem):
    return at_first_call(problem, lambda: os.dup2(2, answers()))


@kind("crashed wrong timed_out", hangs=True)
def shuts_the_pipe_down(problem):
    def deed():
        with socket.socket(fileno=os.dup(answers())) as pipe:
            pipe.shutdown(socket.SHUT_RDWR)

    return at_first_call(problem, deed)


@kind("crashed", "does not end")
def floods_the_pipe_without_a_line(problem):
    def deed():
        pipe, part = answers(), b"x" * (1 << 20)
        for _ in range(200):
            os.write(pipe, part)

    return at_first_call(problem, deed)


@kind("crashed wrong", "")
def answers_with_many_small_things(problem):
    def deed():
        pipe, part = answers(), b"[]," * (1 << 18)
        os.write(pipe, b'{"asked":1,"record":[')
        for _ in range(60):
            os.write(pipe, part)
        os.write(pipe, b"0]}\n")

    return at_first_call(problem, deed)


@kind("crashed wrong", "")
def answers_too_deep(problem):
    def deed():
        number = _asked()
        deep = b'{"a":' * 700 + b"1" + b"}" * 700
        os.write(answers(), b'{"asked":%d,"record":{"schema":1,"x":%s}}\n' % (number, deep))

    return at_first_call(problem, deed)


def _asked():
    """The number of the question that is being answered."""
    frame = sys._getframe()
    while frame is not None:
        if isinstance(number := getattr(frame.f_locals.get("answers"), "asked", None), int):
            return number
        frame = frame.f_back
    raise LookupError("nobody asked")


@kind("crashed", "SIGKILL")
def kills_its_keeper(problem):
    return at_first_call(problem, lambda: os.kill(os.getppid(), signal.SIGKILL))


@kind("crashed", "SIGKILL")
def kills_its_keeper_and_lives(problem):
    def deed():
        libc.prctl(1, 0)  # PR_SET_PDEATHSIG
        word = os.environ.get("ATTNBENCH_CAMPAIGN", "")
        code = f"import time; time.sleep(599)  # {word}"
        subprocess.Popen([sys.executable, "-S", "-c", code])
        os.kill(os.getppid(), signal.SIGKILL)

    return at_first_call(problem, deed)


@kind("crashed", "more than 512 processes")
def forks_without_end(problem):
    while True:
        os.fork()


@kind("crashed", "more than 512 processes")
def starts_six_hundred_sleepers(problem):
    import time

    for _ in range(600):
        if os.fork() == 0:
            time.sleep(600)
    time.sleep(600)


ROWS = kind.rows
