"""The real command, started as its users start it, and everything that it leaves behind."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import attnbench
from impls.loading import load_file

ROOT = Path(attnbench.__file__).parents[1]
sweeping = load_file(Path(__file__).with_name("sweeping.py"))
SMALL = [
    "--heads",
    "1",
    "--head-dim",
    "8",
    "--phase",
    "forward",
    "--budget",
    "0.01",
    "--mask",
    "none",
]


def command(*words):
    return [sys.executable, "-m", "attnbench", "run", "--no-report", *map(str, words)]


@contextmanager
def started(word, *words, **more):
    """A run in a process of its own; killed at the end of the block, if it still is."""
    run = subprocess.Popen(
        command(*words),
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, sweeping.MARK: word, **more},
    )
    try:
        yield run
    finally:
        with suppress(ProcessLookupError):
            run.send_signal(signal.SIGKILL)
        run.communicate()


def finished(word, *words, before=(), **more):
    """A run to its end: its status and what it said. ``before``: what starts it."""
    done = subprocess.run(
        [*before, *command(*words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, sweeping.MARK: word, **more},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def until_gone(word):
    """Wait until no process carries the word; fails where one stays."""
    assert sweeping.ended_by_itself(word) == []


def lines(path, file="records.jsonl"):
    """The whole lines of a run's file."""
    try:
        data = (path / file).read_bytes()
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].splitlines()
