"""A run as a dispatch table: who is chosen at each length, and where between them that changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.answer.choice.chosen import choose, row_of
from attnbench.answer.choice.known import Known
from attnbench.answer.dispatch_entry import Entry, Range
from attnbench.answer.dispatch_table import DispatchTable, made_of
from attnbench.store import StoreError, read_header
from attnbench.store.skim import Seen, skim

if TYPE_CHECKING:
    from attnbench.answer.choice.wants import Wants
    from impls import Table
    from impls.problem import Problem

MASKS = ("none", "causal")
"""What a call of torch's function can say without a tensor."""
PHASES = ("forward", "train", "decode")
TRIED = 9
"""Lengths between two measured ones at which the two that lead at their ends are compared."""


def table_of(run: Path, wants: Wants, rows: Table) -> DispatchTable:
    """Raises a sentence where the run holds nothing that a table could speak of."""
    header = read_header(run)
    ceilings = header.get("ceilings") or {}
    seen = [s for s in skim(run, {"level": "core", "inputs": "normal"}) if s.ranks is None]
    entries, devices = [], set()
    for alike in _alike(seen):
        led = [c for p in _problems(alike) if (c := choose(alike, p, wants, rows, ceilings=ceilings)
               ).winner is not None]  # fmt: skip
        if led:
            names = _steady([[x.variant for x in (c.winner, *c.equal) if x] for c in led])
            entries.append(_entry([c.problem for c in led], names, alike, rows, ceilings))
            devices.add(led[0].problem.device.split(":")[0])
    if not entries:
        raise StoreError(
            f"{run} holds nothing for a dispatch table: no exact variant with a time on a problem "
            f"of level core with the mask {' or '.join(MASKS)}"
        )
    return DispatchTable(made_of(header, min(devices)), entries=entries)


def _alike(seen: Sequence[Seen]) -> Iterator[list[Seen]]:
    """The records of problems alike in all but their length."""
    found: dict[Any, list[Seen]] = {}
    for each in seen:
        p = each.problem
        queries = "same" if p.q_len == p.kv_len and p.phase != "decode" else p.q_len
        if str(p.mask) in MASKS and p.phase in PHASES:
            key = p.with_(q_len=1, kv_len=1, mask=type(p.mask)()), str(p.mask), queries
            found.setdefault(key, []).append(each)
    yield from found.values()


def _problems(alike: Sequence[Seen]) -> list[Problem]:
    """Those with a time, the shortest first."""
    timed = dict.fromkeys(s.problem for s in alike if s.time is not None)
    return sorted(timed, key=lambda p: p.kv_len)


def _steady(leaders: Sequence[Sequence[str]]) -> list[str]:
    """One name a length: whoever leads stays for as long as nobody can be told from it."""
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


def _entry(problems: Sequence[Problem], names: Sequence[str], alike: Sequence[Seen],
           rows: Table, ceilings: Any) -> Entry:  # fmt: skip
    first = problems[0]
    starts = [(first.kv_len, names[0])]
    for (low, high), (before, after) in zip(pairwise(problems), pairwise(names), strict=True):
        if before != after:
            one, other = (
                Known(row_of(rows, name), [s for s in alike if s.variant == name], ceilings)
                for name in (before, after)
            )
            starts.append((_changes(low, high, one, other), after))
    ends = [start - 1 for start, _ in starts[1:]] + [problems[-1].kv_len]
    queries: Any = first.q_len if first.phase == "decode" or first.q_len != first.kv_len else "same"
    return Entry(
        phase=first.phase, mask=str(first.mask), dtype=first.dtype, heads=first.heads,
        kv_heads=first.kv_heads, head_dim=first.head_dim, v_head_dim=first.v_head_dim,
        batch=(first.batch, first.batch),
        ranges=tuple(Range(start, end, queries, name)
                     for (start, name), end in zip(starts, ends, strict=True)),
    )  # fmt: skip


def _changes(low: Problem, high: Problem, before: Known, after: Known) -> int:
    """The length from which the one is to take over from the other."""
    tried = np.geomspace(low.kv_len, high.kv_len, TRIED + 2)[1:-1].astype(int)
    for length in dict.fromkeys(int(n) for n in tried):
        problem = low.with_(kv_len=length, q_len=low.q_len if low.q_len != low.kv_len else length)
        one, other = before.time(problem), after.time(problem)
        if isinstance(one, str) or isinstance(other, str):
            break
        if other.middle < one.middle:
            return max(length, low.kv_len + 1)
    return max(int((low.kv_len * high.kv_len) ** 0.5), low.kv_len + 1)
