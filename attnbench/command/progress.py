"""What is shown while a verb works: a live bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import inf
from threading import Event, Thread
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, cast

from attnbench.answer.ranking import EXACT
from attnbench.core.format import Unchecked, for_terminal, ms, roughly, size, time_interval
from attnbench.core.record import FINDINGS, Record, Status
from attnbench.sweep.sweep import Eta

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

EVERY_S, TENTHS = 10.0, 10
"""Where there is no terminal, a line so often, or after each tenth of the whole."""
BOARD = 6
LATE = 0.1
"""Once overdue, a tenth of the time so far is assumed to remain."""


Now = Callable[[], tuple[float, str]]
"""The share of the time that is over, and the words beside it."""


class Progress:
    """What a verb does now, how far it is, and about how long is left, until the block ends.

    It is told how far it is (:meth:`at`), or how long each step takes (:meth:`expect`) and which
    begins (:meth:`step`). With ``every`` it prints a line for each measurement.
    """

    def __init__(
        self, total: int = 0, *, every: bool = False, best: bool = False, after_s: float = 0.0
    ) -> None:
        """``best``: show what is fastest so far, too. ``after_s``: what follows the last of all."""
        self._after_s = after_s
        self._every = every
        self._start = self._last = monotonic()
        self._tenth = 0
        self._best: dict[tuple[str, int], tuple[float, str]] = {}
        self._known = (0, total, inf, self._start, "starting")
        """What is done, of how many, when all is, and since when; and what begins."""
        self._guesses, self._begun, self._eta = list[float](), 0, Eta(())
        self._over = Event()
        below = self._table if best else None
        self._bar = _Bar(self._now, below) if sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        else:
            Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._bar:
            self._bar.stop()

    def _beat(self) -> None:
        while not self._over.wait(1.0):
            if (now := monotonic()) - self._last >= EVERY_S:
                self._line(now)

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """A measurement has ended; about so many seconds are left."""
        p, what = record.problem, f"{record.variant} {record.problem}"
        if record.time is not None and record.computes == EXACT:
            at, this = (f"{p.phase}, {p.mask}", p.kv_len), (record.time.median_s, record.variant)
            self._best[at] = min(self._best.get(at, this), this)
        if self._every or record.status in FINDINGS:
            style = "" if record.status is Status.MEASURED else "yellow"
            self.tell(f"[{done}/{total}] {what}: {described(record)}", style)
        self.at(done, total, left_s, what)

    def at(self, done: int, total: int, left_s: float, what: str) -> None:
        """So much is done; the rest takes about so many seconds. A search has no total: 0."""
        now, tenth = monotonic(), TENTHS * done // max(total, 1) if total else 0
        self._known = (done, total, now + left_s + self._after_s, now, what)
        if self._bar:
            self._bar.refresh()
        if now - self._last >= EVERY_S or tenth != self._tenth or 0 < total <= done:
            self._tenth = tenth
            self._line(now)

    def expect(self, guesses: Sequence[float]) -> None:
        """So many seconds for each of the steps that come now."""
        self._guesses, self._begun, self._eta = list(guesses), 0, Eta(guesses)

    def step(self, what: str) -> None:
        """The next of the steps that were expected begins, and the one before has ended."""
        self._eta.begin()
        ended, self._begun = self._begun, min(self._begun + 1, len(self._guesses))
        left_s = self._eta.after(self._guesses[ended - 1]) if ended else self._eta.left
        self.at(ended, len(self._guesses), left_s, what)

    def _left(self, now: float) -> tuple[float, str]:
        """About so many seconds are left, and the same in words."""
        done, total, until, since, _ = self._known
        left_s = max(until - now, LATE * (now - since))
        if 0 < total <= done:
            return left_s, "done"
        return left_s, f"about {roughly(left_s)} left" if until < inf else "begun"

    def _line(self, now: float) -> None:
        if self._bar or self._every:
            return
        self._last, (done, total, *_, what) = now, self._known
        count = f"{done} of {total} · " if total else ""
        self.tell(f"{count}{roughly(now - self._start)} · {self._left(now)[1]} · {what}")

    def _now(self) -> tuple[float, str]:
        """The share of the time that is over, and the words beside the bar."""
        now, (done, total, *_, what) = monotonic(), self._known
        took, (left_s, words) = now - self._start, self._left(now)
        if left_s == inf:
            return 0.0, for_terminal(what)
        count = f"{done}/{total} · " if total else ""
        return took / max(took + left_s, 1e-9), f"{count}{words} · {for_terminal(what)}"

    def tell(self, sentence: str, style: str = "") -> None:
        """Print a sentence; on a terminal above the bar."""
        if self._bar:
            self._bar.say(sentence, style)
        else:
            print(sentence, file=sys.stderr, flush=True)

    def _table(self) -> Table:
        """The fastest exact variants so far, a row for a phase and a mask."""
        from rich.table import Table
        from rich.text import Text

        lengths = sorted({n for _, n in self._best})[-4:]
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("fastest so far, ms")
        for n in lengths:
            table.add_column(f"{n:,}")
        for regime in list(dict.fromkeys(regime for regime, _ in self._best))[-BOARD:]:
            cells = (self._best.get((regime, n)) for n in lengths)
            row = (regime, *(f"{c[1]} {ms(c[0])}" if c else "" for c in cells))
            table.add_row(*(Text(for_terminal(text)) for text in row))
        return table


class _Bar:
    """The bar, what is done now and the time left, redrawn in place; a table below."""

    def __init__(self, now: Now, below: Any) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=cast(IO[str], Unchecked(sys.stderr)))
        self._now, self._below = now, below
        self._live = Live(
            get_renderable=self._renderable,
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        self.start, self.stop = self._live.start, self._live.stop
        self.refresh = self._live.refresh

    def _renderable(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        share, words = self._now()
        line = Table.grid(padding=(0, 1))
        text = Text(words, no_wrap=True, overflow="ellipsis")
        line.add_row(ProgressBar(1.0, share, width=30), text)
        return Group(line, self._below()) if self._below else line

    def say(self, sentence: str, style: str) -> None:
        self._console.print(
            for_terminal(sentence), style=style, highlight=False, markup=False, soft_wrap=True
        )


def described(record: Record) -> str:
    """What a measurement came to, in a few words."""
    if record.time is None:
        return f"{record.status}: {record.reason}" if record.reason else "right"
    t = record.time
    text = time_interval(t.median_s, t.low_s, t.high_s)
    if record.memory is not None:
        text += f" · {size(record.memory.peak_bytes)}"
    error = record.worst_error
    return text + (f" · worst error {error:.1e}" if error is not None else "")
