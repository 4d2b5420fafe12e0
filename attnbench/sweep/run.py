"""A sweep from plan to records: cell after cell, each written down as it ends."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from time import monotonic
from types import FrameType
from typing import Any, Protocol

from attnbench.record import Record
from attnbench.store import RunFolder
from attnbench.sweep.asking import Engine, measure
from attnbench.sweep.canary import Drift
from attnbench.sweep.engine import START_LIMIT_S
from attnbench.sweep.leg import APART, CodeChanged, Unchanged
from attnbench.sweep.plan import Cell, Plan
from attnbench.sweep.plausible import Known
from attnbench.sweep.progress import Eta
from attnbench.sweep.slots import Asked, Ended, Gone, Slot, Spoiled, first_of_each, through
from impls.asked import CantBeDone

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

    def __init__(self, plan: Plan, done: Known, folder: RunFolder, watcher: Watcher) -> None:
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
        asked = Asked(self._folder.header, bits)
        self._insist_unchanged()
        while cells and monotonic() < until:
            if not left:
                raise NobodyLeft(
                    "every place where cells were measured is lost; what was measured is kept: "
                    f"{self._folder.resumed_by}"
                )
            for event in through(left, cells, asked):
                match event:
                    case Ended():
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

    def _end(self, event: Ended) -> None:
        self._insist_unchanged()
        record = replace(event.record, run=self._folder.name, node=event.slot.node,
                         canary_s=event.canary_s)  # fmt: skip
        if event.off and record.time is not None:
            flag = f"{DRIFTED}: the canary before it was {event.off:+.0%} off"
            record = replace(record, time=replace(record.time, flags=[*record.time.flags, flag]))
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


def sweep(plan: Plan, done: Known, folder: RunFolder, slots: Sequence[Slot],
          watcher: Watcher, interrupt: Interrupt, until: float = inf) -> int:  # fmt: skip
    """Measure what is not done. ``folder`` holds every record when this returns or raises.

    ``until``: by the monotonic clock, when no more cells are begun; how many are left then.
    """
    for cell in plan.cells:
        if cell.left_out is not None and cell.key not in done:
            folder.append(replace(cell.left_out, run=folder.name))
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
                "machine": dict(slot.machine), "ceilings": _ceilings(plan, slot), "leg": legs + 1
            }  # fmt: skip
            folder.header.setdefault("ceilings", nodes[slot.node]["ceilings"])
            folder.save_header()
        slot.ceilings = nodes[slot.node]["ceilings"]


def _ceilings(plan: Plan, slot: Slot) -> dict[str, Any]:
    question = {
        "ceilings": sorted({c.problem.dtype for c in plan.to_run}), "device": slot.device,
    }  # fmt: skip
    answer: dict[str, Any] = slot.engine.ask(question, START_LIMIT_S)["ceilings"]
    return answer
