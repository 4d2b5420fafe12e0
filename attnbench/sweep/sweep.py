"""A sweep from plan to records: cell after cell, each written down and shown as it ends."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from math import inf
from time import monotonic, time
from types import FrameType
from typing import Protocol

from attnbench.core.format import duration, percent
from attnbench.core.record import Record, Status, Time
from attnbench.core.run_folder import RunFolder
from attnbench.core.settings import allocator_of
from attnbench.sweep.engine import CELL_LIMIT_S, START_LIMIT_S, Engine, measure
from attnbench.sweep.places import Slot, SlotLost
from attnbench.sweep.plan import Cell, Plan
from attnbench.sweep.start import APART, check_unchanged
from impls.errors import CantBeDone
from impls.masks import Mask

EVERY_CELLS, EVERY_S = 8, 20.0
"""A reading of the canary after so many cells, or so long, whichever comes first."""
AGAIN = 0.1
"""The share of a run's cells that are measured again at the most."""
BITS_S = 0.3
"""Seconds: what takes longer to build is not built again for another batch, unless it is asked."""
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


class Watcher(Protocol):
    """Shows the progress. Seconds are guesses; how earlier ones fared is the watcher's to see."""

    def cell(self, record: Record, done: int, total: int, guess_s: float, ahead_s: float) -> None:
        """A cell that was to take ``guess_s`` has ended, and others are to take ``ahead_s``."""

    def at(self, done: int, total: int, ahead_s: float, what: str) -> None:
        """So much is done; this begins, and all that is to come is to take ``ahead_s``."""

    def tell(self, sentence: str) -> None:
        """Something that is not about one cell."""


def sweep(
    plan: Plan,
    folder: RunFolder,
    slots: Sequence[Slot],
    watcher: Watcher,
    interrupt: Interrupt,
    until: float = inf,
) -> int:
    """Measure what has no record. ``folder`` holds every record when this returns or raises.

    ``until``: by the monotonic clock, when no more cells are begun; how many are left then. Raises
    as :meth:`Sweep.run`.
    """
    for cell in plan.cells:
        if cell.left_out is not None and cell.key not in folder:
            folder.append(cell.left_out.with_(run=folder.name))
    whole = Sweep(plan, folder, watcher, interrupt, until)
    if not whole.todo:
        return 0
    with interrupt.watching():
        return whole.run(_described(slots, plan, folder, watcher))


def check_cells(plan: Plan, engine: Engine, seed: int, watcher: Watcher) -> list[Record]:
    """The record of every cell, through the gate alone."""
    header, bits_s = {"seed": seed, "budget_s": 0.0}, tried_for_bits(plan.to_run)
    records, done, ahead_s = list[Record](), 0, sum(cell.guess_s for cell in plan.to_run)
    for cell in plan.cells:
        tried = bits_s.get(cell.key, 0.0)
        record = cell.left_out or measure(cell, header, engine, timed=False, bits_s=tried)
        records.append(record)
        if cell.left_out is None:
            done, ahead_s = done + 1, ahead_s - cell.guess_s
            watcher.cell(record, done, len(plan.to_run), cell.guess_s, ahead_s)
    return records


def tried_for_bits(cells: Iterable[Cell], everywhere: bool = False) -> dict[str, float]:
    """The keys of the cells that are tried for the same bits, each variant's first in each phase
    or ``everywhere``; with the most seconds that building it again may take.
    """
    if everywhere:
        return dict.fromkeys((cell.key for cell in cells), CELL_LIMIT_S)
    first: dict[tuple[str, str], str] = {}
    for cell in cells:
        first.setdefault((cell.variant.label, cell.problem.phase), cell.key)
    return dict.fromkeys(first.values(), BITS_S)


def _described(
    slots: Sequence[Slot], plan: Plan, folder: RunFolder, watcher: Watcher
) -> list[Slot]:
    """The slots that are not lost by then: each kind of machine is written down with the ceilings
    measured on it, once a leg.
    """
    nodes, leg = folder.header.setdefault("nodes", {}), len(folder.header.get("legs", ())) + 1
    dtypes, there = sorted({c.problem.dtype for c in plan.to_run}), []
    for slot in slots:
        slot.node += f"{APART}{leg}" if leg > 1 else ""
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
        there.append(slot)
    return there


class Sweep:
    """Cells that are to be measured, by slots side by side, into one folder.

    Each slot has a lane, in a thread of its own where there are several: it takes cells from one
    queue, and reads its canary between them.
    """

    def __init__(
        self, plan: Plan, folder: RunFolder, watcher: Watcher, interrupt: Interrupt, until: float
    ) -> None:
        self._folder, self._watcher = folder, watcher
        self._interrupt, self._until = interrupt, until
        self.todo = [c for c in plan.to_run if c.key not in folder]
        self._cells = deque(self.todo)
        self._bits_s = tried_for_bits(self.todo, folder.header.get("same_bits", False))
        self._ahead_s, self._total = sum(c.guess_s for c in self.todo), len(self.todo)
        self._ended = self._marked = 0
        self._recorded: set[str] = set()
        self._again: dict[str, Cell] = {}
        self._repeated: set[str] = set()
        """Cells that are measured a second time because the machine drifted."""
        self._worst = 0.0
        self._slots: list[Slot] = []
        self._began = time()
        self._lock, self._failed = threading.Lock(), False

    def run(self, slots: Sequence[Slot]) -> int:
        """Measure what is to do, and what has to be done again, until there is nothing, or no
        time is left: how many cells have no record then. Raises :class:`Stopped` after Ctrl-C, and
        CantBeDone where a file of the run was changed, or every place is lost.
        """
        self._slots = list(slots)
        self._watcher.at(0, self._total, self._ahead_s, "measuring")
        while self._cells and monotonic() < self._until:
            if not self._slots:
                raise CantBeDone(
                    "every place that measured is lost; what was measured is kept: "
                    f"{self._folder.resumed_by}"
                )
            self._side_by_side()
            if self._interrupt.asked:
                raise Stopped
            self._cells, self._again = deque(self._again.values()), {}
        if self._worst:
            self._watcher.tell(
                f"the drift check moved by up to {percent(abs(self._worst))}; measured "
                f"again: {len(self._repeated)}; marked as noisy: {self._marked}"
            )
        return len(self.todo) - len(self._recorded)

    def _side_by_side(self) -> None:
        """Every lane to its end; where one fails the others are ended, and none goes on."""
        first, *others = self._slots
        if not others:  # here, where Ctrl-C arrives
            self._lane(first)
            return
        with ThreadPoolExecutor(len(self._slots)) as threads:
            try:
                for lane in as_completed([threads.submit(self._lane, x) for x in self._slots]):
                    lane.result()
            except BaseException:
                self._failed = True
                for slot in self._slots:
                    slot.engine.stop()
                raise

    def _next(self) -> Cell | None:
        """The cell to be measured now; None where none is to be begun."""
        with self._lock:
            over = self._failed or self._interrupt.asked or monotonic() >= self._until
            return None if over or not self._cells else self._cells.popleft()

    def _lane(self, slot: Slot) -> None:
        whole, since = self._folder.header, list[Cell]()
        header = {**whole, "ceilings": whole["nodes"][slot.node]["ceilings"]}
        while (cell := self._next()) is not None:
            try:
                if not slot.readings:
                    slot.look(header.get("noise", ()))
                bits_s = self._bits_s.get(cell.key, 0.0)
                record = measure(cell, header, slot.engine, bits_s=bits_s)
            except SlotLost as lost:
                with self._lock:
                    self._slots.remove(slot)
                    self._again[cell.key] = cell
                    self._watcher.tell(f"{lost}; its measurement is made elsewhere")
                return
            where = {"run": self._folder.name, "node": slot.node, "canary_s": slot.readings[-1]}
            where["allocator"] = allocator_of(header)
            with self._lock:
                self._end(cell, record.with_(**where), slot.off)
            since.append(cell)
            due = len(since) >= EVERY_CELLS or slot.looked_s() > EVERY_S
            if due or not self._cells:
                try:
                    off = slot.look(header.get("noise", ()))
                except SlotLost:
                    return  # what it measured stands
                if off:
                    with self._lock:
                        self._spoil(since, off)
                since = []

    def _end(self, cell: Cell, record: Record, off: float) -> None:
        """A cell has its record. ``off``: the share by which the canary before it was off."""
        if self._failed:
            return
        check_unchanged(self._folder, self._began)
        if off and record.time is not None:
            flag = f"{DRIFTED}: the drift check before it was {percent(off, '+')} off"
            record = record.with_(time=record.time.with_(flags=[*record.time.flags, flag]))
            self._marked += 1
        record = check_times(record, self._folder.stored.records)
        self._folder.append(record)
        self._recorded.add(cell.key)
        self._ended += 1
        self._ahead_s -= cell.guess_s
        self._watcher.cell(record, self._ended, self._total, cell.guess_s, self._ahead_s)

    def _spoil(self, cells: Sequence[Cell], off: float) -> None:
        """While these were measured the machine changed by that share: measure some again."""
        self._worst = max(self._worst, off, key=abs)
        for cell in cells:
            most = max(EVERY_CELLS, int(AGAIN * len(self.todo)))
            if cell.key not in self._repeated and len(self._repeated) < most:
                self._again[cell.key] = cell
                self._repeated.add(cell.key)
                self._total += 1
                self._ahead_s += cell.guess_s


# ---- times of one run that contradict each other -------------------------------------------------

LESS = 0.9
"""Training can't take less than this share of the forward pass's least sample."""
WORK_GROWS, TIME_STANDS = 3.0, 1.05
"""Work that grows by so much, in a time that grows by less than so much."""
OVERHEAD_S = {"cpu": 1e-3, "cuda": 1e-4}
"""A call as long as this is not all overhead."""


def check_times(record: Record, others: Iterable[Record]) -> Record:
    """The record as it is; or as one that contradicts another's time, and is not believed."""
    if record.time is None:
        return record
    alike = _alike(record)
    for other in others:
        if other.variant != record.variant or not other.time or _alike(other) != alike:
            continue
        if why := _contradiction((record, record.time), (other, other.time)):
            return record.with_(status=Status.IMPLAUSIBLE, reason=why, time=None)
    return record


def _alike(record: Record) -> tuple[object, ...]:
    """What two records share that say something about each other's time."""
    p = record.problem
    alone = {"mask": Mask(), "kv_dtype": None, "kv_scale": None}  # these fit one length or phase
    rest = p.with_(phase="forward", q_len=1, kv_len=1, **alone)
    return record.node, str(p.mask), p.kv_dtype, p.kv_scale, rest


def _contradiction(one: tuple[Record, Time], other: tuple[Record, Time]) -> str:
    """Why two times can't both be true; empty where they can."""
    (less, short_s), (more, long_s) = sorted((one, other), key=lambda each: each[0].problem.kv_len)
    p, q = less.problem, more.problem
    if (p.q_len, p.kv_len) == (q.q_len, q.kv_len):
        times = {p.phase: short_s, q.phase: long_s}
        train, forward = times.get("train"), times.get("forward")
        if train and forward and train.high_s < LESS * forward.min_s:
            return (
                f"a training step took {duration(train.median_s)} and its forward pass alone "
                f"{duration(forward.median_s)}"
            )
        return ""
    if p.phase != q.phase or short_s.median_s < OVERHEAD_S[p.device.split(":")[0]]:
        return ""
    if less.cost is None or more.cost is None or less.ranks:  # ranks wait, which is no work
        return ""
    grows = more.cost.flops / max(less.cost.flops, 1)
    if grows < WORK_GROWS or long_s.high_s >= TIME_STANDS * short_s.low_s:
        return ""
    return (
        f"its time stands still from {p.kv_len} to {q.kv_len} tokens "
        f"({duration(short_s.median_s)}, {duration(long_s.median_s)}) while its work grows "
        f"{grows:.2g}-fold"
    )
