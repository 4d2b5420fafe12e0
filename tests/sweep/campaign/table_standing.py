"""Faults that never end, or say more than anybody can hear."""

import ctypes
import os
import re
import signal
import sys
import threading
import time

from campaign_rows import Kinds, at_first_call, beside, honest
from table_dying import _asked, answers

kind = Kinds(hangs=True)


def _loop(*_):
    while True:
        pass


@kind("timed_out", "still running")
def loops_in_python(problem):
    return at_first_call(problem, _loop)


@kind("timed_out", "still running")
def loops_in_c_with_the_interpreter_held(problem):
    return at_first_call(problem, lambda: ctypes.PyDLL(None).sleep(600))


@kind("timed_out", "still running")
def raises_a_number_to_a_power(problem):
    return at_first_call(problem, lambda: 7 ** (1 << 34))


@kind("timed_out", "still running")
def matches_a_word_that_never_fits(problem):
    return at_first_call(problem, lambda: re.match(r"(a|a|aa)*$", "a" * 60 + "b"))


@kind("timed_out", "still running", row={"cost": ":_loop"})
def loops_in_its_cost(problem):
    return honest(problem)


@kind("timed_out", "still running")
def message_that_never_comes(problem):
    class Hangs(Exception):
        __str__ = _loop

    raise Hangs


@kind("timed_out", "still running")
def note_that_never_comes(problem):
    inner = honest(problem)

    def attend(q, k, v):
        return inner(q, k, v)

    attend.note = _loop
    return attend


@kind("timed_out", "still running", row={"build": beside("never_imported")})
def import_that_never_returns(problem):
    """Its code is elsewhere."""


@kind("timed_out", "still running")
def waits_for_itself(problem):
    lock = threading.Lock()
    lock.acquire()
    return at_first_call(problem, lock.acquire)


@kind("timed_out", "still running")
def stands_still(problem):
    os.kill(os.getpid(), signal.SIGSTOP)


@kind("timed_out", "still running")
def stops_its_keeper_and_hangs(problem):
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(600)


@kind("timed_out", "still running")
def ignores_every_signal_and_hangs(problem):
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    time.sleep(600)


@kind("timed_out", "still running", quick=True)
def shouts_for_ever(problem):
    part = b"x" * (1 << 16)
    while True:
        os.write(2, part)


@kind("timed_out", "still running")
def says_for_ever_what_it_is_doing(problem):
    def deed():
        said, pipe = b'{"doing": "work", "asked": %d}\n' % _asked(), answers()
        while True:
            os.write(pipe, said * 100)

    return at_first_call(problem, deed)


@kind("timed_out", "still running")
def answers_a_letter_at_a_time(problem):
    def deed():
        pipe = answers()
        while True:
            os.write(pipe, b"x")
            time.sleep(0.02)

    return at_first_call(problem, deed)


@kind("timed_out crashed wrong measured", "")
def holds_the_interpreter_once_it_has_answered(problem):
    def later():
        time.sleep(1.0)
        ctypes.PyDLL(None).sleep(600)

    return at_first_call(problem, threading.Thread(target=later, daemon=True).start)


@kind("measured", "", hangs=False)
def says_300_megabytes_on_both_streams(problem):
    def deed():
        part = b"x" * (1 << 20)
        for _ in range(150):
            os.write(1, part)
            os.write(2, part)

    return at_first_call(problem, deed)


@kind("crashed", "status 3", hangs=False)
def dies_after_a_flood(problem):
    part = b"y\n" * (1 << 19)
    for _ in range(100):
        os.write(2, part)
    sys.stderr.flush()
    os._exit(3)


ROWS = kind.rows
