"""A run as a dispatch table: the choice at each length, and where between them it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.answer.choose import choose
from attnbench.answer.dispatch_table import PHASES, DispatchEntry, DispatchTable, Range, made_of
from attnbench.core.disk import StoreError
from attnbench.core.record import FINDINGS, PROTOCOL, Record
from attnbench.core.store import read_header, read_records

if TYPE_CHECKING:
    from attnbench.answer.choose import Wants
    from attnbench.answer.ranking import Candidate
    from impls import Table
    from impls.problem import Problem

    Leaders = Callable[[Problem], list[Candidate]]


MASKS = ("none", "causal")
"""The masks that a call of torch's function can have without a tensor."""
TRIED = 9
"""So many lengths between two measured ones are tried."""


def table_of(run: Path, wants: Wants, rows: Table, wrong: Sequence[Record] = ()) -> DispatchTable:
    """The table of a run; raises a sentence where it holds nothing that a table could speak of.

    A variant that the run found wrong on other inputs than ``normal``, or that ``wrong`` has, takes
    no call of that kind.
    """
    header = read_header(run)
    if header.get("protocol") != PROTOCOL:
        raise StoreError(f"{run} was measured with another protocol than {PROTOCOL}: do it again")
    if header.get("legs"):
        raise StoreError(
            f"{run} was measured in several legs, with unlike code, files or versions, and a table "
            "is of one: measure it again in one go"
        )
    core = read_records(run, lambda problem: problem.level == "core")
    seen = [s for s in core if s.ranks is None]
    seen = [s for s in seen if s.problem.inputs == "normal" or s.status in FINDINGS] + [*wrong]
    made = made_of(header)
    entries: list[DispatchEntry] = []
    for alike in _alike(seen, made["device"]):

        def leaders(problem: Problem, alike: Sequence[Record] = alike) -> list[Candidate]:
            """The winner and what ties with it; empty where there is no answer."""
            found = choose(alike, problem, wants, rows, ceilings=header.get("ceilings") or {})
            return [found.winner, *found.equal] if found.winner else []

        entries += _entries(alike, leaders)
    if not entries:
        raise StoreError(
            f"{run} holds nothing for a dispatch table: no exact variant with a time on a problem "
            f"of level core with the mask {' or '.join(MASKS)}"
        )
    return DispatchTable(made, entries=tuple(entries))


def _alike(seen: Sequence[Record], device: str) -> Iterator[list[Record]]:
    """The records of problems alike in all but their length."""
    found: dict[Any, list[Record]] = {}
    for each in seen:
        p = each.problem
        queries = "same" if p.q_len == p.kv_len and p.phase != "decode" else p.q_len
        if str(p.mask) in MASKS and p.phase in PHASES and p.device.split(":")[0] == device:
            one = p.with_(q_len=1, kv_len=1, mask=type(p.mask)(), inputs="normal")
            found.setdefault((one, str(p.mask), queries), []).append(each)
    yield from found.values()


def _steady(leaders: Sequence[Sequence[str]]) -> list[str]:
    """One name a length: a leader stays for as long as it ties with the others."""
    names: list[str] = []
    for at, some in enumerate(leaders):
        if names and names[-1] in some:
            names.append(names[-1])
            continue
        lasts = {name: [name in each for each in (*leaders[at:], ())].index(False) for name in some}
        names.append(max(lasts, key=lasts.__getitem__))
    return names


def _entries(alike: Sequence[Record], leaders: Leaders) -> Iterator[DispatchEntry]:
    """One for each row of lengths that have a leader; a length without one ends the row."""
    timed = dict.fromkeys(s.problem for s in alike if s.time is not None)
    led = [(p, [c.variant for c in leaders(p)]) for p in sorted(timed, key=lambda p: p.kv_len)]
    for some, row in groupby(led, key=lambda each: bool(each[1])):
        if some:
            yield _entry(list(row), leaders)


def _entry(row: Sequence[tuple[Problem, list[str]]], leaders: Leaders) -> DispatchEntry:
    problems, names = [p for p, _ in row], _steady([some for _, some in row])
    first = problems[0]
    starts = [(first.kv_len, names[0])]
    for (low, high), (before, after) in zip(pairwise(problems), pairwise(names), strict=True):
        if before != after:
            starts.append((_changes(low, high, before, leaders), after))
    ends = [start - 1 for start, _ in starts[1:]] + [problems[-1].kv_len]
    queries: Any = first.q_len if first.phase == "decode" or first.q_len != first.kv_len else "same"
    return DispatchEntry(
        phase=first.phase,
        mask=str(first.mask),
        dtype=first.dtype,
        heads=first.heads,
        kv_heads=first.kv_heads,
        head_dim=first.head_dim,
        v_head_dim=first.v_head_dim,
        batch=(first.batch, first.batch),
        ranges=tuple(
            Range(start, end, queries, name)
            for (start, name), end in zip(starts, ends, strict=True)
        ),
    )


def _changes(low: Problem, high: Problem, before: str, leaders: Leaders) -> int:
    """The length from which the one no longer leads, as far as it is predicted."""
    tried = np.geomspace(low.kv_len, high.kv_len, TRIED + 2)[1:-1].astype(int)
    for length in sorted(set(tried.tolist()) - {low.kv_len}):
        q_len = low.q_len if low.q_len != low.kv_len else length
        some = leaders(low.with_(kv_len=length, q_len=q_len))
        if not some:
            break
        if min(some, key=lambda c: c.median_s).variant != before:
            return int(length)
    return max(int((low.kv_len * high.kv_len) ** 0.5), low.kv_len + 1)
