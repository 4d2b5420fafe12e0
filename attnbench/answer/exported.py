"""A run as a dispatch table: the choice at each length, and where between them it changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.answer.choose import choose
from attnbench.answer.dispatch_table import DispatchEntry, DispatchTable, Range, made_of
from attnbench.core.disk import StoreError
from attnbench.core.record import FINDINGS, PROTOCOL, Record
from attnbench.core.store import read_header, read_records

if TYPE_CHECKING:
    from attnbench.answer.choose import Wants
    from attnbench.answer.ranking import Candidate
    from impls import Table
    from impls.problem import Problem


MASKS = ("none", "causal")
"""The masks that a call of torch's function can have without a tensor."""
PHASES = ("forward", "train", "decode")
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
        entries += _entries(alike, _Chooser(alike, wants, rows, header.get("ceilings") or {}))
    if not entries:
        raise StoreError(
            f"{run} holds nothing for a dispatch table: no exact variant with a time on a problem "
            f"of level core with the mask {' or '.join(MASKS)}"
        )
    return DispatchTable(made, entries=tuple(entries))


@dataclass(frozen=True)
class _Chooser:
    """Chooses among the records of problems that are alike."""

    seen: Sequence[Record]
    wants: Wants
    rows: Table
    ceilings: Mapping[str, Any]

    def leaders(self, problem: Problem) -> list[Candidate]:
        """The winner and what ties with it; empty where there is no answer."""
        found = choose(self.seen, problem, self.wants, self.rows, ceilings=self.ceilings)
        return [found.winner, *found.equal] if found.winner else []


def _alike(seen: Sequence[Record], device: str) -> Iterator[list[Record]]:
    """The records of problems alike in all but their length."""
    found: dict[Any, list[Record]] = {}
    for each in seen:
        p = each.problem
        queries = "same" if p.q_len == p.kv_len and p.phase != "decode" else p.q_len
        fits = str(p.mask) in MASKS and p.phase in PHASES and p.device.split(":")[0] == device
        if fits:
            one = p.with_(q_len=1, kv_len=1, mask=type(p.mask)(), inputs="normal")
            key = one, str(p.mask), queries
            found.setdefault(key, []).append(each)
    yield from found.values()


def _problems(alike: Sequence[Record]) -> list[Problem]:
    """Those with a time, the shortest first."""
    timed = dict.fromkeys(s.problem for s in alike if s.time is not None)
    return sorted(timed, key=lambda p: p.kv_len)


def _steady(leaders: Sequence[Sequence[str]]) -> list[str]:
    """One name a length: a leader stays for as long as it ties with the others."""
    names: list[str] = []
    for at, some in enumerate(leaders):
        if names and names[-1] in some:
            names.append(names[-1])
        else:
            names.append(max(some, key=lambda name: _lasts(name, leaders[at:])))
    return names


def _lasts(name: str, leaders: Sequence[Sequence[str]]) -> int:
    """At how many lengths in a row it is among the leaders."""
    held = [name in some for some in leaders]
    return held.index(False) if False in held else len(held)


def _entries(alike: Sequence[Record], chooser: _Chooser) -> Iterator[DispatchEntry]:
    """One for each row of lengths that have a leader; a length without one ends the row."""
    row: list[tuple[Problem, list[str]]] = []
    for problem in _problems(alike):
        leaders = [c.variant for c in chooser.leaders(problem)]
        if leaders:
            row.append((problem, leaders))
        elif row:
            yield _entry(row, chooser)
            row = []
    if row:
        yield _entry(row, chooser)


def _entry(row: Sequence[tuple[Problem, list[str]]], chooser: _Chooser) -> DispatchEntry:
    problems, names = [p for p, _ in row], _steady([leaders for _, leaders in row])
    first = problems[0]
    starts = [(first.kv_len, names[0])]
    for (low, high), (before, after) in zip(pairwise(problems), pairwise(names), strict=True):
        if before != after:
            starts.append((_changes(low, high, before, chooser), after))
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


def _changes(low: Problem, high: Problem, before: str, chooser: _Chooser) -> int:
    """The length from which the one no longer leads, as far as it is predicted."""
    tried = np.geomspace(low.kv_len, high.kv_len, TRIED + 2)[1:-1].astype(int)
    for length in dict.fromkeys(int(n) for n in tried):
        if length <= low.kv_len:
            continue
        problem = low.with_(kv_len=length, q_len=low.q_len if low.q_len != low.kv_len else length)
        leaders = chooser.leaders(problem)
        if not leaders:
            break
        if min(leaders, key=lambda c: c.median_s).variant != before:
            return length
    return max(int((low.kv_len * high.kv_len) ** 0.5), low.kv_len + 1)
