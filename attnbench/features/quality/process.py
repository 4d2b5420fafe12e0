"""Questions put to processes of their own, which answer in stages.

One process loads what all of them need and forks for each question, since loading takes longer than
most answers; before it forks it computes nothing, so that no thread is lost on the way. Each stage
counts once it is said: what dies or hangs later costs the stages that were still to come.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Self

from attnbench.core.process import SEEN_END_S, Aside, Lost, free_memory
from attnbench.core.settings import Settings

START_S = 120.0
"""For the process to load what it needs."""
Stage = dict[str, Any]


class Apart:
    """Whoever is asked: ``python -m module``, which calls :func:`answering.main`."""

    def __init__(self, module: str, settings: Settings, *, limited: bool = True) -> None:
        """``limited``: to the memory that is free; a GPU's driver reserves more than there is."""
        self._module, self._settings, self._limited = module, settings, limited
        self._server: Aside | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stages(self, question: Mapping[str, Any], limit_s: float) -> Iterator[Stage]:
        """What is answered, stage by stage; raises :class:`Lost` where it ends badly."""
        until = monotonic() + limit_s + START_S * (self._server is None)
        server = self._server = self._server or Aside(self._module, self._settings.threads)
        memory = free_memory() if self._limited else 0
        server.ask({"settings": vars(self._settings), "memory": memory, "question": dict(question)})
        child, ended = 0, False
        try:
            for stage in server.answers(until):
                if "child" in stage:
                    child = stage["child"]
                elif "ended" in stage:
                    ended = True
                    if stage["ended"]:
                        raise Lost(server.how(stage["ended"]))
                    return
                else:
                    yield stage
            raise Lost(server.end(until) or f"it was still running after {limit_s:.0f} s")
        finally:
            if child:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child, signal.SIGKILL)  # and whatever it started
            if not ended and not _sees_the_end(server):
                self.close()

    def close(self) -> None:
        """End the process; the next question starts another."""
        if self._server is not None:
            self._server.close()
            self._server = None


def _sees_the_end(server: Aside) -> bool:
    """Whether the process tells the end of a child that was killed, and can be asked again."""
    with suppress(Lost):
        return server.lives and any("ended" in x for x in server.answers(monotonic() + SEEN_END_S))
    return False
