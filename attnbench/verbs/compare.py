"""``attnbench compare A B``: two variants, two run folders, or two commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench import arguments
from attnbench.verbs import say

if TYPE_CHECKING:
    import argparse

    from attnbench.machine import Machine
    from attnbench.measure.settings import Settings
    from attnbench.sweep.presets import Preset
    from impls import Table


COMMITS_VARIANT = "matmul"
"""Of two commits, what is compared if no --variant says."""
COMMITS_CAP = 640
"""Pairs of two processes cost more than pairs in one."""


class NothingToCompare(LookupError):
    """A and B are no two things of a kind; a sentence."""


def compare(given: argparse.Namespace) -> int:
    """Which kind of thing A and B are decides how they are compared."""
    import impls
    from attnbench.store import HEADER

    folders = [(Path(x) / HEADER).exists() for x in (given.a, given.b)]
    if all(folders):
        return _runs(given)
    table = impls.table(given.table)
    rows = [_is_row(table, x) for x in (given.a, given.b)]
    if all(rows):
        return _variants(given, table)
    for name, row, other in zip((given.a, given.b), rows, rows[::-1], strict=True):
        if other and not row and not Path(name).exists():
            table.find(name)  # says what is there instead
    if any(folders) or any(rows):
        kinds = ["a run folder" if f else "a variant" if r else "neither a run folder nor a variant"
                 for f, r in zip(folders, rows, strict=True)]  # fmt: skip
        raise NothingToCompare(
            f"{given.a} is {kinds[0]} and {given.b} is {kinds[1]}; compare takes two variants "
            "(as 'attnbench list' names them), two run folders or two commits"
        )
    return _commits(given, table)


def _is_row(table: Table, name: str) -> bool:
    from impls import UnknownVariant

    if name.split("?")[0] not in table.rows:
        return False
    try:
        table.find(name)
    except UnknownVariant:
        return False
    return True


def _begun(given: argparse.Namespace) -> tuple[Machine, Settings, Preset]:
    from attnbench.machine import this_machine
    from attnbench.measure.settings import Settings
    from attnbench.sweep.presets import default_preset
    from attnbench.sweep.start import find_preset, pinned

    machine = this_machine()
    preset = given.preset or f"compare-{default_preset(machine.devices)}"
    grid = find_preset(preset, machine).with_(**arguments.grid_changes(given))
    return machine, Settings(threads=pinned(given.threads, machine)), grid


def _variants(given: argparse.Namespace, table: Table) -> int:
    from attnbench.lock import lock_for
    from attnbench.report import pairs_view
    from attnbench.store import stored_floors
    from attnbench.sweep.compare import compare_cells, counts
    from attnbench.sweep.engine import LocalEngine
    from attnbench.sweep.plan import make_plan

    machine, settings, grid = _begun(given)
    judged, against = (make_plan(table, [x], grid, machine).cells for x in (given.a, given.b))
    names = judged[0].variant.label, against[0].variant.label
    floors = stored_floors(Path(given.out), machine, settings.threads)
    if given.margin is None and not floors:
        say("no noise floor is stored for this machine, so it is measured first for each problem; "
            "'attnbench env' measures it once")  # fmt: skip
    with lock_for([grid.device]), LocalEngine(settings) as engine:
        found = compare_cells(
            judged, against, engine, seed=given.seed or 0, margin=given.margin, floors=floors,
            budget_s=given.budget or 30.0, watch=lambda one: say(pairs_view.line(one, *names)),
        )  # fmt: skip
    if given.json:
        sent: dict[str, Any] = {"judged": names[0], "against": names[1], "counts": counts(found)}
        print(json.dumps({**sent, "cells": [one.to_dict() for one in found]}))
    else:
        pairs_view.show(found, *names)
    return _status([str(one.status) for one in found])


def _status(statuses: list[str]) -> int:
    if all(s in ("unsupported", "unavailable") for s in statuses):
        say("attnbench: nothing was compared, for the reasons said")
        return 2
    return int(any(s in ("wrong", "implausible", "failed", "crashed") for s in statuses))


def _runs(given: argparse.Namespace) -> int:
    from attnbench.answer.compare_runs import compare_runs
    from attnbench.report import compare_view

    found = compare_runs(Path(given.a), Path(given.b))
    if given.json:
        print(json.dumps(found.to_dict()))
    else:
        compare_view.runs(found)
    return found.exit_status


def _commits(given: argparse.Namespace, table: Table) -> int:
    from attnbench.comparison import LEAST_MARGIN
    from attnbench.lock import lock_for
    from attnbench.pairs import Rule
    from attnbench.report import compare_view
    from attnbench.store import stored_floors
    from attnbench.sweep.commits import CommitCell, compare_commits
    from attnbench.sweep.plan import make_plan
    from attnbench.sweep.turns import open_worker

    machine, settings, grid = _begun(given)
    cells = make_plan(table, given.variant or [COMMITS_VARIANT], grid, machine).cells
    floors = [f["floor"] for f in stored_floors(Path(given.out), machine, settings.threads)]
    margin = given.margin or max(LEAST_MARGIN, *floors, 0.0)
    rule = Rule(margin, first=80, cap=COMMITS_CAP, budget_s=given.budget or 30.0)
    opened = open_worker(settings, given.seed or 0, grid.budget)

    def watch(cell: CommitCell) -> None:
        c = cell.comparison
        what = (
            c.sentence(given.a, given.b) if c else "; ".join(filter(None, (cell.why_a, cell.why_b)))
        )
        say(f"{cell.variant}, {cell.problem}: {what}")

    with lock_for([grid.device]):
        found = compare_commits(given.a, given.b, cells, opened, rule=rule, watch=watch)
    if given.json:
        print(json.dumps(found.to_dict()))
    else:
        compare_view.commits(found)
    return found.exit_status
