"""``attnbench quality TASK``: what a variant costs a model, and the evidence that is kept of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from rich.markup import escape

from attnbench.command.progress import Progress
from attnbench.command.terminal import INTERRUPTED, say
from attnbench.core.disk import StoreError, write_whole
from attnbench.core.evidence import (
    Evidence,
    check_writable,
    evidence_name,
    read_evidence,
    save_evidence,
)
from attnbench.core.lock import lock_for
from attnbench.core.machine import this_machine
from attnbench.core.record import FINDINGS, NOT_TRIED, Status
from attnbench.features.quality import caches, lm, model, real, recall, view
from attnbench.features.quality.task import ResultGroup, Row, TaskRun
from attnbench.report import tidy
from attnbench.report.tables import FAINT, console
from attnbench.report.tables import show as show_table
from attnbench.sweep.sweep import Interrupt
from impls.errors import CantBeDone

TASKS: Mapping[str, Any] = {
    "recall": recall,
    "model": model,
    "real": real,
    "lm": lm,
    "caches": caches,
}
"""The module of each, as :mod:`attnbench.features.quality.task` describes it."""
NOT_RUN = ("refused", *NOT_TRIED)
"""Statuses of variants that were not tried."""
SAVED_S = 2.0
"""The rows so far are saved no oftener."""
MISFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""The errors of evidence that is not as attnbench writes it."""


def quality(arguments: argparse.Namespace) -> int:
    """Run a task, or show what an earlier call of it kept."""
    name = arguments.form
    if name not in TASKS:
        missing = "missing subcommand"
        what = f"there is no quality {arguments.asked!r}" if arguments.asked else missing
        *some, last = TASKS
        raise CantBeDone(
            f"{what}: give {', '.join(some)} or {last}, as in 'attnbench quality {last}'"
        )
    if arguments.source is None:
        run = TASKS[name].start(arguments)
        check_writable(Path(arguments.out), this_machine())
        kept = evidence_name(name)
        return _keep(arguments, kept, *_collect(run, partial(_save, arguments, kept)))
    file = Path(arguments.source)
    evidence = read_evidence(file)
    if evidence.kind != name:
        raise StoreError(
            f"{file} is evidence of {evidence.kind}, not of {name}: give a file that 'attnbench "
            f"quality {name}' wrote, results/*/evidence/*-{name}.json"
        )
    try:
        return _present(evidence, groups_of(evidence), file, arguments)
    except MISFORMED as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StoreError(f"{file} is damaged ({why}): what it holds can't be shown") from None


def _save(arguments: argparse.Namespace, file: str, header: Row, rows: list[Row]) -> Path:
    """Keep what there is so far."""
    return save_evidence(Path(arguments.out), Evidence(arguments.form, header, rows), file)


def _collect(run: TaskRun, save: Callable[[Row, list[Row]], Path]) -> tuple[Row, list[Row]]:
    """The header and the rows until Ctrl-C, which may end the steps at a None; those so far are
    saved now and then, whatever becomes of this process.
    """
    rows, stopped, saved = list[Row](), False, monotonic()
    try:
        with (
            lock_for([run.device]),
            Progress() as progress,
            (interrupt := Interrupt(progress.tell)).watching(),
            closing(run.steps(progress)) as remaining,
        ):
            for row in remaining:
                rows += [] if row is None else [row]
                if rows and rows[-1]["status"] not in NOT_RUN and monotonic() - saved > SAVED_S:
                    save({**run.header, "stopped": True}, rows)
                    saved = monotonic()
                if stopped := interrupt.asked:
                    break
    except KeyboardInterrupt:
        stopped = True
    return {**run.header, "stopped": stopped}, rows


def _keep(arguments: argparse.Namespace, name: str, header: Row, rows: list[Row]) -> int:
    """Keep evidence with its picture, if it has one, and print it; the exit status."""
    stopped = header["stopped"]
    if stopped and all(row["status"] in NOT_RUN for row in rows):
        say("attnbench: stopped before anything was tried; nothing is kept")
        return INTERRUPTED
    evidence = Evidence(arguments.form, header, rows)
    file = _save(arguments, name, header, rows)
    groups = groups_of(evidence)
    status = _present(evidence, groups, file, arguments)
    words = ""
    if (picture := view.draw(evidence, groups)) is not None:
        png = file.with_suffix(".png")
        try:
            write_whole(png, picture.png, sync=False)
            words = f"; drawn in {png}"
        except OSError as error:
            say(f"note: {png} could not be written: {error.strerror}")
    say(f"kept in {file}{words}")
    return INTERRUPTED if stopped else status


def groups_of(evidence: Evidence) -> list[ResultGroup]:
    """The results that evidence shows, by its task."""
    groups: list[ResultGroup] = TASKS[evidence.kind].results(evidence)
    return groups


def _present(
    evidence: Evidence, groups: list[ResultGroup], file: Path, arguments: argparse.Namespace
) -> int:
    """Print evidence: 1 where a variant is wrong or died, 2 where none ran."""
    if arguments.csv:
        tidy.show(view.csv_rows(evidence, groups))
    elif arguments.json:
        more = {"conclusions": view.conclusions(groups), "results": msgspec.to_builtins(groups)}
        print(json.dumps({**json.loads(file.read_text()), **more}))
    else:
        show(evidence, groups)
    if evidence.partial:
        say("stopped early: these results are incomplete")
    statuses = {row["status"] for row in evidence.rows}
    if statuses & {*FINDINGS, Status.TIMED_OUT}:
        return 1
    if statuses <= {*NOT_RUN}:
        say("attnbench: nothing was measured, for the reasons above")
        return 2
    return 0


def show(evidence: Evidence, groups: list[ResultGroup]) -> None:
    """Print its tables, conclusions and notes."""
    page, out = _words(evidence, groups), console()
    for table in page["tables"]:
        show_table(table)
    out.print()
    for line in page["conclusions"]:
        out.print(escape(line))
    for line in page["lines"]:
        out.print(escape(line), style=FAINT)


def _words(evidence: Evidence, groups: list[ResultGroup]) -> Row:
    """All of it but the picture."""
    return {
        "conclusions": view.conclusions(groups),
        "tables": view.tables(groups),
        "lines": [*view.notes(evidence), *TASKS[evidence.kind].notes(evidence)],
    }


def quality_for_page(evidence: Evidence) -> Row:
    """The parts of a report's section."""
    groups = groups_of(evidence)
    return {**_words(evidence, groups), "figure": view.draw(evidence, groups)}
