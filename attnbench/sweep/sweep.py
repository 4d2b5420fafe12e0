"""A sweep from plan to records: cell after cell, each written down and shown as it ends."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from math import inf
from queue import SimpleQueue
from time import monotonic
from types import FrameType
from typing import Protocol

from attnbench.core.format import percent
from attnbench.core.record import Record
from attnbench.core.run_folder import RunFolder
from attnbench.core.settings import allocator_of
from attnbench.sweep.engine import START_LIMIT_S, Engine, measure
from attnbench.sweep.places import Canary, Slot, SlotLost
from attnbench.sweep.plan import Cell, Plan
from attnbench.sweep.start import APART, RunRecords, Unchanged
from impls.errors import CantBeDone

EVERY_CELLS, EVERY_S = 8, 20.0
"""A reading of the canary after so many cells, or so long, whichever comes first."""
AGAIN = 0.1
"""The share of a run's cells that are measured again at the most."""
DRIFTED = "drifted"
"""The flag of a time that was taken while the machine was not what it was for most of the run."""


class Stopped(Exception):
    """The user asked to stop; what was measured is kept."""


class Interrupt:
    """Ctrl-C: the first lets the cell end, the second does not."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = False
        self._say = say

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Catch Ctrl-C inside the block; only the main thread can, another one hears nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._say("stopping after this measurement; Ctrl-C again stops at once")


# ---- progress ------------------------------------------------------------------------------------


class Watcher(Protocol):
    """Shows the progress."""

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """A cell has ended; about so many seconds are left."""

    def at(self, done: int, total: int, left_s: float, what: str) -> None:
        """So much of something else is done, and this begins; about so many seconds are left."""

    def tell(self, sentence: str) -> None:
        """Something that is not about one cell."""


PRIOR_S = 15.0
"""How long the guesses are trusted before what was measured counts for as much."""


class Eta:
    """Seconds left: the guesses of what is to come, corrected by how the guesses fared."""

    def __init__(self, guesses: Iterable[float]) -> None:
        self.left, self._guessed = sum(guesses), 0.0
        self._start: float | None = None

    def begin(self) -> None:
        """The first one begins, the worker having started."""
        self._start = self._start or monotonic()

    def after(self, guess_s: float) -> float:
        """The estimate when what was guessed to take so long has just ended."""
        self.left -= guess_s
        self._guessed += guess_s
        took = monotonic() - (self._start or monotonic())
        return max(0.0, self.left) * (took + PRIOR_S) / (self._guessed + PRIOR_S)


# ---- the sweep -----------------------------------------------------------------------------------


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

    ``until``: by the monotonic clock, when no more cells are begun; how many are left then. Raises
    as :meth:`Sweep.run`.
    """
    for cell in plan.cells:
        if cell.left_out is not None and cell.key not in done:
            folder.append(cell.left_out.with_(run=folder.name))
    whole = Sweep(plan, done, folder, watcher)
    if not whole.todo:
        return 0
    with interrupt.watching():
        there = list(_described(slots, plan, folder, watcher))
        return whole.run(there, interrupt, until)


def check_cells(plan: Plan, engine: Engine, seed: int, watcher: Watcher) -> list[Record]:
    """The record of every cell, through the gate alone."""
    header = {"seed": seed, "budget_s": 0.0}
    eta, total = Eta(cell.guess_s for cell in plan.to_run), len(plan.to_run)
    eta.begin()
    records, done, bits = [], 0, first_of_each(plan.to_run)
    for cell in plan.cells:
        record = cell.left_out or measure(cell, header, engine, timed=False, bits=cell.key in bits)
        records.append(record)
        if cell.left_out is None:
            done += 1
            watcher.cell(record, done, total, eta.after(cell.guess_s))
    return records


def first_of_each(cells: Iterable[Cell]) -> frozenset[str]:
    """The keys of each variant's first cell in each phase: these are tried for the same bits."""
    first: dict[tuple[str, str], str] = {}
    for cell in cells:
        first.setdefault((cell.variant.label, cell.problem.phase), cell.key)
    return frozenset(first.values())


def _described(
    slots: Sequence[Slot], plan: Plan, folder: RunFolder, watcher: Watcher
) -> Iterator[Slot]:
    """The slots that are not lost by then: each kind of machine is written down with the ceilings
    measured on it, once a leg.
    """
    nodes, leg = folder.header.setdefault("nodes", {}), len(folder.header.get("legs", ())) + 1
    dtypes = sorted({c.problem.dtype for c in plan.to_run})
    for slot in slots:
        slot.node += f"{APART}{leg}" * (leg > 1)
        if slot.node not in nodes:
            question = {"ceilings": dtypes, "device": slot.device}
            try:
                ceilings = slot.engine.ask(question, START_LIMIT_S)["ceilings"]
            except SlotLost as lost:
                watcher.tell(f"{lost}; the others measure without it")
                continue
            about = {"machine": dict(slot.machine), "ceilings": ceilings, "leg": leg}
            nodes[slot.node] = about
            folder.header.setdefault("ceilings", ceilings)
            folder.save_header()
        slot.ceilings = nodes[slot.node]["ceilings"]
        yield slot


Event = Callable[[], None]
"""What the main thread does about something that a lane reports."""


class Sweep:
    """What is done, what is to do again, and the folder that it all goes to.

    Each slot has a lane, which measures cells from one queue and reads its canary between them.
    Lanes run side by side in threads; what they report is handled in the main thread.
    """

    def __init__(self, plan: Plan, done: RunRecords, folder: RunFolder, watcher: Watcher) -> None:
        self._known, self._folder, self._watcher = done, folder, watcher
        self.todo = [c for c in plan.to_run if c.key not in done]
        self._cells, self._bits = deque(self.todo), first_of_each(self.todo)
        self._eta, self._total = Eta(c.guess_s for c in self.todo), len(self.todo)
        self._ended = self._marked = 0
        self._recorded: set[str] = set()
        self._again: dict[str, Cell] = {}
        self._repeated: set[str] = set()
        """Cells that are measured a second time because the machine drifted."""
        self._worst = 0.0
        self._left: list[Slot] = []
        self._unchanged = Unchanged(folder)

    def run(self, slots: Sequence[Slot], interrupt: Interrupt, until: float) -> int:
        """Measure what is to do, and what has to be done again, until there is nothing, or no
        time is left: how many cells have no record then. Raises :class:`Stopped` after Ctrl-C, and
        CantBeDone where a file of the run was changed, or every place is lost.
        """
        self._left = list(slots)
        while self._cells and monotonic() < until:
            if not self._left:
                raise CantBeDone(
                    "every place that measured is lost; what was measured is kept: "
                    f"{self._folder.resumed_by}"
                )
            lanes = [self._lane(slot) for slot in self._left]
            with closing(_side_by_side(lanes, self._stop)) as events:
                for handle in events:
                    handle()
                    if interrupt.asked or monotonic() >= until:
                        self._cells.clear()
            if interrupt.asked:
                raise Stopped
            self._cells, self._again = deque(self._again.values()), {}
        if self._worst:
            self._watcher.tell(
                f"the drift check moved by up to {percent(abs(self._worst))}; measured "
                f"again: {len(self._repeated)}; marked as noisy: {self._marked}"
            )
        return len(self.todo) - len(self._recorded)

    def _stop(self) -> None:
        """End what every lane is doing, from another thread."""
        self._cells.clear()
        for slot in self._left:
            slot.engine.stop()

    def _lane(self, slot: Slot) -> Iterator[Event]:
        header = {**self._folder.header, "ceilings": slot.ceilings}
        canary = slot.canary = slot.canary or Canary(slot.canary_s, header.get("noise", ()))
        since: list[Cell] = []
        while self._cells:
            try:
                cell = self._cells.popleft()
            except IndexError:  # another lane took the last one
                return
            try:
                if not canary.readings:
                    canary.look()
                self._eta.begin()
                record = measure(cell, header, slot.engine, bits=cell.key in self._bits)
            except SlotLost as lost:
                yield partial(self._lose, slot, cell, str(lost))
                return
            record = record.with_(
                run=self._folder.name,
                allocator=allocator_of(header),
                node=slot.node,
                canary_s=canary.readings[-1],
            )
            yield partial(self._end, cell, record, canary.off)
            since.append(cell)
            due = len(since) >= EVERY_CELLS or time.monotonic() - canary.since > EVERY_S
            if due or not self._cells:
                try:
                    off = canary.look()
                except SlotLost:
                    return  # what it measured stands
                if off:
                    yield partial(self._spoil, since, off)
                since = []

    def _end(self, cell: Cell, record: Record, off: float) -> None:
        """A cell has its record. ``off``: the share by which the canary before it was off."""
        self._unchanged.check()
        if off and record.time is not None:
            flag = f"{DRIFTED}: the drift check before it was {percent(off, '+')} off"
            record = record.with_(time=record.time.with_(flags=[*record.time.flags, flag]))
            self._marked += 1
        record = self._known.doubt(record)
        if cell.key in self._repeated:
            self._folder.supersede({cell.key})
        self._folder.append(record)
        self._recorded.add(cell.key)
        self._ended += 1
        self._watcher.cell(record, self._ended, self._total, self._eta.after(cell.guess_s))

    def _spoil(self, cells: Sequence[Cell], off: float) -> None:
        """While these were measured the machine changed by that share: measure some again."""
        self._worst = max(self._worst, off, key=abs)
        for cell in cells:
            most = max(EVERY_CELLS, int(AGAIN * len(self.todo)))
            if cell.key not in self._repeated and len(self._repeated) < most:
                self._again[cell.key] = cell
                self._repeated.add(cell.key)
                self._total += 1
                self._eta.left += cell.guess_s

    def _lose(self, slot: Slot, cell: Cell, why: str) -> None:
        self._left.remove(slot)
        self._again[cell.key] = cell
        self._watcher.tell(f"{why}; what it was at is measured elsewhere")


Inbox = SimpleQueue[Event | BaseException | None]
"""Of what lanes report; None from one that has ended."""


def _follow(lane: Iterator[Event], inbox: Inbox) -> None:
    try:
        for event in lane:
            inbox.put(event)
        inbox.put(None)
    except BaseException as error:
        inbox.put(error)


def _side_by_side(
    lanes: Sequence[Iterator[Event]], stop: Callable[[], None]
) -> Generator[Event, None, None]:
    """The events of all lanes as they come; an exception in a lane is raised here.

    ``stop`` ends the lanes where this is left early: none goes on when it has returned.
    """
    if len(lanes) == 1:
        yield from lanes[0]
        return
    inbox: Inbox = SimpleQueue()
    threads = [threading.Thread(target=_follow, args=(x, inbox), daemon=True) for x in lanes]
    ended = 0
    try:
        for thread in threads:
            thread.start()
        while ended < len(lanes):
            event = inbox.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                ended += 1
            else:
                yield event
    except BaseException:
        stop()
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join()
        raise
