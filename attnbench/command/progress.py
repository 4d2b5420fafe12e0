"""What is shown while a verb works: a live bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import inf
from threading import Event, Thread
from time import monotonic
from typing import IO, TYPE_CHECKING, cast

from attnbench.core.format import Unchecked, for_terminal, roughly, size, time_interval
from attnbench.core.record import FINDINGS, Record, Status

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERY_S, TENTHS = 10.0, 10
"""Where there is no terminal, a line so often, or after each tenth of the whole."""
LATE = 0.1
"""Once overdue, a tenth of the time so far is assumed to remain."""
PRIOR_S = 15.0
"""How long the guesses are trusted before what was measured counts for as much."""
Now = Callable[[], tuple[float, str]]
"""The share of the time that is over, and the words beside it."""


class Progress:
    """What a verb does now, how far it is, and about how long is left, until the block ends.

    It is told the guesses of what is to come, and corrects them by how earlier ones fared. With
    ``every`` it prints a line for each measurement.
    """

    def __init__(self, *, every: bool = False) -> None:
        self._every = every
        self._start = self._last = monotonic()
        self._tenth = 0
        self._known = (0, 0, inf, self._start, "starting")
        """What is done, of how many, when all is, and since when; and what begins."""
        self._first: float | None = None
        self._over_s = self._begun_s = 0.0
        """The guesses of what is over, and of what is under way."""
        self._guesses, self._steps = list[float](), 0
        self._ended = Event()
        self._bar = _Bar(self._now) if sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        else:
            Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._bar:
            self._bar.stop()

    def _beat(self) -> None:
        while not self._ended.wait(1.0):
            if (now := monotonic()) - self._last >= EVERY_S:
                self._line(now)

    def at(
        self,
        done: int,
        total: int,
        ahead_s: float,
        what: str,
        *,
        begins_s: float = 0.0,
        most_s: float = inf,
    ) -> None:
        """So much is done, and this begins. A search has no total: 0.

        ``ahead_s``: the guess of all that is to come; ``begins_s``: of what begins, which is over
        when this is called again; ``most_s``: what is left cannot take longer.
        """
        now, tenth = monotonic(), TENTHS * done // max(total, 1) if total else 0
        self._first = now if self._first is None else self._first
        self._over_s, self._begun_s = self._over_s + self._begun_s, begins_s
        slower = (now - self._first + PRIOR_S) / (self._over_s + PRIOR_S)
        left_s = min(max(0.0, ahead_s) * slower, most_s)
        self._known = (done, total, now + left_s, now, what)
        if self._bar:
            self._bar.refresh()
        if now - self._last >= EVERY_S or tenth != self._tenth or 0 < total <= done:
            self._tenth = tenth
            self._line(now)

    def cell(self, record: Record, done: int, total: int, guess_s: float, ahead_s: float) -> None:
        """A measurement has ended that was to take ``guess_s``, and others take ``ahead_s``."""
        what = f"{record.variant} {record.problem}"
        if self._every or record.status in FINDINGS:
            style = "" if record.status is Status.MEASURED else "yellow"
            self.tell(f"[{done}/{total}] {what}: {described(record)}", style)
        self._over_s += guess_s
        self.at(done, total, ahead_s, what)

    def expect(self, guesses: Sequence[float]) -> None:
        """So many seconds for each of the steps that come now."""
        self._guesses, self._steps = list(guesses), 0

    def step(self, what: str) -> None:
        """The next of the steps that were expected begins, and the one before has ended."""
        done, left = self._steps, self._guesses[self._steps :]
        self._steps = min(done + 1, len(self._guesses))
        self.at(done, len(self._guesses), sum(left), what, begins_s=left[0] if left else 0.0)

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


class _Bar:
    """The bar, what is done now and the time left, redrawn in place."""

    def __init__(self, now: Now) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console, self._now = Console(file=cast(IO[str], Unchecked(sys.stderr))), now
        self._live = Live(
            get_renderable=self._renderable,
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        self.start, self.stop = self._live.start, self._live.stop
        self.refresh = self._live.refresh

    def _renderable(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        share, words = self._now()
        line = Table.grid(padding=(0, 1))
        text = Text(words, no_wrap=True, overflow="ellipsis")
        line.add_row(ProgressBar(1.0, share, width=30), text)
        return line

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
