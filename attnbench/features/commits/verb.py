"""``attnbench compare A B``, and ``attnbench history``: its commits, with asv or in pairs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import impls
from attnbench.answer import compare_runs
from attnbench.answer.search import LooksLeft
from attnbench.command import arguments
from attnbench.command.progress import Progress
from attnbench.command.terminal import say, status_of
from attnbench.core import checkout, lock
from attnbench.core.checkout import BadCommit, Commit, Repository
from attnbench.core.disk import HEADER
from attnbench.core.evidence import floor_first, stored_floors, stored_margin
from attnbench.core.format import counted, duration, roughly
from attnbench.core.machine import Machine, this_machine
from attnbench.core.record import FINDINGS
from attnbench.core.settings import Settings
from attnbench.core.store import named_run
from attnbench.features.commits import rounds, rows, view
from attnbench.features.commits.asv_interface import Asv, ensure_machine, report
from attnbench.features.commits.pairs import CommitCell
from attnbench.report import tidy
from attnbench.sweep import compare as pairs
from attnbench.sweep import engine as engines
from attnbench.sweep.plan import Cell, make_plan
from attnbench.sweep.presets import PRESETS, Preset
from attnbench.sweep.start import find_preset, settings_of
from impls import UnknownVariant

PAIRS_S = 30.0
COMMITS_VARIANT = "matmul"
"""Of two commits, what is compared if no --variant says."""


RUN, VARIANT, NEITHER = "a run folder", "a variant", "neither a run folder nor a variant"


def compare(given: argparse.Namespace) -> int:
    """Which kind of thing A and B are decides how they are compared."""
    given.a, given.b = (str(named_run(name, Path(given.out))) for name in (given.a, given.b))
    table, kinds, hint = impls.table(given.table), [], ""
    for name in (given.a, given.b):
        kinds.append(RUN if (Path(name) / HEADER).exists() else VARIANT)
        if kinds[-1] == VARIANT:
            try:
                table.find(name)
            except UnknownVariant as unknown:
                kinds[-1] = NEITHER
                hint = hint if Path(name).exists() else f" ({unknown})"
    if kinds[0] == kinds[1]:
        return {RUN: _runs, VARIANT: _variants, NEITHER: _commits}[kinds[0]](given)
    raise pairs.NothingToCompare(
        f"{given.a} is {kinds[0]} and {given.b} is {kinds[1]}; compare takes two variants, two "
        f"run folders or two commits{hint}"
    )


def begin(given: argparse.Namespace) -> tuple[Machine, Settings, Preset]:
    """This machine, the settings, and the problems."""
    machine = this_machine()
    changes = arguments.grid_changes(given)
    changes.pop("budget", None)  # of pairs here, not of samples
    preset = find_preset(given.preset or f"compare-{machine.devices[-1]}", machine)
    return machine, settings_of(given, machine), preset.with_(**changes)


def _variants(given: argparse.Namespace) -> int:
    if given.variant:
        raise pairs.NothingToCompare("--variant is for two commits; A and B are the variants here")
    (machine, settings, grid), table = begin(given), impls.table(given.table)
    ranks = {name: table.find(name).ranks for name in (given.a, given.b)}
    mixed = len({bool(each) for each in ranks.values()}) > 1  # only the one runs over several
    plans = []
    for name in (given.a, given.b):
        own = grid.with_(world=1) if mixed and not ranks[name] else grid
        plans.append(make_plan(table, [name], own, machine, tuned=True))
    judged, against = (plan.cells for plan in plans)
    both = judged[0].variant, against[0].variant
    for note in [*pairs.unlike(*both), *plans[0].tuned_notes(), *plans[1].tuned_notes()]:
        say(note)
    seconds = given.budget or PAIRS_S
    floors = stored_floors(Path(given.out), machine, settings)
    measures_floor = given.margin is None and not floors
    guesses = [
        pairs.pairs_guess_s(a, b, machine, seconds, floor=measures_floor)
        for a, b in zip(judged, against, strict=True)
    ]
    guesses[0] += pairs.starting_s()
    say(
        f"comparing on {counted(len(judged), 'problem')}: up to {duration(seconds)} of pairs each, "
        f"and the checks before them; about {roughly(sum(guesses))}"
    )
    if measures_floor:
        say(floor_first("first for each problem"))
    with engines.engine_on(grid.device, settings) as engine, Progress() as progress:
        progress.expect(guesses)
        problems = iter([*(str(cell.problem) for cell in judged), "done"])
        progress.step(next(problems))

        def watch(one: pairs.Compared) -> None:
            if one.status in FINDINGS:
                progress.tell(f"{one.problem}: {one.status}: {one.why}", "yellow")
            progress.step(next(problems))

        found = pairs.compare_cells(
            judged,
            against,
            engine,
            seed=given.seed or 0,
            margin=given.margin,
            floors=floors,
            budget_s=seconds,
            watch=watch,
        )
    if given.json:
        cells = [one.to_dict() for one in found]
        sides: dict[str, Any] = {"judged": both[0].label, "against": both[1].label}
        sides["computes"] = {row.label: row.computes for row in both}
        sides["tuned"] = {**plans[0].tuned, **plans[1].tuned}
        print(json.dumps({**sides, "counts": pairs.counts(found), "cells": cells}))
    elif given.csv:
        tidy.show(view.pairs_rows(found, *both))
    else:
        view.show_pairs(found, *both)
    return status_of([str(one.status) for one in found])


def _runs(given: argparse.Namespace) -> int:
    asked = set(arguments.grid_changes(given))
    asked |= {n for n in ("preset", "margin", "variant", "threads", "seed") if getattr(given, n)}
    if asked:
        options = ", ".join("--" + name.replace("_", "-") for name in sorted(asked))
        raise pairs.NothingToCompare(
            f"{options} says nothing of two run folders, which were measured already; leave it out"
        )
    found = compare_runs.compare_runs(Path(given.a), Path(given.b))
    if given.json:
        print(json.dumps(found.to_dict()))
    elif given.csv:
        tidy.show(view.runs_rows(found))
    else:
        view.runs(found, whole=given.tables)
    return found.exit_status


def _commits(given: argparse.Namespace) -> int:
    try:
        where = checkout.repository(given.table)
        a, b = (checkout.find_commit(name, where.root) for name in (given.a, given.b))
    except BadCommit as why:
        raise pairs.NothingToCompare(
            f"{given.a} and {given.b} are no variants and no run folders; as commits, {why}"
        ) from None
    variants = given.variant or ([] if where.whole else [COMMITS_VARIANT])
    return _in_rounds(given, where, (a, b), begin(given), variants, ("a", "b"))


def _in_rounds(
    given: argparse.Namespace,
    where: Repository,
    commits: tuple[Commit, Commit],
    begun: tuple[Machine, Settings, Preset],
    variants: Sequence[str],
    names: tuple[str, str],
) -> int:
    """Two commits in pairs, a line for each cell as it ends, and the answer in the form asked."""
    machine, settings, grid = begun
    seconds = given.budget or rounds.BUDGET_S
    opened = engines.open_worker(
        settings, given.seed or 0, grid.budget, where.tables, device=grid.device
    )
    plan = rows.plan_cells(*commits, variants, grid, machine, where)
    now: list[Any] = [1, plan.cells, None]
    """The round, the cells that have no verdict yet, and the one that is next."""
    left = LooksLeft(lambda: rounds.ahead_s(machine, *now), len(plan.cells) * seconds)
    say(view.plan(plan.cells, left.left_s, seconds))
    with lock.lock_for([grid.device]), Progress() as progress:
        progress.at(0, 0, left.left_s, "both commits are laid out and checked")

        def begins(number: int, some: Sequence[Cell], cell: Cell) -> None:
            now[:] = number, some, cell
            left_s = left.begin(rounds.guess_s(cell, machine), inf)
            what = f"round {number}: {cell.variant.label} {cell.problem}"
            progress.at(len(plan.cells) - len(some), len(plan.cells), left_s, what)

        def watch(cell: CommitCell) -> None:
            if cell.pairs is None:
                progress.tell(f"{cell.variant} on {cell.problem}: {cell.why}", "yellow")

        found = rounds.compare_in_rounds(
            *commits,
            plan,
            opened,
            margin=given.margin or stored_margin(Path(given.out), machine, settings),
            budget_s=seconds,
            repository=where,
            begins=begins,
            watch=watch,
        )
    if given.json:
        print(json.dumps(found.to_dict()))
    elif given.csv:
        tidy.show(view.commits_rows(found, names))
    elif getattr(given, "markdown", False):
        print(view.markdown(found))
    else:
        view.commits(found, names)
    return found.exit_status


def history(given: argparse.Namespace) -> int:
    """The form that was asked for."""
    return _compare(given) if given.form == "compare" else _history(given)


def _history(given: argparse.Namespace) -> int:
    where = checkout.repository(given.table)
    commits = checkout.find_commits(given.range, where.root)
    where.refuse_dirty(commits)
    names = rows.names_in(commits, where)
    asv = Asv.of(where, names)
    machine = ensure_machine()
    guess_s = Asv.guess_s(len(commits), given.rounds, given.bench, names)
    say(
        f"measuring {counted(len(commits), 'commit')} with asv, in "
        f"{counted(given.rounds, 'round')} through all of them, as machine {machine}; about "
        f"{roughly(guess_s)}"
    )
    with Progress() as progress:
        progress.expect([guess_s])
        progress.step("asv's own words are above" if sys.stderr.isatty() else "asv")
        if not asv.run([c.sha for c in commits], machine, given.rounds, given.bench, progress.tell):
            progress.tell(
                "note: some benchmarks failed; the table says how many, 'asv show' which and why"
            )
        page = asv.publish()
    found = report(commits, asv.results, machine, given.factor, where)
    if given.json:
        sent = {"machine": machine, "factor": given.factor, "page": str(page)}
        print(json.dumps({**sent, "commits": [asdict(one) for one in found]}))
    elif given.csv:
        tidy.show(view.history_rows(found))
    else:
        view.history(found, given.factor)
    say(f"pages: {page}; to see them: {asv.preview_command}")
    if given.open:
        asv.preview()
    return int(any(one.newly_failed for one in found))  # asv's 'slower' is no finding: no pairs


def _compare(given: argparse.Namespace) -> int:
    machine, settings, grid = begin(given)
    where = checkout.repository(given.table)
    base, head = (checkout.find_commit(name, where.root) for name in (given.a, given.b))
    where.refuse_dirty([base, head])
    suite = "history-cuda" if "cuda" in machine.devices else "history"
    begun = machine, settings, grid.with_(variants=grid.variants or PRESETS[suite].variants)
    return _in_rounds(given, where, (base, head), begun, given.variant or [], ("base", "head"))
