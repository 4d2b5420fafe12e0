"""The places where cells are measured: each a device of its own, one cell at a time.

With one place the cells are measured here, in turn; with several each has a thread that takes the
next cell as it gets free. What happens comes out as events, in one thread, so that whoever writes
it down need not know how many there were.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from attnbench.machine import Machine
from attnbench.measure.settings import Settings
from attnbench.record import Record
from attnbench.sweep.asking import Engine, measure
from attnbench.sweep.canary import Canary
from attnbench.sweep.engine import START_LIMIT_S, WorkerLost
from attnbench.sweep.plan import Cell


class SlotLost(Exception):
    """The place itself is gone, with its machine; a sentence."""


@dataclass
class Slot:
    """A device, and who asks its worker."""

    engine: Engine
    device: str = "cpu"
    name: str = "this machine"
    node: str = ""
    """The kind of machine: records of one kind may be ranked together."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """The fingerprint of that kind."""
    ceilings: Mapping[str, Any] = field(default_factory=dict)
    canary: Canary | None = None


class Places(Protocol):
    """Somewhere with slots: this machine, or a cluster."""

    machine: Machine
    """What can run there is planned by this."""
    kind: str | None
    """The kind of device that the problems are for, where it is said."""
    note: str
    """What to say of them first."""

    def slots(self, settings: Settings, device: str) -> AbstractContextManager[list[Slot]]:
        """The slots, held for one run. ``device``: that of the problems."""


@dataclass(frozen=True)
class Ended:
    """A cell has its record. ``off``: by how much the canary before it was."""

    slot: Slot
    cell: Cell
    record: Record
    canary_s: float | None
    off: float


@dataclass(frozen=True)
class Spoiled:
    """While these were measured the machine became another, by that share."""

    slot: Slot
    cells: Sequence[Cell]
    off: float


@dataclass(frozen=True)
class Gone:
    """A place is lost, and the cell that it was at is not measured."""

    slot: Slot
    cell: Cell
    why: str


Event = Ended | Spoiled | Gone


@dataclass(frozen=True)
class Asked:
    """What every cell of a sweep is asked with."""

    header: Mapping[str, Any]
    bits: frozenset[str]
    """The cells that are tried for the same bits."""


def through(slots: Sequence[Slot], cells: deque[Cell], asked: Asked) -> Iterator[Event]:
    """Measure the cells; who empties the queue ends it after those that are being measured."""
    lanes = [partial(_lane, slot, cells, asked) for slot in slots]
    return lanes[0]() if len(lanes) == 1 else _side_by_side(lanes)


def _lane(slot: Slot, cells: deque[Cell], asked: Asked) -> Iterator[Event]:
    """One place's cells and its canary's readings between them."""
    canary = slot.canary or Canary(partial(_reading, slot), asked.header.get("noise", ()))
    slot.canary = canary
    since: list[Cell] = []
    while (cell := _next(cells)) is not None:
        try:
            if not canary.readings:
                canary.look()
            record = _measured(slot, cell, asked)
        except SlotLost as lost:
            yield Gone(slot, cell, str(lost))
            return
        yield Ended(slot, cell, record, canary.latest, canary.off)
        since.append(cell)
        canary.count()
        if canary.due() or not cells:
            try:
                off = canary.look()
            except SlotLost:
                return  # what it measured stands
            if off:
                yield Spoiled(slot, since, off)
            since = []


def _next(cells: deque[Cell]) -> Cell | None:
    try:
        return cells.popleft()
    except IndexError:
        return None


def _measured(slot: Slot, cell: Cell, asked: Asked) -> Record:
    header = {**asked.header, "ceilings": slot.ceilings}
    return measure(cell, header, slot.engine, bits=cell.key in asked.bits)


def _reading(slot: Slot) -> float:
    """By a new worker where the one before was broken by somebody."""
    question = {"canary": slot.device}
    try:
        return float(slot.engine.ask(question, START_LIMIT_S)["canary"])
    except WorkerLost:
        return float(slot.engine.ask(question, START_LIMIT_S)["canary"])


def _side_by_side(lanes: Sequence[Callable[[], Iterator[Event]]]) -> Iterator[Event]:
    """The events of all lanes as they come; what goes wrong in a lane goes wrong here."""
    inbox: SimpleQueue[Event | BaseException | None] = SimpleQueue()

    def run(lane: Callable[[], Iterator[Event]]) -> None:
        try:
            for event in lane():
                inbox.put(event)
            inbox.put(None)
        except BaseException as error:
            inbox.put(error)

    for lane in lanes:
        threading.Thread(target=run, args=(lane,), daemon=True).start()
    ended = 0
    while ended < len(lanes):
        event = inbox.get()
        if isinstance(event, BaseException):
            raise event
        if event is None:
            ended += 1
        else:
            yield event


def first_of_each(cells: Iterable[Cell]) -> frozenset[str]:
    """The keys of each variant's first cell in each phase."""
    seen: dict[tuple[str, str], str] = {}
    for cell in cells:
        seen.setdefault((cell.variant.label, cell.problem.phase), cell.key)
    return frozenset(seen.values())
