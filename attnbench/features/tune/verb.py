"""``attnbench tune VARIANT``: the options that make it fastest here, which it then runs with."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.answer.search import grid_for
from attnbench.command import arguments
from attnbench.command.searching import search_all
from attnbench.command.terminal import INTERRUPTED, say, status_of
from attnbench.core.evidence import floor_first, stored_floors
from attnbench.core.format import counted
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
from attnbench.features.tune.search import Tuning
from attnbench.report import tidy
from attnbench.sweep.start import settings_of
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from attnbench.core.settings import Settings


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
    most = max(len(tuning.rungs) - 1 for tuning in tunings)

    def hear(tuning: Tuning, tell: Callable[..., None]) -> None:
        if tuning.next() is None:
            _save(tuning, path, machine, settings)
        compared = tuning.trials[-1].compared
        if compared.status in FINDINGS:
            tell(f"{compared.status}: {compared.why}", "yellow")

    return search_all(
        tunings,
        lambda engine: search.pairs_by(engine, command.seed or 0, command.margin, floors),
        command.budget,
        tunings[0].problem.device,
        settings,
        what=f"tuning {tunings[0].row.label} on {counted(len(tunings), 'problem')}, "
        f"{counted(most, 'candidate')} each",
        notes=[floor_first("first for each problem")] if measures_floor else [],
        hear=hear,
    )


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
    if lines or (tuning.complete and any(trial.comparison for trial in tuning.trials)):
        save_lines(path, lines, [kind_of(tuning.row.label, problem)])
