"""Sweeps and commands over variants that misbehave, and everything that they leave behind."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests import processes
from tests.calling import ROOT
from tests.sweep.campaign import faults

SMALL = ["--heads", "1", "--head-dim", "8", "--phase", "forward", "--mask", "none"]
SMALL += ["--budget", "0.01"]


def laid_out(folder):
    """The table, in a folder of its own."""
    return Path(shutil.copy(faults.__file__, folder))


@contextmanager
def marked():
    """A word in the environment of everything started meanwhile."""
    word = f"campaign-{os.getpid()}-{os.urandom(4).hex()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(faults.MARK, word)
        yield word


def until_gone(word):
    processes.until(lambda: not processes.marked(word), 20)


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


def finished(*words):
    done = subprocess.run(command(*words), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def lines(path, file="records.jsonl"):
    """The whole lines of a run's file."""
    try:
        data = (path / file).read_bytes()
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].splitlines()
