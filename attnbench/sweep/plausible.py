"""What one cell says, held against what the same variant said elsewhere in the run.

A training step holds a forward pass, so it can't take less. Where the work of the mathematics grows
several-fold with the length and a call is long enough not to be all overhead, its time can't stand
still. A record that says so is not believed, and says which other record it contradicts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from attnbench.record import Record, Status, Time

LESS = 0.9
"""Of a forward pass's least sample: the whole interval of a training step may not be under it."""
WORK_GROWS, TIME_STANDS = 3.0, 1.05
"""Work that grows by so much, in a time that grows by less than so much."""
OVERHEAD_S = {"cpu": 1e-3, "cuda": 1e-4}
"""A call as long as this is not all overhead."""


class Known:
    """The times of a run so far."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._times: dict[str, list[tuple[Record, Time]]] = {}
        for record in records:
            self._keep(record)

    def doubt(self, record: Record) -> Record:
        """The record as it is, or as one that is not believed."""
        if record.time is None:
            return record
        for other, time in self._times.get(_kin(record), ()):
            if (why := _contradiction(record, record.time, other, time)) is not None:
                return replace(record, status=Status.IMPLAUSIBLE, reason=why, time=None)
        self._keep(record)
        return record

    def _keep(self, record: Record) -> None:
        kept = slim(record)
        if kept.time is not None:
            self._times.setdefault(_kin(record), []).append((kept, kept.time))


def slim(record: Record) -> Record:
    """What others are held against, and no more: a long run has many thousand records."""
    time = None if record.time is None else replace(record.time, samples_s=[], flags=[])
    return Record(
        status=record.status, reason=record.reason, variant=record.variant,
        problem=record.problem, cost=record.cost, ranks=record.ranks, time=time, node=record.node,
    )  # fmt: skip


def _kin(record: Record) -> str:
    """What records that may contradict each other have in common."""
    apart = ("phase", "q_len", "kv_len")
    same = {k: v for k, v in record.problem.items() if k not in apart}
    return json.dumps([record.variant, same], sort_keys=True)


def _contradiction(record: Record, time: Time, other: Record, before: Time) -> str | None:
    a, b = record.problem, other.problem
    if (a["q_len"], a["kv_len"]) == (b["q_len"], b["kv_len"]):
        phases = {a["phase"]: time, b["phase"]: before}
        train, forward = phases.get("train"), phases.get("forward")
        if train and forward and train.high_s < LESS * forward.min_s:
            return (
                f"a training step took {_ms(train.median_s)} and its forward pass alone "
                f"{_ms(forward.median_s)}"
            )
    elif record.ranks or other.ranks:  # waiting for each other is no work, and may be most of it
        return None
    elif a["phase"] == b["phase"] and record.cost and other.cost:
        longer = a["kv_len"] > b["kv_len"]
        (short, few), (long, many) = ((before, other), (time, record)) if longer else (
            (time, record), (before, other))  # fmt: skip
        return _stands_still(short, few, long, many)
    return None


def _stands_still(short: Time, few: Record, long: Time, many: Record) -> str | None:
    assert few.cost and many.cost
    grows = many.cost.flops / max(few.cost.flops, 1)
    overhead = OVERHEAD_S[few.problem["device"].split(":")[0]]
    if short.median_s < overhead or grows < WORK_GROWS:
        return None
    if long.high_s >= TIME_STANDS * short.low_s:
        return None
    lengths = few.problem["kv_len"], many.problem["kv_len"]
    return (
        f"its time stands still from {lengths[0]} to {lengths[1]} tokens ({_ms(short.median_s)}, "
        f"{_ms(long.median_s)}) while its work grows {grows:.2g}-fold"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
