"""The ruler tests itself: planted faults, through the same worker, gate and meters as any variant.

Each has to be caught, by the right status and by a reason that names the deed. A fault that can't
be planted here, for lack of a device, is reported and not counted. The faults are data until a
worker loads their code, so this needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from attnbench.core.machine import Machine, why_not
from attnbench.core.record import PROTOCOL, Record, Status
from attnbench.core.wire import plain
from attnbench.gate.plants import PLANTS, Plant
from attnbench.sweep.engine import START_LIMIT_S, LocalEngine, measure
from attnbench.sweep.plan import Cell
from attnbench.sweep.sweep import Watcher

BUDGET_S = 0.03
"""Of sampling; short, since a fault needs no narrow interval."""
PLANT_S = 1.0
"""A guess at the seconds of a plant."""


@dataclass(frozen=True)
class PlantOutcome:
    """The result of one plant."""

    deed: str
    kind: str
    """``masks``, ``memories`` …"""
    caught: bool | None
    """None where it could not be planted here."""
    status: str
    said: str
    """The reason, or what the record shows."""
    wanted: str = ""
    """How it should have been caught, where it escaped."""
    spent_s: float = 0.0


@dataclass(frozen=True)
class SelfCheck:
    """All outcomes of one self-check on one machine."""

    outcomes: list[PlantOutcome]
    machine: str
    versions: dict[str, str]
    seed: int = 0
    spent_s: float = 0.0
    protocol: int = PROTOCOL
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    stopped: bool = False
    """Whether it was stopped before its end."""

    @property
    def counted(self) -> int:
        """How many were planted."""
        return sum(o.caught is not None for o in self.outcomes)

    @property
    def caught(self) -> int:
        """How many of those were caught."""
        return sum(o.caught is True for o in self.outcomes)

    @property
    def passed(self) -> bool:
        """Whether everything was tried, something was planted and nothing escaped."""
        return 0 < self.counted == self.caught and not self.stopped

    @property
    def line(self) -> str:
        """``ruler self-check: 34/34 on this machine``"""
        left = len(self.outcomes) - self.counted
        rest = f"; {left} could not be tried here" if left else ""
        rest += "; stopped before its end" if self.stopped else ""
        return f"ruler self-check: {self.caught}/{self.counted} on this machine{rest}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "n": self.counted, "caught": self.caught, "line": self.line}


def run_plants(
    machine: Machine,
    engine: LocalEngine,
    seed: int,
    watcher: Watcher,
    plants: Sequence[Plant] = PLANTS,
    *,
    on_gpu: LocalEngine | None = None,
) -> Iterator[PlantOutcome]:
    """The result of each plant, one after another, by the sweep's own way to measure a cell.

    One that cheats at nothing, and whose cost must be shown, is measured again where its times
    differed too much to be believed: noise, and nothing that escaped. ``on_gpu`` measures those
    that are planted on a GPU, where that is another engine.
    """
    question = {"ceilings": ["float32"], "device": "cpu"}
    ceilings = engine.ask(question, START_LIMIT_S)["ceilings"]
    header = {"seed": seed, "budget_s": BUDGET_S, "ceilings": ceilings}
    guess_s = PLANT_S
    for number, plant in enumerate(plants, 1):
        if (missing := why_not(plant.row, machine)) is not None:
            yield PlantOutcome(plant.deed, plant.kind, None, Status.UNAVAILABLE, missing.reason)
            continue
        began = monotonic()
        cell = Cell(plant.row, plant.problem, left_out=None, guess_s=1.0)
        own = engine if plant.problem.device == "cpu" else on_gpu or engine
        record = measure(cell, header, own, limit_s=plant.limit_s)
        outcome = judge(plant, record, monotonic() - began)
        if plant.shows is not None and record.status is Status.IMPLAUSIBLE:
            record = measure(cell, header, own, limit_s=plant.limit_s)
            outcome = _again(outcome, judge(plant, record, monotonic() - began - outcome.spent_s))
        watcher.cell(record, number, len(plants), guess_s, guess_s * (len(plants) - number))
        yield outcome


def judge(plant: Plant, record: Record, spent_s: float = 0.0) -> PlantOutcome:
    """What became of a plant: whether its record shows that its fault was caught."""
    message, expected = record.reason or record.wrong_on, f"{plant.status}, matching {plant.said!r}"
    good = record.status is plant.status and re.search(plant.said, message) is not None
    if plant.shows is not None:
        where, least = plant.shows
        value: Any = plain(record)
        for name in where.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        expected = f"{plant.status}, with {where} at least {least:g}"
        good = good and value is not None and value >= least
        message = record.reason or f"{where} is {value if value is None else format(value, '.4g')}"
    expected, status = "" if good else expected, str(record.status)
    return PlantOutcome(plant.deed, plant.kind, good, status, message, expected, round(spent_s, 3))


def _again(first: PlantOutcome, second: PlantOutcome) -> PlantOutcome:
    """What was asked twice: the second outcome, which tells of the first."""
    message = f"{second.said}; asked again, at first {first.status}: {first.said}"
    return replace(second, said=message, spent_s=round(first.spent_s + second.spent_s, 3))
