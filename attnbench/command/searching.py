"""A verb that searches: what it says first, its line of progress, and what Ctrl-C does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attnbench.answer.search import Look, Search, take_looks
from attnbench.command.progress import Progress
from attnbench.command.terminal import say
from attnbench.core.format import duration, roughly
from attnbench.core.settings import Settings
from attnbench.sweep.compare import starting_s
from attnbench.sweep.engine import LocalEngine, engine_on
from attnbench.sweep.sweep import Interrupt

Ask = Callable[[Search, Any, float], Look[Any] | None]


def search_all(
    searches: Sequence[Search],
    ask: Callable[[LocalEngine], Ask[Search]],
    seconds: float,
    device: str,
    settings: Settings,
    *,
    what: str,
    notes: Sequence[str] = (),
    hear: Callable[[Search, Callable[..., None]], None],
) -> bool:
    """Look until all searches are over or the time is spent, by an engine that has the device to
    itself. True if Ctrl-C ended it, after the look that was under way, or at once if it came twice.

    ``what`` begins the sentence before; ``notes`` follow it. ``hear`` gets each search after a
    look, and how to tell something about it.
    """

    def ahead_s() -> float:
        return sum(search.ahead_s() for search in searches)

    about_s = min(starting_s() + ahead_s(), seconds)
    say(f"{what}; about {roughly(about_s)}, {duration(seconds)} at the most")
    for note in notes:
        say(note)
    with Progress() as progress:

        def watch(search: Search, size: Any, limit_s: float) -> None:
            guess_s = search.guess_s(size)
            progress.at(0, 0, ahead_s(), search.words(size), begins_s=guess_s, most_s=limit_s)

        progress.at(0, 0, about_s, "the worker starts")
        interrupt = Interrupt(progress.tell)
        try:
            with engine_on(device, settings) as engine, interrupt.watching():
                for search in take_looks(searches, ask(engine), seconds, watch):
                    hear(search, progress.tell)
                    if interrupt.asked:
                        return True
        except KeyboardInterrupt:
            return True
    return False
