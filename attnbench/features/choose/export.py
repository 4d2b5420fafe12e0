"""``attnbench choose --export``: a run as a dispatch table of exact variants.

At each measured length there is a choice; where it changes between two of them, the change lies
where both take as long, on logarithms. A limit that one of the two breaks at a length holds up to
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnbench.answer.choose import choose
from attnbench.answer.dispatch_table import (
    PHASES,
    SAME,
    SETTINGS,
    DispatchEntry,
    DispatchTable,
    Range,
    made_of,
)
from attnbench.answer.regimes import line_of
from attnbench.answer.standings import equal_at
from attnbench.command.terminal import say
from attnbench.core.disk import StoreError
from attnbench.core.format import first_few
from attnbench.core.record import FINDINGS, Record
from attnbench.core.store import find_runs, named_run, read_header, read_records
from attnbench.features.choose.runs import header_of, measured_here
from impls.errors import CantBeDone
from impls.problem import MOST, Problem

if TYPE_CHECKING:
    import argparse

    from attnbench.answer.choose import Wants
    from attnbench.answer.ranking import Ranking
    from impls import Table

MASKS = ("none", "causal")
"""The masks that a call of torch's function can have without a tensor."""


def export(arguments: argparse.Namespace, wants: Wants, table: Table) -> int:
    """Write the dispatch table of the run named, or of the newest of this machine as it is now; the
    exit status. Raises CantBeDone where there is no one run, or no table can be made of it.
    """
    if wants.allowed:
        raise CantBeDone("a dispatch table holds exact variants alone: leave --allow out")
    sources = [named_run(x) for x in arguments.source or ()]
    runs = list(find_runs(sources))
    if not sources:
        settings = arguments.threads, arguments.table, arguments.allocator
        here = measured_here(Path(arguments.out), *settings)
        runs = [run for run in here if "contest" not in read_header(run)]
    if not runs or (sources and len(runs) != 1):
        which = "several runs" if runs else "no run"
        raise CantBeDone(
            f"a dispatch table is of one run, and there is {which}: name one with --from RUN, or "
            "make one with 'attnbench run'"
        )
    result = table_of(runs[0], wants, table)
    result.write(arguments.export)
    ranges = sum(len(entry.ranges) for entry in result.entries)
    say(f"from {runs[0]}: kinds of call: {len(result.entries)}; ranges of lengths: {ranges}")
    print(arguments.export)
    print(f'use it:  attend = attnbench.dispatch("{arguments.export}")')
    return 0


# ---- who takes which lengths ---------------------------------------------------------------------


def table_of(run: Path, wants: Wants, rows: Table) -> DispatchTable:
    """The table of a run; raises StoreError where it holds nothing that a table could speak of.

    A variant that the run found wrong on other inputs than ``normal`` takes no call of that kind.
    """
    header = header_of(run)
    if header.get("legs"):
        raise StoreError(
            f"{run} was measured in several legs, with unlike code, files or versions, and a table "
            "is of one: measure it again in one go"
        )
    core = read_records(run, lambda problem: problem.level == "core")
    records = [s for s in core if s.ranks is None]
    records = [s for s in records if s.problem.inputs == "normal" or s.status in FINDINGS]
    made = made_of(header, same_bits=wants.same_bits)
    groups: dict[Any, list[Record]] = {}
    for each in records:
        p = each.problem
        able = str(p.mask) in MASKS and p.phase in PHASES and p.parameters.keys() <= {*SETTINGS}
        if able and p.device.split(":")[0] == made.device:
            key = line_of(p.with_(inputs="normal")), str(p.mask)
            groups.setdefault(key, []).append(each)
    entries: list[DispatchEntry] = []
    for ((_, _, queries), _), alike in groups.items():
        timed = dict.fromkeys(s.problem for s in alike if s.time is not None)
        led = [
            (p, choose(alike, p, wants, rows).ranking)
            for p in sorted(timed, key=lambda p: p.kv_len)
        ]
        for answered, row in groupby(led, key=lambda each: each[1] is not None):
            if answered:  # a length without an answer ends a row
                entries.append(_entry([(p, r) for p, r in row if r], queries or SAME))
    if wants.same_bits:
        entries = _of_any_batch(entries)
    if not entries:
        raise StoreError(
            f"{run} holds nothing for a dispatch table: no exact variant with a time on a problem "
            f"of level core with the mask {' or '.join(MASKS)}"
        )
    return DispatchTable(made, tuple(entries))


def _of_any_batch(entries: Sequence[DispatchEntry]) -> list[DispatchEntry]:
    """The entries for every batch: another variant for another batch has other bits. Raises
    StoreError where several batches were measured.
    """
    batches = {e.batch[0] for e in entries}
    if len(batches) > 1:
        raise StoreError(
            "a table for the same bits whatever the batch rests on one batch, and the run measured "
            f"{first_few([*map(str, sorted(batches))], 3)}: make a run with one of them"
        )
    return [msgspec.structs.replace(e, batch=(1, MOST)) for e in entries]


def _entry(row: Sequence[tuple[Problem, Ranking]], queries: Any) -> DispatchEntry:
    """One variant a length; a leader stays for as long as it ties with the others."""
    names: list[str] = []
    for _, r in row:
        leaders = [name for c in (r.winner, *r.equal) for name in c.names]
        names.append(names[-1] if names and names[-1] in leaders else leaders[0])
    first = row[0][0]
    starts = [(first.kv_len, names[0])]
    for ends, (before, after) in zip(pairwise(row), pairwise(names), strict=True):
        if before != after:
            starts.append((_changes(ends, before, after), after))
    ends_at = [start - 1 for start, _ in starts[1:]] + [row[-1][0].kv_len]
    alike = ("phase", "dtype", "heads", "kv_heads", "head_dim", "v_head_dim")
    return DispatchEntry(
        mask=str(first.mask),
        batch=(first.batch, first.batch),
        ranges=tuple(
            Range(start, last, queries, name)
            for (start, name), last in zip(starts, ends_at, strict=True)
        ),
        parameters=first.parameters,
        **{name: getattr(first, name) for name in alike},
    )


def _changes(ends: Sequence[tuple[Problem, Ranking]], before: str, after: str) -> int:
    """The length, between two that were measured, from which ``after`` takes over."""
    low, high = (p.kv_len for p, _ in ends)
    times = [{name: c.median_s for name, c in r.by_name.items()} for _, r in ends]
    if before not in times[1]:
        return low + 1
    if after not in times[0]:
        return high
    if times[0][after] <= times[0][before]:  # by less than the margin
        return low + 1
    ratios = {n: t[before] / t[after] for n, t in zip((low, high), times, strict=True)}
    return min(max(round(equal_at(ratios)), low + 1), high)
