"""``attnbench choose --export FILE``: all that a run measured, as a table for dispatch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.answer.dispatch_table import FALLBACK
from attnbench.machine import this_machine
from attnbench.verbs import say
from impls.asked import CantBeDone
from impls.problem import INPUTS, Problem

if TYPE_CHECKING:
    import argparse

    from attnbench.answer.choice.wants import Wants
    from attnbench.answer.dispatch_table import DispatchTable
    from attnbench.record import Record
    from impls import Table


def export(given: argparse.Namespace, wants: Wants, table: Table) -> int:
    """Of the run named, or the newest of this machine as it is now."""
    from attnbench.answer.choice.runs import measured_here
    from attnbench.store import find_runs, read_header

    if wants.allowed:
        raise CantBeDone("a dispatch table holds exact variants alone: leave --allow out")
    named = [Path(x) for x in given.source or ()]
    runs = list(find_runs(named))
    if not named:
        here = measured_here(Path(given.out), given.threads, given.table)
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


def _checked(run: Path, wants: Wants, rows: Table, given: argparse.Namespace) -> DispatchTable:
    """The table, without variants that are wrong on some kind of inputs: a call may bring any."""
    from attnbench.answer.choice.exported import table_of
    from attnbench.store.skim import Seen

    made = table_of(run, wants, rows)
    if not _is_of_here(made):
        say(
            "the variants could not be checked on other inputs than the run's, since it is not of "
            "this machine and torch: dispatch checks each before its first call"
        )
        return made
    wrong: list[Seen] = []
    asked: set[tuple[str, Problem]] = set()
    while new := [x for x in dict.fromkeys(_to_check(made)) if x not in asked]:
        asked.update(new)
        for record in _check(new, rows, given):
            if record.status != "measured":
                say(f"not exported: {record.variant}, {record.status} on "
                    f"{Problem.from_dict(record.problem)}: {record.reason}")  # fmt: skip
                problem = Problem.from_dict(record.problem)
                wrong.append(Seen("wrong", record.variant, problem, record.reason))
        made = table_of(run, wants, rows, wrong)
    return replace(made, made={**made.made, "inputs": list(INPUTS)})


def _is_of_here(table: DispatchTable) -> bool:
    """Whether the table's variants run on this machine as they did in the run."""
    here = this_machine()
    wanted = (here.name, here.versions.get("torch"))
    return (table.made["machine"], table.made["torch"]) == wanted and (
        table.made["device"] in here.devices
    )


def _to_check(table: DispatchTable) -> Iterator[tuple[str, Problem]]:
    """Each variant on the longest call that it takes, with every kind of inputs but the run's.

    The longest has the most extreme scores, and so shows most. Torch's own function, which takes
    all other calls too, is left out.
    """
    for entry in table.entries:
        for variant, problem in list(entry.examples(table.made["device"]))[1::2]:
            if variant != FALLBACK:
                yield from ((variant, problem.with_(inputs=kind)) for kind in INPUTS[1:])


def _check(asked: Sequence[tuple[str, Problem]], rows: Table,
           given: argparse.Namespace) -> list[Record]:  # fmt: skip
    """What the gate says of variants on problems; nothing is timed."""
    from attnbench.lock import lock_for
    from attnbench.measure.settings import Settings
    from attnbench.sweep import progress
    from attnbench.sweep.engine import LocalEngine
    from attnbench.sweep.plan import Plan, make_plan
    from attnbench.sweep.presets import one_problem
    from attnbench.sweep.run import check_cells
    from attnbench.sweep.start import pinned

    machine = this_machine()
    device = asked[0][1].device
    start = one_problem(device)
    plans = [make_plan(rows, [name], start, machine, [problem]) for name, problem in asked]
    plan = Plan([cell for each in plans for cell in each.cells])
    say(f"checking each variant of the table on other inputs than the run's: {plan.sentence()}")
    settings = Settings(threads=pinned(given.threads, machine))
    with (
        lock_for([device]),
        LocalEngine(settings, limited=device == "cpu") as engine,
        progress.watcher(len(plan.to_run)) as watcher,
    ):
        return check_cells(plan, engine, given.seed or 0, watcher)
