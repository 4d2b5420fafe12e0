"""A sweep from plan to records: cell after cell, each written down as it ends."""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from queue import SimpleQueue
from time import monotonic
from types import FrameType
from typing import Any, Protocol

from attnbench.core.machine import Machine
from attnbench.core.record import Record
from attnbench.core.run_folder import RunFolder
from attnbench.core.settings import Settings
from attnbench.sweep.engine import START_LIMIT_S, Engine, WorkerLost, measure
from attnbench.sweep.plan import Cell, Plan
from attnbench.sweep.progress import Eta
from attnbench.sweep.start import APART, CodeChanged, RunRecords, Unchanged
from impls.asked import CantBeDone

EVERY_CELLS, EVERY_S = 8, 20.0
"""A reading after so many cells, or so long, whichever comes first."""
MARGIN = 0.05
"""Two readings minutes apart differ by that much on a quiet machine, one time in twenty."""
LOOKS, WAIT_S = 3, 0.3
"""So often in a row it must be off: a burst of somebody else's is over before."""
AGAIN = 0.1
"""Of a run's cells, how many are measured again at the most."""


class Canary:
    """The readings of one device through a run."""

    def __init__(self, read: Callable[[], float], noise: Iterable[Mapping[str, Any]]) -> None:
        """``noise``: this machine's floors, as its header has them."""
        self._read, self._noise = read, list(noise)
        self._cells, self._since = 0, time.monotonic()
        self.readings: list[float] = []
        self.off = 0.0
        """By what share the latest reading was off, signed; nought where that is noise."""

    @property
    def latest(self) -> float | None:
        """Seconds."""
        return self.readings[-1] if self.readings else None

    def margin(self) -> float:
        """What is noise: the machine's floor for calls about as long, if that is more."""
        if not self._noise or not self.readings:
            return MARGIN
        usual = statistics.median(self.readings)
        nearest = min(self._noise, key=lambda floor: abs(floor["call_s"] - usual))
        return max(MARGIN, float(nearest["floor"]))

    def count(self) -> None:
        """A cell has ended."""
        self._cells += 1

    def due(self) -> bool:
        """Whether it is time for a reading."""
        return self._cells >= EVERY_CELLS or time.monotonic() - self._since > EVERY_S

    def look(self) -> float:
        """Take a reading; by how much it is off, nought where that is noise."""
        for each in range(LOOKS):
            if each:
                time.sleep(WAIT_S)
            seconds = self._read()
            usual = statistics.median([*self.readings, seconds])
            off = seconds / usual - 1.0
            if abs(off) <= self.margin():
                off = 0.0
                break
        self.readings.append(seconds)
        self._cells, self._since, self.off = 0, time.monotonic(), off
        return off


class Drift:
    """What all canaries of a run told, for its end."""

    def __init__(self, cells: int) -> None:
        self._may = max(EVERY_CELLS, int(AGAIN * cells))
        self._seen: set[str] = set()
        self.worst = 0.0
        self.again = 0
        """So many cells were measured again."""

    def spoiled(self, keys: Iterable[str], off: float) -> list[str]:
        """Those of some cells that are to be measured again."""
        self.worst = max(self.worst, off, key=abs)
        new = [key for key in keys if key not in self._seen][: max(0, self._may - self.again)]
        self._seen.update(new)
        self.again += len(new)
        return new

    def sentence(self, marked: int) -> str:
        """What became of it; empty where the machine stood still."""
        if not self.worst:
            return ""
        way = "slower" if self.worst > 0 else "faster"
        said = f"the machine drifted: at the worst its canary was {abs(self.worst):.0%} {way}"
        if self.again:
            said += f"; {self.again} cell{'s' * (self.again > 1)} measured again"
        if marked:
            said += f"; {marked} taken meanwhile {'are' if marked > 1 else 'is'} marked"
        return said


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
class CellEnd:
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


Event = CellEnd | Spoiled | Gone


@dataclass(frozen=True)
class CellRequest:
    """What every cell of a sweep is asked with."""

    header: Mapping[str, Any]
    bits: frozenset[str]
    """The cells that are tried for the same bits."""


def through(slots: Sequence[Slot], cells: deque[Cell], asked: CellRequest) -> Iterator[Event]:
    """Measure the cells; who empties the queue ends it after those that are being measured."""
    lanes = [partial(_lane, slot, cells, asked) for slot in slots]
    return lanes[0]() if len(lanes) == 1 else _side_by_side(lanes)


def _lane(slot: Slot, cells: deque[Cell], asked: CellRequest) -> Iterator[Event]:
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
        yield CellEnd(slot, cell, record, canary.latest, canary.off)
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


def _measured(slot: Slot, cell: Cell, asked: CellRequest) -> Record:
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


DRIFTED = "drifted"
"""The flag of a time that was taken while the machine was not what it was for most of the run."""


class Watcher(Protocol):
    """Whoever shows the progress."""

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """A cell has ended; about so many seconds are left."""

    def tell(self, sentence: str) -> None:
        """Something that is not about one cell."""


class Stopped(Exception):
    """The user asked to stop; what was measured is kept."""


class NobodyLeft(CantBeDone):
    """All places where cells were measured are lost; a sentence."""


class Interrupt:
    """Ctrl-C: the first lets the cell end, the second does not."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = False
        self._say = say

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Catch Ctrl-C inside the block."""
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._say("stopping after this cell; Ctrl-C again stops at once")


class Sweep:
    """What is done, what is to do again, and the folder that it all goes to."""

    def __init__(self, plan: Plan, done: RunRecords, folder: RunFolder, watcher: Watcher) -> None:
        self._known, self._folder, self._watcher = done, folder, watcher
        self.todo = [c for c in plan.to_run if c.key not in done]
        self._eta, self._drift = Eta([c.guess_s for c in self.todo]), Drift(len(self.todo))
        self._ended, self._total, self._marked = 0, len(self.todo), 0
        self._with_record: set[str] = set()
        self._again: dict[str, Cell] = {}
        self._measured_before: set[str] = set()
        self._unchanged = Unchanged(folder.header)

    def run(self, slots: Sequence[Slot], interrupt: Interrupt, until: float = inf) -> int:
        """Measure what is to do, and what has to be done again, until there is nothing, or no
        time is left: how many cells have no record then.
        """
        bits, left, cells = first_of_each(self.todo), list(slots), deque(self.todo)
        asked = CellRequest(self._folder.header, bits)
        self._insist_unchanged()
        while cells and monotonic() < until:
            if not left:
                raise NobodyLeft(
                    "every place where cells were measured is lost; what was measured is kept: "
                    f"{self._folder.resumed_by}"
                )
            for event in through(left, cells, asked):
                match event:
                    case CellEnd():
                        self._end(event)
                    case Spoiled():
                        self._spoil(event)
                    case Gone():
                        left.remove(event.slot)
                        self._again[event.cell.key] = event.cell
                        self._watcher.tell(f"{event.why}; its cell is measured elsewhere")
                if interrupt.asked or monotonic() >= until:
                    cells.clear()
            if interrupt.asked:
                raise Stopped
            cells = deque(self._again.values())
            self._again = {}
        if said := self._drift.sentence(self._marked):
            self._watcher.tell(said)
        return len(self.todo) - len(self._with_record)

    def _end(self, event: CellEnd) -> None:
        self._insist_unchanged()
        record = event.record.with_(
            run=self._folder.name, node=event.slot.node, canary_s=event.canary_s
        )
        if event.off and record.time is not None:
            flag = f"{DRIFTED}: the canary before it was {event.off:+.0%} off"
            record = record.with_(time=record.time.with_(flags=[*record.time.flags, flag]))
            self._marked += 1
        record = self._known.doubt(record)
        if event.cell.key in self._measured_before:
            self._folder.supersede({event.cell.key})
        self._folder.append(record)
        self._with_record.add(event.cell.key)
        self._ended += 1
        self._watcher.cell(record, self._ended, self._total, self._eta.after(event.cell.guess_s))

    def _insist_unchanged(self) -> None:
        try:
            self._unchanged.check()
        except CodeChanged as changed:
            raise CodeChanged(
                f"{changed}; what was measured before is kept. Put it back, then "
                f"{self._folder.resumed_by}, or add --anyway to go on apart"
            ) from None

    def _spoil(self, event: Spoiled) -> None:
        by_key = {cell.key: cell for cell in event.cells}
        for key in self._drift.spoiled(by_key, event.off):
            self._again[key] = by_key[key]
            self._measured_before.add(key)
            self._total += 1
            self._eta.more(by_key[key].guess_s)


def sweep(
    plan: Plan,
    done: RunRecords,
    folder: RunFolder,
    slots: Sequence[Slot],
    watcher: Watcher,
    interrupt: Interrupt,
    until: float = inf,
) -> int:
    """Measure what is not done. ``folder`` holds every record when this returns or raises.

    ``until``: by the monotonic clock, when no more cells are begun; how many are left then.
    """
    for cell in plan.cells:
        if cell.left_out is not None and cell.key not in done:
            folder.append(cell.left_out.with_(run=folder.name))
    going_on = Sweep(plan, done, folder, watcher)
    if not going_on.todo:
        return 0
    with interrupt.watching():
        _know(slots, plan, folder)
        return going_on.run(slots, interrupt, until)


def check_cells(plan: Plan, engine: Engine, seed: int, watcher: Watcher) -> list[Record]:
    """Every cell through the gate alone."""
    header = {"seed": seed, "budget_s": 0.0}
    eta, total, records = Eta([c.guess_s for c in plan.to_run]), len(plan.to_run), []
    done, bits = 0, first_of_each(plan.to_run)
    for cell in plan.cells:
        record = cell.left_out or measure(cell, header, engine, timed=False, bits=cell.key in bits)
        records.append(record)
        if cell.left_out is None:
            done += 1
            watcher.cell(record, done, total, eta.after(cell.guess_s))
    return records


def _know(slots: Sequence[Slot], plan: Plan, folder: RunFolder) -> None:
    """Of each kind of machine what it is, and the ceilings measured on it, once a leg."""
    nodes, legs = folder.header.setdefault("nodes", {}), len(folder.header.get("legs", ()))
    for slot in slots:
        slot.node += f"{APART}{legs + 1}" * bool(legs)
        if slot.node not in nodes:
            nodes[slot.node] = {
                "machine": dict(slot.machine),
                "ceilings": _ceilings(plan, slot),
                "leg": legs + 1,
            }
            folder.header.setdefault("ceilings", nodes[slot.node]["ceilings"])
            folder.save_header()
        slot.ceilings = nodes[slot.node]["ceilings"]


def _ceilings(plan: Plan, slot: Slot) -> dict[str, Any]:
    question = {
        "ceilings": sorted({c.problem.dtype for c in plan.to_run}),
        "device": slot.device,
    }
    answer: dict[str, Any] = slot.engine.ask(question, START_LIMIT_S)["ceilings"]
    return answer
