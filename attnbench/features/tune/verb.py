"""``attnbench tune VARIANT``: the options that make it fastest here, which it then runs with."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.command import arguments
from attnbench.command.terminal import INTERRUPTED, say, status_of
from attnbench.core.format import counted, duration, roughly
from attnbench.core.tuned import (
    ELSEWHERE,
    FORM,
    TunedLine,
    check_writable,
    file_of,
    kind_of,
    save_lines,
    versions_of,
)
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.core.machine import Machine
    from attnbench.core.settings import Settings
    from attnbench.features.tune.search import Ask, CandidateTrial, Options, Tuning
    from attnbench.sweep.compare import Compared
    from attnbench.sweep.engine import LocalEngine


def tune(given: argparse.Namespace) -> int:
    """``attnbench tune VARIANT``"""
    import impls
    from attnbench.answer.search import grid_for
    from attnbench.core.machine import this_machine
    from attnbench.features.tune import view
    from attnbench.features.tune.search import plan
    from attnbench.report import tidy
    from attnbench.sweep.start import settings_of

    machine = this_machine()
    grid = grid_for(arguments.grid_changes(given), machine, lambda _: {})
    tunings = plan(impls.table(given.table), given.name, grid, machine)
    settings = settings_of(given, machine)
    path = file_of(grid.device, machine)
    if path is None:
        raise CantBeDone(f"there is no home to keep tuned options in: {ELSEWHERE}")
    check_writable(path)
    stopped = _searched(given, tunings, path, machine, settings)
    if given.json:
        row = tunings[0].row
        found = {"variant": row.label, "computes": row.computes, "file": str(path)}
        print(json.dumps({**found, "problems": [each.to_dict() for each in tunings]}))
    elif given.csv:
        tidy.show(view.rows(tunings))
    else:
        view.show(tunings)
    if any(each.kept for each in tunings):
        say(f"kept in {path}, and used from now on; to undo it, delete its line there")
    if stopped:
        return INTERRUPTED
    statuses = [str(trial.compared.status) for each in tunings for trial in each.trials]
    return status_of(statuses, "no candidate could be compared")


def _searched(
    given: argparse.Namespace,
    tunings: list[Tuning],
    path: Path,
    machine: Machine,
    settings: Settings,
) -> bool:
    """Try all candidates, and keep what is found for each problem as its tuning ends; whether
    Ctrl-C ended it.
    """
    from attnbench.answer.search import LooksLeft, until_stopped
    from attnbench.command.progress import Progress
    from attnbench.core.evidence import floor_first, stored_floors
    from attnbench.core.record import FINDINGS
    from attnbench.features.tune import search
    from attnbench.sweep.compare import starting_s

    floors = stored_floors(Path(given.out), machine, settings)
    measures_floor = given.margin is None and not floors
    guesses = {id(each): search.guess_s(each, machine) for each in tunings}
    first_s = search.guess_s(tunings[0], machine, floor=measures_floor) - guesses[id(tunings[0])]

    def ahead() -> float:
        begun = any(each.trials for each in tunings)
        left_s = sum(each.ahead * guesses[id(each)] for each in tunings)
        return left_s + (0.0 if begun else starting_s() + first_s)

    left = LooksLeft(ahead, given.budget)
    _announce(tunings, left.left_s, given.budget)
    if measures_floor:
        say(floor_first("first for each problem"))
    left_s = search.countdown(given.budget)
    with Progress() as progress:
        progress.at(0, 0, left.left_s, "the worker starts")

        def server(tuning: Tuning, engine: LocalEngine) -> Ask:
            pairs = search.CandidatePairs(
                tuning, engine, given.seed or 0, given.margin, floors, left_s
            )

            def ask(options: Options, against: Options, pairs_s: float) -> Compared:
                seconds = left.begin(guesses[id(tuning)], max(left_s(), 1.0))
                label = replace(tuning.row, given={**tuning.row.given, **options}).label
                progress.at(0, 0, seconds, f"{label} {tuning.problem}")
                return pairs(options, against, pairs_s)

            return ask

        def hear(heard: tuple[Tuning, CandidateTrial | None]) -> None:
            tuning, trial = heard
            if trial.final if trial else tuning.final is None:
                _keep(tuning, path, machine, settings)
            if trial and trial.compared.status in FINDINGS:
                progress.tell(f"{trial.compared.status}: {trial.compared.why}", "yellow")

        return until_stopped(
            tunings[0].problem.device,
            settings,
            lambda engine: search.tune(tunings, lambda t: server(t, engine), given.budget),
            hear,
            progress.tell,
        )


def _announce(tunings: list[Tuning], left_s: float, budget_s: float) -> None:
    """Say what is tried, and how long that takes."""
    most = max(sum(map(len, tuning.groups)) for tuning in tunings)
    say(
        f"tuning {tunings[0].row.label} on {counted(len(tunings), 'problem')}, "
        f"{counted(most, 'candidate')} each; about {roughly(left_s)}, "
        f"{duration(budget_s)} at the most"
    )


def _keep(tuning: Tuning, path: Path, machine: Machine, settings: Settings) -> None:
    """Put what was found into the file, in place of what was there for problems alike; where all
    candidates were tried and none is faster, take that out.
    """
    problem, final, lines = tuning.problem, tuning.final, []
    if tuning.kept and final and (c := final.comparison):
        lines.append(
            TunedLine(
                tuned=FORM,
                variant=tuning.row.label,
                options=tuning.kept,
                dtype=problem.dtype,
                head_dim=problem.head_dim,
                v_head_dim=problem.v_head_dim,
                mask=str(problem.mask),
                phase=problem.phase,
                q_len=problem.q_len,
                kv_len=problem.kv_len,
                ratio=c.ratio,
                low=c.low,
                high=c.high,
                pairs=c.n,
                problem=str(problem),
                versions=versions_of(machine),
                threads=settings.threads,
                made=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )
    if lines or (not tuning.cut and any(trial.comparison for trial in tuning.trials)):
        save_lines(path, lines, [kind_of(tuning.row.label, problem)])
