"""``attnbench tune VARIANT``: the options that make it fastest here, which it then runs with."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.search import grid_for, until_stopped
from attnbench.command import arguments
from attnbench.command.progress import Progress
from attnbench.command.terminal import INTERRUPTED, say, status_of
from attnbench.core.evidence import floor_first, stored_floors
from attnbench.core.format import counted, duration, roughly
from attnbench.core.machine import Machine, this_machine
from attnbench.core.record import FINDINGS
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
from attnbench.features.tune import search, view
from attnbench.features.tune.search import CandidateTrial, Options, Tuning
from attnbench.report import tidy
from attnbench.sweep.compare import Compared, pairs_guess_s, starting_s
from attnbench.sweep.start import settings_of
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from attnbench.core.settings import Settings
    from attnbench.sweep.engine import LocalEngine


def tune(command: argparse.Namespace) -> int:
    """``attnbench tune VARIANT``"""
    import impls

    machine = this_machine()
    grid = grid_for(arguments.grid_changes(command), machine, lambda _: {})
    tunings = search.plan(impls.table(command.table), command.name, grid, machine)
    settings = settings_of(command, machine)
    path = file_of(grid.device, machine)
    if path is None:
        raise CantBeDone(f"there is no home to keep tuned options in: {ELSEWHERE}")
    check_writable(path)
    stopped = _run(command, tunings, path, machine, settings)
    if command.json:
        row = tunings[0].row
        head = {"variant": row.label, "computes": row.computes, "file": str(path)}
        print(json.dumps({**head, "problems": [each.to_dict() for each in tunings]}))
    elif command.csv:
        tidy.show(view.rows(tunings))
    else:
        view.show(tunings)
    if any(each.best for each in tunings):
        say(f"kept in {path}, and used from now on; to undo it, delete its line there")
    if stopped:
        return INTERRUPTED
    statuses = [str(trial.compared.status) for each in tunings for trial in each.trials]
    return status_of(statuses, "no candidate could be compared")


def _run(
    command: argparse.Namespace,
    tunings: list[Tuning],
    path: Path,
    machine: Machine,
    settings: Settings,
) -> bool:
    """Try all candidates, and save the result of each problem as its tuning ends; True if Ctrl-C
    ended it.
    """
    floors = stored_floors(Path(command.out), machine, settings)
    measures_floor = command.margin is None and not floors
    cell = search.cell_of(tunings[0], {})
    trial_s, first_s = (
        pairs_guess_s(cell, cell, machine, search.TRIAL_S, floor=floor)
        for floor in (False, measures_floor)
    )

    def ahead_s() -> float:
        """A guess at the trials to come; the first has the worker to start."""
        start_s = starting_s() + first_s - trial_s
        begins = not any(each.trials for each in tunings)
        return sum(each.ahead for each in tunings) * trial_s + (start_s if begins else 0.0)

    about_s, left_s = min(ahead_s(), command.budget), search.countdown(command.budget)
    most = max(sum(map(len, tuning.groups)) for tuning in tunings)
    say(
        f"tuning {tunings[0].row.label} on {counted(len(tunings), 'problem')}, "
        f"{counted(most, 'candidate')} each; about {roughly(about_s)}, "
        f"{duration(command.budget)} at the most"
    )
    if measures_floor:
        say(floor_first("first for each problem"))
    with Progress() as progress:
        progress.at(0, 0, about_s, "the worker starts")

        def hear(event: tuple[Tuning, CandidateTrial | None]) -> None:
            tuning, trial = event
            if trial.final if trial else tuning.final is None:
                _save(tuning, path, machine, settings)
            if trial and trial.compared.status in FINDINGS:
                progress.tell(f"{trial.compared.status}: {trial.compared.why}", "yellow")

        def trials(engine: LocalEngine) -> Iterator[tuple[Tuning, CandidateTrial | None]]:
            pairs = search.pairs_by(engine, command.seed or 0, command.margin, floors, left_s)

            def ask(tuning: Tuning, options: Options, *more: Any) -> Compared:
                what = f"{search.cell_of(tuning, options).variant.label} {tuning.problem}"
                most_s = max(left_s(), 1.0)
                progress.at(0, 0, ahead_s(), what, begins_s=trial_s, most_s=most_s)
                return pairs(tuning, options, *more)

            return search.tune(tunings, ask, command.budget)

        device = tunings[0].problem.device
        return until_stopped(device, settings, trials, hear, progress.tell)


def _save(tuning: Tuning, path: Path, machine: Machine, settings: Settings) -> None:
    """Save the options, in place of those for problems alike; remove these where all candidates
    were tried and none is faster.
    """
    problem, final, lines = tuning.problem, tuning.final, []
    if tuning.best and final and (c := final.comparison):
        lines.append(
            TunedLine(
                tuned=FORM,
                variant=tuning.row.label,
                options=tuning.best,
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
