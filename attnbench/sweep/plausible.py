"""What one cell says, held against what the same variant said elsewhere in the run.

A training step holds a forward pass, so it can't take less. Where the work of the mathematics grows
several-fold with the length and a call is long enough not to be all overhead, its time can't stand
still. A record that says so is not believed, and says which other record it contradicts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, Self

from attnbench.record import Record, Status, Time

LESS = 0.9
"""Of a forward pass's least sample: the whole interval of a training step may not be under it."""
WORK_GROWS, TIME_STANDS = 3.0, 1.05
"""Work that grows by so much, in a time that grows by less than so much."""
OVERHEAD_S = {"cpu": 1e-3, "cuda": 1e-4}
"""A call as long as this is not all overhead."""


class Known:
    """What a run has so far: which cells, and the times that others are held against."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._cells: set[str] = set()
        self._times: dict[str, list[_Kept]] = {}
        for record in records:
            self._cells.add(record.key)
            self._keep(record)

    def __contains__(self, key: str) -> bool:
        return key in self._cells

    def __len__(self) -> int:
        return len(self._cells)

    def doubt(self, record: Record) -> Record:
        """The record as it is, or as one that is not believed."""
        if record.time is None:
            return record
        kept = _Kept.of(record, record.time)
        for other in self._times.get(_kin(record), ()):
            if (why := _contradiction(kept, other)) is not None:
                return replace(record, status=Status.IMPLAUSIBLE, reason=why, time=None)
        self._keep(record)
        return record

    def _keep(self, record: Record) -> None:
        if record.time is not None:
            kept = _Kept.of(record, record.time)
            self._times.setdefault(_kin(record), []).append(kept)


class _Kept(NamedTuple):
    """Of a record what others are held against, and no more: a long run has many thousand."""

    phase: str
    lengths: tuple[int, int]
    flops: float | None
    overhead_s: float
    waits: bool
    """For other ranks, which is no work, and may be most of its time."""
    min_s: float
    low_s: float
    median_s: float
    high_s: float

    @classmethod
    def of(cls, record: Record, time: Time) -> Self:
        """What is kept of a record with a time."""
        problem = record.problem
        return cls(
            phase=problem["phase"], lengths=(problem["q_len"], problem["kv_len"]),
            flops=None if record.cost is None else record.cost.flops,
            overhead_s=OVERHEAD_S[problem["device"].split(":")[0]], waits=bool(record.ranks),
            min_s=time.min_s, low_s=time.low_s, median_s=time.median_s, high_s=time.high_s,
        )  # fmt: skip


def _kin(record: Record) -> str:
    """What records that may contradict each other have in common."""
    apart = ("phase", "q_len", "kv_len")
    same = {k: v for k, v in record.problem.items() if k not in apart}
    return json.dumps([record.variant, record.node, same], sort_keys=True)


def _contradiction(one: _Kept, other: _Kept) -> str | None:
    if one.lengths == other.lengths:
        phases = {one.phase: one, other.phase: other}
        train, forward = phases.get("train"), phases.get("forward")
        if train and forward and train.high_s < LESS * forward.min_s:
            return (
                f"a training step took {_ms(train.median_s)} and its forward pass alone "
                f"{_ms(forward.median_s)}"
            )
    elif one.phase == other.phase and not (one.waits or other.waits):
        return _stands_still(*sorted((one, other), key=lambda kept: kept.lengths[1]))
    return None


def _stands_still(short: _Kept, long: _Kept) -> str | None:
    if short.flops is None or long.flops is None:
        return None
    grows = long.flops / max(short.flops, 1)
    if short.median_s < short.overhead_s or grows < WORK_GROWS:
        return None
    if long.high_s >= TIME_STANDS * short.low_s:
        return None
    return (
        f"its time stands still from {short.lengths[1]} to {long.lengths[1]} tokens "
        f"({_ms(short.median_s)}, {_ms(long.median_s)}) while its work grows {grows:.2g}-fold"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
