"""``attnbench choose --export``: a run as a dispatch table of exact variants that the gate passes.

At each measured length there is a choice; where it changes between two of them, the change lies
where both take as long, on logarithms. A limit that one of the two breaks at a length holds up to
there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.choose import choose
from attnbench.answer.choose_runs import measured_here
from attnbench.answer.dispatch_table import (
    FALLBACK,
    PHASES,
    DispatchEntry,
    DispatchTable,
    Range,
    made_of,
)
from attnbench.answer.ranking import equal_at
from attnbench.command.progress import Progress
from attnbench.command.terminal import say
from attnbench.core.disk import StoreError
from attnbench.core.machine import this_machine
from attnbench.core.record import FINDINGS, PROTOCOL, Record, Status
from attnbench.core.store import find_runs, named_run, read_header, read_records
from attnbench.sweep.engine import engine_on
from attnbench.sweep.plan import Plan, make_plan
from attnbench.sweep.presets import one_problem
from attnbench.sweep.start import settings_of
from attnbench.sweep.sweep import check_cells
from impls.errors import CantBeDone
from impls.problem import INPUTS, Problem

if TYPE_CHECKING:
    import argparse

    from attnbench.answer.choose import Wants
    from attnbench.answer.ranking import Ranking
    from impls import Table

MASKS = ("none", "causal")
"""The masks that a call of torch's function can have without a tensor."""


def export(given: argparse.Namespace, wants: Wants, table: Table) -> int:
    """Write the dispatch table of the run named, or of the newest of this machine as it is now; the
    exit status. Raises CantBeDone where there is no one run, or no table can be made of it.
    """
    if wants.allowed:
        raise CantBeDone("a dispatch table holds exact variants alone: leave --allow out")
    named = [named_run(x) for x in given.source or ()]
    runs = list(find_runs(named))
    if not named:
        here = measured_here(Path(given.out), given.threads, given.table, given.allocator)
        runs = [run for run in here if "contest" not in read_header(run)]
    if not runs or (named and len(runs) != 1):
        which = "several runs" if runs else "no run"
        raise CantBeDone(
            f"a dispatch table is of one run, and there is {which}: name one with --from RUN, or "
            "make one with 'attnbench run'"
        )
    made = _checked(runs[0], wants, table, given)
    made.write(given.export)
    if given.json:
        print(json.dumps(made.to_dict()))
        return 0
    kinds, ranges = len(made.entries), sum(len(entry.ranges) for entry in made.entries)
    say(f"from {runs[0]}: kinds of call: {kinds}; ranges of lengths: {ranges}")
    print(given.export)
    print(f'use it:  attend = attnbench.dispatch("{given.export}")')
    return 0


# ---- who takes which lengths ---------------------------------------------------------------------


def table_of(run: Path, wants: Wants, rows: Table, wrong: Sequence[Record] = ()) -> DispatchTable:
    """The table of a run; raises StoreError where it holds nothing that a table could speak of.

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
    groups: dict[Any, list[Record]] = {}
    for each in seen:
        p = each.problem
        queries = "same" if p.q_len == p.kv_len and p.phase != "decode" else p.q_len
        if str(p.mask) in MASKS and p.phase in PHASES and p.device.split(":")[0] == made["device"]:
            one = p.with_(q_len=1, kv_len=1, mask=type(p.mask)(), inputs="normal")
            groups.setdefault((one, str(p.mask), queries), []).append(each)
    entries: list[DispatchEntry] = []
    for (_, _, queries), alike in groups.items():
        timed = dict.fromkeys(s.problem for s in alike if s.time is not None)
        led = [
            (p, choose(alike, p, wants, rows).ranking)
            for p in sorted(timed, key=lambda p: p.kv_len)
        ]
        for answered, row in groupby(led, key=lambda each: each[1] is not None):
            if answered:  # a length without an answer ends a row
                entries.append(_entry([(p, r) for p, r in row if r], queries))
    if not entries:
        raise StoreError(
            f"{run} holds nothing for a dispatch table: no exact variant with a time on a problem "
            f"of level core with the mask {' or '.join(MASKS)}"
        )
    return DispatchTable(made, entries=tuple(entries))


def _entry(row: Sequence[tuple[Problem, Ranking]], queries: Any) -> DispatchEntry:
    """One variant a length; a leader stays for as long as it ties with the others."""
    leaders = [[n for c in (r.winner, *r.equal) for n in (c.variant, *c.same)] for _, r in row]
    names: list[str] = []
    for at, some in enumerate(leaders):
        if names and names[-1] in some:
            names.append(names[-1])
            continue
        lasts = {name: [name in each for each in (*leaders[at:], ())].index(False) for name in some}
        names.append(max(lasts, key=lasts.__getitem__))
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
        **{name: getattr(first, name) for name in alike},
    )


def _changes(ends: Sequence[tuple[Problem, Ranking]], before: str, after: str) -> int:
    """The length, between two that were measured, from which ``after`` takes over."""
    low, high = (p.kv_len for p, _ in ends)
    times = [{n: c.median_s for c in r.all for n in (c.variant, *c.same)} for _, r in ends]
    if before not in times[1]:
        return low + 1
    if after not in times[0]:
        return high
    if times[0][after] <= times[0][before]:  # by less than the margin
        return low + 1
    ratios = {n: t[before] / t[after] for n, t in zip((low, high), times, strict=True)}
    return min(max(round(equal_at(ratios)), low + 1), high)


# ---- whom the gate passes ------------------------------------------------------------------------


def _checked(run: Path, wants: Wants, rows: Table, given: argparse.Namespace) -> DispatchTable:
    """The table, without variants that are wrong on some kind of inputs: a call may bring any."""
    made, here = table_of(run, wants, rows), this_machine()
    ran_on = (made.made["machine"], made.made["torch"])
    if ran_on != (here.name, here.versions.get("torch")) or (
        made.made["device"] not in here.devices
    ):
        say(
            "the variants could not be checked on other inputs than the run's, since it is not of "
            "this machine and torch: dispatch checks each before its first call"
        )
        return made
    wrong: list[Record] = []
    asked: set[tuple[str, Problem]] = set()
    while new := [x for x in dict.fromkeys(_to_check(made)) if x not in asked]:
        asked.update(new)
        for record in _check(new, rows, given):
            if record.status != "measured":
                said = f"{record.variant}, {record.status} on {record.problem}: {record.reason}"
                say(f"not exported: {said}")
                wrong.append(record.with_(status=Status.WRONG))
        made = table_of(run, wants, rows, wrong)
    return DispatchTable({**made.made, "inputs": list(INPUTS)}, entries=made.entries)


def _to_check(table: DispatchTable) -> Iterator[tuple[str, Problem]]:
    """Each variant on the longest call that it takes, with every kind of inputs but the run's.

    The longest has the most extreme scores, and so shows most. Torch's own function, which takes
    all other calls too, is left out.
    """
    for entry in table.entries:
        for variant, problem in list(entry.examples(table.made["device"]))[1::2]:
            if variant != FALLBACK:
                yield from ((variant, problem.with_(inputs=kind)) for kind in INPUTS[1:])


def _check(
    asked: Sequence[tuple[str, Problem]], rows: Table, given: argparse.Namespace
) -> list[Record]:
    """What the gate says of variants on problems; nothing is timed."""
    machine, device = this_machine(), asked[0][1].device
    start = one_problem(device)
    plans = [make_plan(rows, [name], start, machine, [problem]) for name, problem in asked]
    plan = Plan([cell for each in plans for cell in each.cells])
    say(f"checking each variant of the table on other inputs than the run's: {plan.sentence()}")
    settings = settings_of(given, machine)
    with engine_on(device, settings) as engine, Progress(len(plan.to_run)) as progress:
        return check_cells(plan, engine, given.seed or 0, progress)
