"""A worker that holds a variant, so that its calls can take turns with another's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from attnbench.core.settings import Settings
from attnbench.sweep.engine import LocalEngine, WorkerLost, lost_status
from impls.problem import Problem

HOLD_LIMIT_S, TURN_LIMIT_S = 600.0, 300.0
"""For building and judging a variant; for a call."""


class Refused(Exception):
    """A worker can't take a variant: why, in a sentence."""

    def __init__(self, why: str, status: str = "") -> None:
        """``status``: that of a record for the same reason, where there is one."""
        super().__init__(why)
        self.status = status


class WorkerSide:
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
        return [float(s) for s in self._worker.ask({"sample": count}, TURN_LIMIT_S)["seconds"]]


class HoldingWorker:
    """A worker behind an engine.

    ``tables``: row files in the folder whose rows it may be asked for too.
    """

    def __init__(
        self,
        engine: LocalEngine,
        seed: int,
        budget_s: float,
        folder: Path,
        tables: Sequence[str] = (),
    ) -> None:
        self._engine, self._seed, self._budget_s = engine, seed, budget_s
        self._folder, self._tables = folder, tables
        self._where: dict[str, str] = {}

    def beside(self, folder: Path) -> HoldingWorker:
        """The same process, of another folder than the one in which it looks first."""
        other = HoldingWorker(self._engine, self._seed, self._budget_s, folder, self._tables)
        other._where = {"beside": str(folder)}
        return other

    def hold(self, variant: str, problem: Problem) -> WorkerSide:
        """Look the variant up, build and judge it."""
        asked = {
            "variant": variant,
            "problem": problem.to_dict(),
            "seed": self._seed,
            "budget_s": self._budget_s,
        }
        if self._tables:
            asked["tables"] = [str(self._folder / table) for table in self._tables]
        self.ask({"hold": asked}, HOLD_LIMIT_S)
        return WorkerSide(self)

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The worker's answer; raises :class:`Refused` with what it, or its end, says."""
        try:
            answer = self._engine.ask({**question, **self._where}, limit_s)
        except WorkerLost as lost:
            last = lost.output.strip().splitlines()[-1:]
            raise Refused("; ".join([lost.reason, *last]), str(lost_status(lost))) from None
        if "refused" in answer:
            raise Refused(str(answer["refused"]), str(answer.get("status", "")))
        if "wrong" in answer:
            raise Refused(str(answer["wrong"]), "wrong")
        return answer


def open_worker(
    settings: Settings,
    seed: int,
    budget_s: float,
    tables: Sequence[str] = (),
    *,
    device: str = "cpu",
) -> Callable[[Path], AbstractContextManager[HoldingWorker]]:
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
