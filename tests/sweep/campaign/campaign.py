"""Sweeps and commands over variants that misbehave, and everything that they leave behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import attnbench
from attnbench.core.settings import Settings
from attnbench.sweep.engine import LocalEngine
from impls.loading import load_file
from tests import processes

ROOT = Path(attnbench.__file__).parents[1]
TABLE = Path(__file__).with_name("faults.py")
faults = load_file(TABLE)
HANG_S, PATIENCE_S, GONE_S = 2.0, 120.0, 20.0
"""For those that hang, for everybody else on a busy machine, and for what was killed to go."""
SMALL = ["--heads", "1", "--head-dim", "8", "--phase", "forward", "--mask", "none"]
SMALL += ["--budget", "0.01"]


class Hasty(LocalEngine):
    """Gives those that hang a short time."""

    def __init__(self, hasty=()):
        super().__init__(Settings())
        self._hasty = set(hasty)

    def ask(self, question, limit_s):
        if "job" in question:
            hasty = question["job"]["variant"]["name"] in self._hasty
            limit_s = HANG_S if hasty else PATIENCE_S
        return super().ask(question, limit_s)


def laid_out(folder):
    """The table, in a folder of its own."""
    return Path(shutil.copy(TABLE, folder / TABLE.name))


@contextmanager
def marked():
    """A word in the environment, and the commands, of everything started meanwhile."""
    word = f"campaign-{os.getpid()}-{os.urandom(4).hex()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(faults.MARK, word)
        yield word


def left_behind(word):
    """The processes that carry the word in their environment or in their command."""
    found = set(processes.marked(word))
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if word.encode() in file.read_bytes() and processes.alive(file.parent.name):
                found.add(int(file.parent.name))
    return found - {os.getpid()}


def until_gone(word):
    """Wait until no process carries the word; what stays is ended here, and is a failure."""
    end = time.monotonic() + GONE_S
    while (left := left_behind(word)) and time.monotonic() < end:
        time.sleep(0.05)
    for one in left:
        with suppress(OSError):
            os.kill(one, signal.SIGKILL)
    assert not left


def command(*words):
    return [sys.executable, "-m", "attnbench", "run", "--no-report", *map(str, words)]


@contextmanager
def started(*words):
    """A run in a process of its own; killed at the end of the block, if it still is."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = subprocess.Popen(command(*words), cwd=ROOT, **pipes)
    try:
        yield run
    finally:
        with suppress(ProcessLookupError):
            run.kill()
        run.communicate()


def finished(*words, before=()):
    """A run to its end. ``before``: what starts it."""
    whole = [*before, *command(*words)]
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def only_run(out):
    (path,) = out.glob("*/2*")
    return path


def lines(path, file="records.jsonl"):
    """The whole lines of a run's file."""
    try:
        data = (path / file).read_bytes()
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].splitlines()
