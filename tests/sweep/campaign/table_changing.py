"""Faults that leave the worker's process changed: whoever comes next must not suffer from it."""

import atexit
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings

from campaign_rows import Kinds, at_first_call, honest

kind = Kinds()
KEPT = []
"""What nobody lets go of."""


@kind("measured wrong", quick=True)
def stands_in_a_folder_that_is_gone(problem):
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)  # noqa: PTH106
    return honest(problem)


@kind("measured wrong")
def clears_the_environment(problem):
    os.environ.clear()
    return honest(problem)


@kind("measured wrong")
def takes_the_streams_away(problem):
    sys.stdout = sys.stderr = sys.stdin = None
    return honest(problem)


@kind("measured wrong failed crashed")
def closes_the_streams(problem):
    for number in (0, 1, 2):
        os.close(number)
    return honest(problem)


@kind("wrong crashed")
def replaces_json(problem):
    import json

    json.dumps = lambda *_, **__: "null"
    return honest(problem)


@kind("measured wrong", quick=True)
def replaces_pickle(problem):
    import pickle

    pickle.dumps = pickle.loads = None
    return honest(problem)


@kind("wrong", "replaced")
def replaces_the_clock(problem):
    time.perf_counter = lambda: float("nan")
    return honest(problem)


@kind("wrong", "garbage collection")
def stops_the_collector(problem):
    gc.disable()
    gc.freeze()
    return honest(problem)


@kind("wrong failed", "device")
def puts_all_on_the_meta_device(problem):
    import torch

    inner = honest(problem)
    torch.set_default_device("meta")
    return inner


@kind("measured wrong failed")
def makes_warnings_errors(problem):
    warnings.simplefilter("error")
    return honest(problem)


@kind("measured wrong")
def ignores_every_signal(problem):
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    return honest(problem)


def _interrupt(*_):
    raise RuntimeError("from a handler")


@kind("wrong failed crashed")
def sets_a_timer_whose_handler_raises(problem):
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    return honest(problem)


@kind("measured wrong")
def leaves_a_handler_that_raises(problem):
    signal.signal(signal.SIGUSR1, _interrupt)
    return at_first_call(
        problem, lambda: threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    )


@kind("measured wrong")
def lowers_its_memory_limit(problem):
    held = int(open("/proc/self/statm").read().split()[5]) * 4096  # noqa: PTH123, SIM115
    inner = honest(problem)
    resource.setrlimit(resource.RLIMIT_DATA, (held + (64 << 20), held + (64 << 20)))
    return inner


@kind("measured wrong")
def lets_nobody_write_files(problem):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return honest(problem)


@kind("measured failed wrong crashed")
def opens_all_the_files_it_may_and_keeps_them(problem):
    inner = honest(problem)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most[1]))
    try:
        while True:
            KEPT.append(socket.socket())
    except OSError:
        return inner


@kind("failed", "Too many open files")
def falls_over_the_files_that_it_opened(problem):
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    while True:
        KEPT.append(open("/dev/null"))  # noqa: PTH123, SIM115


@kind("measured wrong failed")
def leaves_hardly_any_recursion(problem):
    inner = honest(problem)
    sys.setrecursionlimit(len(_stack()) + 60)
    return inner


def _stack():
    frame, found = sys._getframe(), []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


@kind("measured wrong failed")
def empties_the_import_path(problem):
    inner = honest(problem)
    sys.path.clear()
    return inner


@kind("measured wrong failed crashed")
def forgets_all_modules(problem):
    inner = honest(problem)
    sys.modules.clear()
    return inner


@kind("measured wrong", quick=True)
def hangs_when_the_process_ends(problem):
    atexit.register(time.sleep, 600)
    return honest(problem)


@kind("measured wrong", "")
def leaves_a_thread_that_sleeps(problem):
    threading.Thread(target=time.sleep, args=(600,)).start()
    return honest(problem)


@kind("measured wrong", quick=True)
def starts_a_thread_that_raises(problem):
    return at_first_call(problem, threading.Thread(target=_interrupt).start)


@kind("measured wrong", quick=True)
def raises_when_it_is_collected(problem):
    class Last:
        def __del__(self):
            sys.exit(3)

    return at_first_call(problem, Last)


def sleeper(*how, **more):
    """A process that stays, whose command says whose it is though its environment may not."""
    word = os.environ.get("ATTNBENCH_CAMPAIGN", "")
    code = f"import time; time.sleep(599)  # {word}"
    return subprocess.Popen([*how, sys.executable, "-S", "-c", code], **more)


@kind("measured wrong")
def leaves_a_child(problem):
    KEPT.append(sleeper())
    return honest(problem)


@kind("measured wrong")
def leaves_a_daemon_that_hides(problem):
    if os.fork() == 0:
        os.setsid()
        KEPT.append(sleeper("nohup", start_new_session=True, env={}, stderr=subprocess.DEVNULL))
        os._exit(0)
    os.wait()
    return honest(problem)


@kind("measured wrong timed_out", hangs=True)
def leaves_a_daemon_that_stops_it_later(problem):
    inner, worker = honest(problem), os.getpid()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1.0)
            os.kill(worker, signal.SIGSTOP)
            time.sleep(600)
        os._exit(0)
    os.wait()
    return inner


@kind("measured wrong")
def leaves_a_child_that_shouts_for_ever(problem):
    KEPT.append(subprocess.Popen(["yes", "here I am, nobody else may be heard"], stdout=2))
    return honest(problem)


@kind("failed", "PermissionError", quick=True)
def starts_a_session(problem):
    return at_first_call(problem, os.setsid)


@kind("measured failed wrong", quick=True)
def goes_to_another_group(problem):
    return at_first_call(problem, lambda: os.setpgid(0, os.getpid()))


@kind("measured wrong", quick=True)
def no_longer_dies_with_its_keeper(problem):
    import ctypes

    ctypes.CDLL(None).prctl(1, 0)
    return honest(problem)


@kind("out_of_memory measured wrong")
def leaks_until_nothing_is_left(problem):
    inner = honest(problem)
    try:
        while True:
            KEPT.append(bytearray(16 << 20))
    except MemoryError:
        while True:
            KEPT.append(bytearray(1 << 20))
    return inner


@kind("measured wrong")
def keeps_most_of_the_memory(problem):
    inner = honest(problem)
    try:
        while True:
            KEPT.append(bytearray(16 << 20))
    except MemoryError:
        del KEPT[-4:]
    return inner


ROWS = kind.rows
