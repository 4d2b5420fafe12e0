"""``attnbench tune VARIANT``: the options that make it fastest here, which it then runs with."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from attnbench.answer.search import grid_for
from attnbench.command import arguments
from attnbench.command.searching import search_all
from attnbench.command.terminal import INTERRUPTED, say, status_of
from attnbench.core.evidence import floor_first, stored_floors
from attnbench.core.format import counted, key_values, mib, percent
from attnbench.core.machine import Machine, this_machine
from attnbench.core.record import FINDINGS
from attnbench.core.tuned import (
    ELSEWHERE,
    FORM,
    TunedLine,
    check_writable,
    file_of,
    kind_of,
    lengths_alike,
    save_lines,
    versions_of,
)
from attnbench.features.tune import search
from attnbench.features.tune.search import Trial, Tuning
from attnbench.report import tables, tidy
from attnbench.report.tables import FAINT, Styled, Table, columns, console
from attnbench.sweep.start import settings_of
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from attnbench.core.settings import Settings
    from impls.problem import Problem


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
        tidy.show(rows(tunings))
    else:
        show(tunings)
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


# ---- the table ---------------------------------------------------------------------------------

NUMBERS = ("of its time", "99 % interval", "pairs", "margin", "MiB")
DEFAULTS = "the defaults"


def rows(tunings: Sequence[Tuning]) -> Iterator[tidy.Row]:
    """A row a trial, in the order in which they were made."""
    for tuning in tunings:
        for trial in tuning.trials:
            c = trial.comparison
            yield {
                "variant": tuning.row.label,
                "computes": tuning.row.computes,
                "options": key_values(trial.options),
                "against": key_values(trial.against),
                **tidy.of_problem(tuning.problem),
                "verdict": str(c.verdict) if c else trial.compared.status.replace("_", " "),
                **tidy.of_comparison(c),
                **tidy.flat({"memory_bytes": tuning.peak_bytes(trial.options)}),
                "decides": trial.final,
                "kept": bool(tuning.best) and trial.options == tuning.best,
                "reason": trial.compared.why,
            }


def show(tunings: Sequence[Tuning]) -> None:
    """A table a problem: each candidate, then the trial that decides."""
    out = console()
    for tuning in tunings:
        heads = columns(
            "options", "verdict", "against", *NUMBERS, right=NUMBERS, wrap=("options", "against")
        )
        lines = [_line(tuning, trial) for trial in tuning.trials]
        tables.show(Table(str(tuning.problem), heads, lines))
        out.print(escape(f"{tuning.sentence()}."))
        if tuning.best:
            out.print(escape(f"It holds for {_alike(tuning.problem)}."), style=FAINT)
        whys = dict.fromkeys(t.compared.why for t in tuning.trials if t.comparison is None)
        for why in whys:
            out.print(escape(why), style=FAINT)


def _line(tuning: Tuning, trial: Trial) -> tuple[Any, ...]:
    c, memory = trial.comparison, mib(tuning.peak_bytes(trial.options))
    words = key_values(trial.options) + (", again" if trial.final else "")
    against = key_values(trial.against) or DEFAULTS
    if c is None:
        return words, Styled(trial.compared.status, FAINT), against, *[None] * 4, memory
    verdict = Styled(c.verdict, tables.VERDICTS[c.verdict])
    interval = f"[{c.low:.3f}, {c.high:.3f}]"
    return words, verdict, against, f"{c.ratio:.3f}", interval, c.n, percent(c.margin), memory


def _alike(p: Problem) -> str:
    """The problems that a line in the file is used for."""
    widths = f"head_dim {p.head_dim}"
    widths += f" and v_head_dim {p.v_head_dim}" if p.v_head_dim != p.head_dim else ""
    low, high = lengths_alike(p.kv_len)
    lengths = f"{low:,} to {high:,} tokens"
    if p.q_len != p.kv_len:
        low, high = lengths_alike(p.q_len)
        queries = f"{low:,} to {high:,} queries" if high > low else "one query"
        lengths = f"{queries} on {lengths}"
    return f"{p.phase}, {p.dtype}, {widths}, the mask {p.mask} and {lengths}, on this device"
