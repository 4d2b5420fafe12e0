"""The command line, called as a process."""

import subprocess
import sys
from pathlib import Path

import attnbench

ROOT = Path(attnbench.__file__).parents[1]
SENTENCE = "the cat sat on the mat"


def attnbench_(*words, options=(), **more):
    return subprocess.run(
        [sys.executable, *options, "-m", "attnbench", *map(str, words)], cwd=ROOT, timeout=120,
        **{"capture_output": True, "text": True, **more},
    )  # fmt: skip


def well(*words, status=0, **more):
    """What the command said, when it ended as it should."""
    done = attnbench_(*words, **more)
    assert done.returncode == status, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done


def only_run(out):
    (path,) = out.glob("*/*")
    return path
