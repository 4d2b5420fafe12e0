"""What stands between every two faults, and has to be measured whatever came before.

It needs what any kernel may need: a folder, a home, files, room, depth, streams, modules.
"""

import mmap
import os
import resource
import signal
import sys
import threading
import warnings
from pathlib import Path

from campaign_rows import honest

from impls.spec import Variant

ROOM = 512 << 20


def deep(levels):
    return levels and deep(levels - 1)


def build(problem, n=0):
    """What is right, if the process is as one that was just started."""
    assert Path.cwd().is_dir()
    assert os.environ["ATTNBENCH_CAMPAIGN"]
    assert sys.stdin and sys.stdout and sys.stderr
    assert any("attnbench" in entry or Path(entry, "attnbench").is_dir() for entry in sys.path)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert [t.name for t in threading.enumerate()] == ["MainThread"]
    for number in (0, 1, 2):
        os.fstat(number)
    for who, whose in ((os.getpid(), ""), (os.getppid(), f"{os.getpid()} ")):
        assert Path(f"/proc/{who}/task/{who}/children").read_text() == whose
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
    for file in files:
        os.close(file)
    mmap.mmap(-1, ROOM).close()
    deep(500)
    warnings.warn("nothing that anybody need fear", stacklevel=1)
    return honest(problem)


ROWS = [
    Variant(
        name="c.honest",
        title="honest",
        family="campaign",
        computes="softmax",
        build=":build",
        options={"n": 0},
    ),
]
