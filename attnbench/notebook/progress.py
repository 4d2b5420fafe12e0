"""Progress in one line, written over again where somebody watches; else its end alone."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from time import monotonic

from attnbench.record import Record
from attnbench.sweep.plan import duration
from impls.problem import Problem

WIDE = 110
"""Characters that a line holds, in most notebooks and terminals."""


class OneLine:
    """What a run shows of itself in a notebook."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._start, self._shown = quiet, monotonic(), 0
        self._watched = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._ended = dict[str, str]()
        """By cell: one that is measured again has ended once."""

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """A cell has ended."""
        self._ended[record.key] = str(record.status)
        if self._watched:
            what = f"{record.variant} {Problem.from_dict(record.problem)}: {record.status}"
            self._write(f"[{done}/{total}, {duration(left_s)} left] {what}")

    def tell(self, sentence: str) -> None:
        """A line of its own."""
        self.close()
        self._print(sentence)

    def end(self, path: Path) -> None:
        """How it came out, and where it lies."""
        self.close()
        ended = Counter(self._ended.values()).most_common()
        counts = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in ended)
        took = duration(monotonic() - self._start)
        self._print(f"{counts or 'nothing was left to measure'}, in {took}; the run is {path}")

    def close(self) -> None:
        """Take away what is written over."""
        if self._shown:
            self._write("")
            print("\r", end="", file=sys.stderr, flush=True)
            self._shown = 0

    def _write(self, text: str) -> None:
        if not self._quiet:
            text = text[:WIDE]
            print("\r" + text.ljust(self._shown), end="", file=sys.stderr, flush=True)
            self._shown = len(text)

    def _print(self, text: str) -> None:
        if not self._quiet:
            print(text, file=sys.stderr, flush=True)
