"""A worker that holds one variant ready and times it a call at a time, for another's process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from attnbench.measure.settings import Settings
from attnbench.record import Status
from attnbench.sweep.commits import Refused
from attnbench.sweep.engine import LocalEngine, WorkerLost
from impls.problem import Problem

HOLD_LIMIT_S, TURN_LIMIT_S = 600.0, 300.0
"""For building and judging a variant; for a call."""


class Turns:
    """The side of a variant that a worker holds."""

    def __init__(self, worker: HoldingWorker) -> None:
        self._worker = worker

    def fresh(self) -> None:
        """Tensors at other addresses, warmed up."""
        self._worker.ask({"fresh": True}, TURN_LIMIT_S)

    def sample(self) -> float:
        """Seconds of one call."""
        return self.samples(1)[0]

    def samples(self, count: int) -> list[float]:
        """Seconds of each of some calls, after one that warms up what others have cooled."""
        answer = self._worker.ask({"sample": count}, TURN_LIMIT_S)
        return [float(seconds) for seconds in answer["seconds"]]


class HoldingWorker:
    """A worker behind an engine."""

    def __init__(self, engine: LocalEngine, seed: int, budget_s: float, folder: Path,
                 tables: Sequence[str] = (), *, beside: bool = False) -> None:  # fmt: skip
        """``tables``: row files in the folder whose rows it may be asked for too. ``beside``: the
        folder is another than the one in which the worker looks first.
        """
        self._engine, self._seed, self._budget_s = engine, seed, budget_s
        self._tables = tables
        self._folder, self._where = folder, {"beside": str(folder)} if beside else {}

    def beside(self, folder: Path) -> HoldingWorker:
        """The same process, of another folder."""
        return HoldingWorker(
            self._engine, self._seed, self._budget_s, folder, self._tables, beside=True
        )

    def hold(self, variant: str, problem: Problem) -> Turns:
        """Look the variant up, build and judge it."""
        tables = [str(self._folder / table) for table in self._tables]
        asked = {
            "variant": variant, "problem": problem.to_dict(), "seed": self._seed,
            "budget_s": self._budget_s, **({"tables": tables} if tables else {}),
        }  # fmt: skip
        self.ask({"hold": asked}, HOLD_LIMIT_S)
        return Turns(self)

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer; raises :class:`Refused` with what it, or its end, says."""
        try:
            answer = self._engine.ask({**question, **self._where}, limit_s)
        except WorkerLost as lost:
            last = lost.said.strip().splitlines()[-1:]
            raise Refused("; ".join([lost.reason, *last]), _ended(lost)) from None
        for word, status in (("refused", answer.get("status", "")), ("wrong", "wrong")):
            if word in answer:
                raise Refused(str(answer[word]), str(status))
        return answer


def _ended(lost: WorkerLost) -> str:
    """The status that the record of a cell would have."""
    if lost.wrong:
        return str(Status.WRONG)
    return str(Status.TIMED_OUT if lost.timed_out else Status.CRASHED)


def open_worker(settings: Settings, seed: int, budget_s: float,
                tables: Sequence[str] = (), *, device: str = "cpu",
                ) -> Callable[[Path], AbstractContextManager[HoldingWorker]]:  # fmt: skip
    """Workers with these settings, each with a folder first on its path.

    ``tables``: row files in that folder, whose rows are among those that can be held.
    """
    limited = device == "cpu"  # of a GPU's memory the address space is no measure

    @contextmanager
    def opened(folder: Path) -> Iterator[HoldingWorker]:
        with (
            _on_as_many_cores(settings.threads),
            LocalEngine(settings, path=folder, limited=limited) as engine,
        ):
            yield HoldingWorker(engine, seed, budget_s, folder, tables)

    return opened


@contextmanager
def _on_as_many_cores(threads: int) -> Iterator[None]:
    """Let what is started inside run on the same few cores, the last ones.

    Two processes that take turns would else sit on a core each, and one of these may be shared with
    somebody who is busy: the same code then seemed a third slower than itself.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-threads:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
