"""What is shown while a verb works: a live bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
from math import inf
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, cast

from attnbench.answer.ranking import EXACT
from attnbench.core.format import Unchecked, for_terminal, milliseconds, ms
from attnbench.core.record import FINDINGS, Record, Status
from attnbench.sweep.plan import duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

EVERY_S, TENTHS = 10.0, 10
"""Where there is no terminal, a line so often, or after each tenth of the whole."""
BOARD = 6
"""Rows of the table of what is best so far."""


class Progress:
    """How far a verb has come. With ``every`` it prints a line for each measurement."""

    def __init__(
        self, total: int, *, every: bool = False, best: bool = False, after_s: float = 0.0
    ) -> None:
        """``best``: show what is fastest so far, too. ``after_s``: what follows the last of all."""
        self._after_s = after_s
        self._every = every
        self._start = self._last = monotonic()
        self._tenth = 0
        self._best: dict[tuple[str, int], tuple[float, str]] = {}
        self._bar = _Bar(total, self._table if best else None) if sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """A measurement has ended; about so many seconds are left."""
        self._note(record)
        what = f"{record.variant} {record.problem}"
        if self._every or record.status in FINDINGS:
            style = "" if record.status is Status.MEASURED else "yellow"
            self.tell(f"[{done}/{total}] {what}: {described(record)}", style)
        self.at(done, total, left_s, what)

    def at(self, done: int, total: int, left_s: float, what: str) -> None:
        """So much is done; the rest takes about so many seconds."""
        left_s += self._after_s
        if self._bar:
            self._bar.update(done, total, left_s, what)
            return
        now, tenth = monotonic(), TENTHS * done // max(total, 1)
        if now - self._last < EVERY_S and tenth == self._tenth and done < total:
            return
        self._last, self._tenth = now, tenth
        if not self._every:
            left = f"about {duration(left_s)} left" if done < total else "done"
            took = duration(now - self._start)
            self.tell(f"{done} of {total} · {took} · {left} · {what}")

    def tell(self, sentence: str, style: str = "") -> None:
        """Print a sentence; on a terminal above the bar."""
        if self._bar:
            self._bar.tell(sentence, style)
        else:
            print(sentence, file=sys.stderr, flush=True)

    def _note(self, record: Record) -> None:
        if record.time is None or record.computes != EXACT:
            return
        p = record.problem
        at = f"{p.phase}, {p.mask}", p.kv_len
        self._best[at] = min(self._best.get(at, (inf, "")), (record.time.median_s, record.variant))

    def _table(self) -> Table:
        """The fastest exact variants so far, a row for a phase and a mask."""
        from rich.table import Table

        lengths = sorted({n for _, n in self._best})[-4:]
        made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        made.add_column("fastest so far, ms")
        for n in lengths:
            made.add_column(f"{n:,}")
        for regime in list(dict.fromkeys(regime for regime, _ in self._best))[-BOARD:]:
            cells = (self._best.get((regime, n)) for n in lengths)
            made.add_row(
                regime,
                *(f"{name} {ms(t)}" if t else "" for t, name in (c or (0, "") for c in cells)),
            )
        return made


class _Bar:
    """The bar, what is done now and the time left, redrawn in place; a table below."""

    def __init__(self, total: int, below: Any) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console = Console(file=cast(IO[str], Unchecked(sys.stderr)))
        self._below = below
        self._bar = Progress(BarColumn(30), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._task = self._bar.add_task("starting", total=total)
        self._live = Live(
            get_renderable=self._shown, console=self._console, transient=True, refresh_per_second=4
        )
        self.start, self.stop = self._live.start, self._live.stop

    def _shown(self) -> RenderableType:
        from rich.console import Group

        return Group(self._bar, self._below()) if self._below else self._bar

    def update(self, done: int, total: int, left_s: float, what: str) -> None:
        said = f"about {duration(left_s)} left · {for_terminal(what)}"
        self._bar.update(self._task, completed=done, total=total, description=said)

    def tell(self, sentence: str, style: str) -> None:
        self._console.print(for_terminal(sentence), style=style, highlight=False, markup=False)


def described(record: Record) -> str:
    """What a measurement came to, in a few words."""
    if record.time is None:
        return f"{record.status}: {record.reason}" if record.reason else "right"
    t = record.time
    text = f"{milliseconds(t.median_s)} [{ms(t.low_s)}, {ms(t.high_s)}]"
    if record.memory is not None:
        text += f" · {record.memory.peak_bytes / 2**20:.3g} MiB"
    error = record.worst_error
    return text + (f" · worst error {error:.1e}" if error is not None else "")
