"""Progress on the error stream: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, cast

from attnbench.core.format import Unchecked, for_terminal
from attnbench.core.record import Record, Status
from attnbench.sweep.plan import duration

if TYPE_CHECKING:
    from rich.console import Group


LINES = 8
"""Cells shown at once."""


def describe(record: Record) -> str:
    """What a cell came to, in a few words."""
    if record.time is None:
        return f"{record.status}: {record.reason}" if record.reason else "right"
    t = record.time
    text = f"{t.median_s * 1e3:.3g} ms [{t.low_s * 1e3:.3g}, {t.high_s * 1e3:.3g}]"
    if record.memory is not None:
        text += f" · {record.memory.peak_bytes / 2**20:.3g} MiB"
    errors = [e.relative for e in (record.error or {}).values() if e.relative is not None]
    if errors:
        text += f" · worst error {max(errors):.1e}"
    return text


class Eta:
    """Seconds left: the guesses of what is to come, corrected by how the guesses fared."""

    def __init__(self, guesses: list[float]) -> None:
        self._left = sum(guesses)
        self._guessed = 0.0
        self._start = monotonic()

    def more(self, guess: float) -> None:
        """A cell with this guess has come to the others."""
        self._left += guess

    def after(self, guess: float) -> float:
        """The estimate when a cell with this guess has just ended."""
        self._left -= guess
        self._guessed += guess
        return max(0.0, self._left * (monotonic() - self._start) / self._guessed)


class PlainLines:
    """One line a cell, no control codes."""

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """Print the line."""
        what = f"{record.variant:16} {record.problem}"
        left = f"{duration(left_s)} left"
        self.tell(f"[{done}/{total}, {left}] {what}: {describe(record)}")

    def tell(self, sentence: str) -> None:
        """Print it."""
        print(sentence, file=sys.stderr, flush=True)


class LiveTable:
    """The latest cells, a bar and the time left, redrawn in place."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._latest: deque[Record] = deque(maxlen=LINES)
        left = TextColumn("cells · {task.fields[left]}")
        self._bar = Progress(BarColumn(), MofNCompleteColumn(), left)
        self._task = self._bar.add_task("", total=total, left="starting")
        console = Console(file=cast(IO[str], Unchecked(sys.stderr)))
        self._live = Live(self._draw(), console=console, transient=True)

    def __enter__(self) -> LiveTable:
        self._live.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._live.__exit__(None, None, None)

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """Redraw with this cell as the latest."""
        self._latest.append(record)
        self._bar.update(self._task, completed=done, total=total, left=f"{duration(left_s)} left")
        self._live.update(self._draw())

    def tell(self, sentence: str) -> None:
        """Print it above what is redrawn."""
        self._live.console.print(for_terminal(sentence), highlight=False, markup=False)

    def _draw(self) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        cells = Table.grid(padding=(0, 2))
        for record in self._latest:
            style = "" if record.status is Status.MEASURED else "yellow"
            words = (record.variant, record.problem.slug, describe(record))
            cells.add_row(*(Text(for_terminal(each)) for each in words), style=style)
        return Group(cells, self._bar)


def watcher(total: int) -> PlainLines | LiveTable:
    """The live table where somebody watches a terminal."""
    return LiveTable(total) if sys.stderr.isatty() else PlainLines()
