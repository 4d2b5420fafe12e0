"""``attnbench compare``, and ``attnbench history``: commits with asv, or two of them in pairs."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import impls
from attnbench.answer import compare_runs
from attnbench.command import arguments
from attnbench.command.progress import Progress
from attnbench.command.terminal import say, status_of
from attnbench.core import checkout, lock
from attnbench.core.checkout import BadCommit
from attnbench.core.disk import HEADER
from attnbench.core.evidence import floor_first, stored_floors, stored_margin
from attnbench.core.format import counted, duration, roughly
from attnbench.core.machine import Machine, this_machine
from attnbench.core.record import FINDINGS
from attnbench.core.settings import Settings
from attnbench.core.store import named_run
from attnbench.core.wire import plain
from attnbench.features.commits import rounds, rows, view
from attnbench.features.commits.asv_interface import Asv, CommitResults, ensure_machine
from attnbench.report import tidy
from attnbench.sweep import compare as pairs
from attnbench.sweep import engine as engines
from attnbench.sweep.plan import make_plan
from attnbench.sweep.presets import PRESETS, Preset
from attnbench.sweep.start import find_preset, settings_of
from impls import UnknownVariant
from impls.errors import CantBeDone

PAIRS_S = 30.0
RUN, VARIANT, NEITHER = "a run folder", "a variant", "neither a run folder nor a variant"


def compare(args: argparse.Namespace) -> int:
    """Compare A and B as the kind of thing that both are."""
    args.a, args.b = (str(named_run(name, Path(args.out))) for name in (args.a, args.b))
    table, kinds, hint = impls.table(args.table), [], ""
    for name in (args.a, args.b):
        kinds.append(RUN if (Path(name) / HEADER).exists() else VARIANT)
        if kinds[-1] == VARIANT:
            try:
                table.find(name)
            except UnknownVariant as unknown:
                kinds[-1] = NEITHER
                hint = hint if Path(name).exists() else f" ({unknown})"
    if kinds[0] != kinds[1]:
        raise CantBeDone(
            f"{args.a} is {kinds[0]} and {args.b} is {kinds[1]}; compare takes two variants, two "
            f"run folders or two commits{hint}"
        )
    if kinds[0] == RUN:
        return _runs(args)
    if kinds[0] == VARIANT:
        return _variants(args)
    try:
        root = checkout.repository(args.table).root
        for name in (args.a, args.b):
            checkout.find_commit(name, root)
    except BadCommit as why:
        raise CantBeDone(
            f"{args.a} and {args.b} are no variants and no run folders; as commits, {why}"
        ) from None
    return _commits(args)


def history(args: argparse.Namespace) -> int:
    """Compare two commits in pairs, or measure a series of them with asv."""
    return _commits(args) if args.form == "compare" else _series(args)


def _problems(args: argparse.Namespace) -> tuple[Machine, Settings, Preset]:
    """This machine, the settings, and the problems to compare on."""
    machine = this_machine()
    changes = arguments.grid_changes(args)
    changes.pop("budget", None)  # of pairs here, not of samples
    preset = find_preset(args.preset or f"compare-{machine.devices[-1]}", machine)
    return machine, settings_of(args, machine), preset.with_(**changes)


def _variants(args: argparse.Namespace) -> int:
    if args.variant:
        raise CantBeDone("--variant is for two commits; A and B are the variants here")
    (machine, settings, grid), table = _problems(args), impls.table(args.table)
    ranks = {name: table.find(name).ranks for name in (args.a, args.b)}
    mixed = len({bool(each) for each in ranks.values()}) > 1  # only the one runs over several
    plans = []
    for name in (args.a, args.b):
        own = grid.with_(world=1) if mixed and not ranks[name] else grid
        plans.append(make_plan(table, [name], own, machine, tuned=True))
    judged, against = (plan.cells for plan in plans)
    both = judged[0].variant, against[0].variant
    for note in [*pairs.unlike(*both), *plans[0].tuned_notes(), *plans[1].tuned_notes()]:
        say(note)
    seconds = args.budget or PAIRS_S
    floors = stored_floors(Path(args.out), machine, settings)
    guesses = [
        pairs.pairs_guess_s(a, b, machine, seconds) for a, b in zip(judged, against, strict=True)
    ]
    guesses[0] += pairs.starting_s()
    say(
        f"comparing on {counted(len(judged), 'problem')}: up to {duration(seconds)} of pairs each, "
        f"and the checks before them; about {roughly(sum(guesses))}"
    )
    if args.margin is None and not floors:
        say(floor_first("first for each problem"))
    how, results = (args.seed or 0, args.margin, floors, seconds), []
    with engines.engine_on(grid.device, settings) as engine, Progress() as progress:
        progress.expect(guesses)
        for a, b in zip(judged, against, strict=True):
            progress.step(str(a.problem))
            one = pairs.compare_cell(a, b, engine, *how)
            if one.status in FINDINGS:
                progress.tell(f"{one.problem}: {one.status}: {one.why}", "yellow")
            results.append(one)
    results = pairs.corrected(results)
    if args.json:
        cells = plain(results)
        sides: dict[str, Any] = {"judged": both[0].label, "against": both[1].label}
        sides["computes"] = {row.label: row.computes for row in both}
        sides["tuned"] = {**plans[0].tuned, **plans[1].tuned}
        print(json.dumps({**sides, "counts": pairs.counts(results), "cells": cells}))
    elif args.csv:
        tidy.show(view.csv_rows(view.pairs(results)))
    else:
        view.show_pairs(results, *both)
    return status_of([str(one.status) for one in results])


def _runs(args: argparse.Namespace) -> int:
    names = set(arguments.grid_changes(args))
    others = ("preset", "margin", "variant", "threads", "allocator", "seed")
    names |= {name for name in others if getattr(args, name)}
    if names:
        options = ", ".join("--" + name.replace("_", "-") for name in sorted(names))
        raise CantBeDone(f"{options} does not apply to finished runs; leave it out")
    both = compare_runs.compare_runs(Path(args.a), Path(args.b))
    if args.json:
        print(json.dumps(both.to_dict()))
    elif args.csv:
        tidy.show(view.csv_rows(view.runs(both)))
    else:
        view.show_runs(both, whole=args.tables)
    return both.exit_status


def _commits(args: argparse.Namespace) -> int:
    """Two commits in pairs, a line for each cell as it ends, and the answer in the form asked."""
    machine, settings, grid = _problems(args)
    repository = checkout.repository(args.table)
    base, head = (checkout.find_commit(name, repository.root) for name in (args.a, args.b))
    repository.refuse_dirty([base, head])
    suite = PRESETS["history-cuda" if "cuda" in machine.devices else "history"]
    grid = grid.with_(variants=grid.variants or suite.variants)
    seconds = args.budget or rounds.BUDGET_S
    opened = engines.open_worker(
        settings, args.seed or 0, grid.budget, repository.tables, device=grid.device
    )
    plan = rows.plan_cells(base, head, args.variant or [], grid, machine, repository)
    guesses = [rounds.round_s(plan.cells, machine)] * rounds.USUAL_ROUNDS
    about_s = min(sum(guesses), len(plan.cells) * seconds)
    say(view.plan(plan.cells, about_s, seconds))
    with lock.lock_for([grid.device]), Progress() as progress:
        progress.at(0, 0, about_s, "both commits are laid out and checked")
        progress.expect(guesses)

        def begins(number: int, left: int) -> None:
            progress.step(f"round {number}: {counted(left, 'measurement')} without a verdict")

        def watch(cell: pairs.Compared) -> None:
            if cell.comparison is None:
                why = cell.why or cell.why_a
                progress.tell(f"{cell.variant} on {cell.problem}: {why}", "yellow")

        both = rounds.compare_in_rounds(
            base,
            head,
            plan,
            opened,
            margin=args.margin or stored_margin(Path(args.out), machine, settings),
            budget_s=seconds,
            repository=repository,
            begins=begins,
            watch=watch,
        )
    if args.json:
        print(json.dumps(both.to_dict()))
    elif args.csv:
        tidy.show(view.csv_rows(view.commits(both)))
    elif getattr(args, "markdown", False):
        print(view.markdown(both))
    else:
        view.show_commits(both)
    return both.exit_status


def _series(args: argparse.Namespace) -> int:
    repository = checkout.repository(args.table)
    commits = checkout.find_commits(args.range, repository.root)
    repository.refuse_dirty(commits)
    asv, machine = Asv.of(repository), ensure_machine()
    guess_s = Asv.guess_s(len(commits), args.rounds, args.bench)
    say(
        f"measuring {counted(len(commits), 'commit')} with asv, in "
        f"{counted(args.rounds, 'round')} through all of them, as machine {machine}; about "
        f"{roughly(guess_s)}"
    )
    with Progress() as progress:
        progress.expect([guess_s])
        progress.step("asv's own words are above" if sys.stderr.isatty() else "asv")
        if not asv.run([c.sha for c in commits], machine, args.rounds, args.bench, progress.tell):
            progress.tell(
                "note: some benchmarks failed; the table says how many, 'asv show' which and why"
            )
        page = asv.publish()
    results = [CommitResults.read(commit, asv.results, machine) for commit in commits]
    full = [each for each in results if each.values]
    moved = {
        one.commit.sha: asv.compare(before.commit.sha, one.commit.sha, machine, args.factor)
        for before, one in pairwise(full)
    }
    lost = {one.commit.sha: one.newly_failed(before) for before, one in pairwise(full)}
    if args.json:
        about = {"machine": machine, "factor": args.factor, "page": str(page)}
        each = {"commits": [*view.history_rows(results)], "moved": moved, "newly_failed": lost}
        print(json.dumps({**about, **each}))
    elif args.csv:
        tidy.show(view.history_rows(results))
    else:
        view.history(results, moved, lost)
    say(f"pages: {page}; to see them: {asv.preview_command}")
    return int(any(lost.values()))  # 'slower' is no finding: no pairs
