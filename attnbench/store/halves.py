"""A large table is read by two processes at once: this one, and one that reads the later runs.

The other is this Python once more, with nothing loaded but the parser. What it found it leaves in a
file that has no name; if it could not, for whatever reason, its part is read here, where what is
wrong can be said.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from attnbench.collector import collector_off
from attnbench.store.disk import RECORDS
from attnbench.store.fast import Found, columns_of

LARGE = 32 << 20
"""Bytes of records from which on a second process pays for its start."""
HERE = 0.57
"""The share that is read here: the other has to start, and to hand over what it found."""


def read(runs: Sequence[Path]) -> Found:
    """What some runs hold."""
    here = _first_half(runs)
    if here == len(runs):
        return columns_of(runs)
    with TemporaryFile() as pickled, _another(runs[here:], pickled) as other:
        found = columns_of(runs[:here])
        if other.wait() == 0:
            pickled.seek(0)
            more: Found = pickle.load(pickled)
        else:
            more = columns_of(runs[here:])
    found.columns.extend(more.columns)
    return Found(found.columns, found.rows + more.rows, found.amiss + more.amiss)


def _first_half(runs: Sequence[Path]) -> int:
    """How many of the runs are read here: all, where it is little or there is one processor."""
    sizes = list(accumulate(map(_bytes, runs), initial=0))
    if sizes[-1] < LARGE or len(os.sched_getaffinity(0)) < 2 or not sys.executable:
        return len(runs)
    return max(1, min(range(len(sizes)), key=lambda n: abs(sizes[n] - HERE * sizes[-1])))


def _bytes(run: Path) -> int:
    try:
        return (run / RECORDS).stat().st_size
    except OSError:
        return 0


@contextmanager
def _another(runs: Sequence[Path], found: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The process that reads the others; it does not outlive this block."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), *sys.path]))
    other = subprocess.Popen(
        [sys.executable, "-P", "-c", "from attnbench.store.halves import main; main()",
         *map(str, runs)],
        env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=found,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield other
    finally:
        other.kill()
        other.wait()


def main() -> None:
    """In the other process: read the runs that it is given, and leave what is in them."""
    with collector_off():
        found = columns_of([Path(run) for run in sys.argv[1:]])
        found.columns.pack()
        pickle.dump(found, sys.stdout.buffer, protocol=5)
