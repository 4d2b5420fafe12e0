"""Progress on the error stream: a line a cell, and on a terminal a bar below them."""

from __future__ import annotations

import sys
from time import monotonic
from typing import IO, cast

from attnbench.core.format import Unchecked, for_terminal
from attnbench.core.record import Record, Status
from attnbench.sweep.plan import duration


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
        self.tell(f"[{done}/{total}, {duration(left_s)} left] {what}: {describe(record)}")

    def tell(self, sentence: str) -> None:
        """Print it."""
        print(sentence, file=sys.stderr, flush=True)


class LiveBar:
    """The same lines above a bar and the time left, which are redrawn in place."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console(file=cast(IO[str], Unchecked(sys.stderr)))
        columns = BarColumn(), MofNCompleteColumn(), TextColumn("cells · {task.description}")
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> LiveBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """Print the cell and redraw the bar."""
        style = "" if record.status is Status.MEASURED else "yellow"
        self.tell(f"{record.variant:16} {record.problem}: {describe(record)}", style)
        left = f"{duration(left_s)} left"
        self._bar.update(self._task, completed=done, total=total, description=left)

    def tell(self, sentence: str, style: str = "") -> None:
        """Print it above the bar."""
        said = for_terminal(sentence)
        self._bar.console.print(said, style=style, highlight=False, markup=False)


def watcher(total: int) -> PlainLines | LiveBar:
    """The live bar where somebody watches a terminal."""
    return LiveBar(total) if sys.stderr.isatty() else PlainLines()
