"""``attnbench profile NAME [--against OTHER]``: where the time goes, and why one is slower."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import impls
from attnbench.command.arguments import grid_changes
from attnbench.command.terminal import say
from attnbench.core.disk import StoreError, write_whole
from attnbench.core.lock import lock_for
from attnbench.core.machine import Machine, this_machine
from attnbench.core.record import FINDINGS, Record, read_record
from attnbench.core.wire import Job, plain
from attnbench.features.profile import view
from attnbench.features.profile.why_slower import why_slower
from attnbench.report import tidy
from attnbench.sweep.engine import CELL_LIMIT_S, LocalEngine, WorkerLost, lost_status
from attnbench.sweep.plan import Cell, Plan, make_plan
from attnbench.sweep.presets import Preset
from attnbench.sweep.start import find_preset, settings_of
from impls import Table
from impls.problem import InvalidProblem

LENGTH = "1024"  # long enough that products weigh more than calling them
PHASES, MASKS = ("train", "forward", "decode", "backward"), ("causal", "none")
"""In order: the first that all variants serve is taken."""
PROFILER = "attnbench.features.profile.profiler:answer"


def profile(arguments: argparse.Namespace) -> int:
    """One variant, or two and why one of them is slower."""
    machine = this_machine()
    names = [arguments.name] + [arguments.against] * (arguments.against is not None)
    grid = find_preset(f"compare-{machine.devices[-1]}", machine)
    cells = plan_cells(names, impls.table(arguments.table), grid, grid_changes(arguments), machine)
    for note in Plan(cells).tuned_notes():
        say(note)
    against = "-against-".join(cell.variant.label for cell in cells)  # a second call replaces it
    folder = Path(arguments.out) / slug(f"{against} {cells[0].problem}").strip("-")
    try:
        devices = {cell.problem.device for cell in cells}
        limited = devices == {"cpu"}
        settings = replace(settings_of(arguments, machine), warm_profiler=limited)
        with lock_for(devices), LocalEngine(settings, limited=limited) as engine:
            profiles = profile_cells(cells, engine, arguments.seed or 0, folder)
    except NotProfiled as stopped:
        say(f"attnbench: {stopped}")
        return stopped.status
    why = why_slower(*profiles) if len(profiles) > 1 else []
    portable = [{**p, "trace": Path(p["trace"]).name} for p in profiles]  # the folder may move
    write_whole(folder / "profile.json", json.dumps({"profiles": portable, "why": why}).encode())
    if arguments.json:
        print(json.dumps({"profiles": profiles, "why": why}, allow_nan=False))
    elif arguments.csv:
        tidy.show(view.csv_rows(profiles))
    else:
        view.show(profiles, why)
    traces = ", ".join(p["trace"] for p in portable)
    say(f"written in {folder}: profile.json, {traces} (ui.perfetto.dev)")
    return 0


class NotProfiled(Exception):
    """A variant can't be profiled; ``status`` is the program's exit status."""

    def __init__(self, record: Record) -> None:
        remedy = f" → {record.remedy}" if record.remedy else ""
        status = record.status.words
        super().__init__(f"{record.variant} is not profiled ({status}): {record.reason}{remedy}")
        self.status = 1 if record.status in FINDINGS else 2


def plan_cells(
    names: Sequence[str], table: Table, grid: Preset, changes: Mapping[str, Any], machine: Machine
) -> list[Cell]:
    """A cell for each variant, all on the same problem; raises InvalidProblem for more problems
    than one, or variants of unlike levels.
    """
    rows = [table.find(name) for name in names]
    grid = grid.with_(seq=(LENGTH,), variants=()).with_(**changes)
    if "phase" not in changes:
        grid = grid.with_(phase=(_first([row.on(grid.device, "phases") for row in rows], PHASES),))
    if "mask" not in changes:
        grid = grid.with_(mask=(_first([row.on(grid.device, "masks") for row in rows], MASKS),))
    cells = make_plan(table, names, grid, machine, tuned=True).cells
    problems = list(dict.fromkeys(cell.problem for cell in cells))
    if len(problems) > 1:
        raise InvalidProblem(
            f"profile takes one problem, and this grid has {len(problems)}: "
            f"{problems[0]}, {problems[1]}{', …' if len(problems) > 2 else ''}; give one value each"
        )
    return cells


def _first(served: Sequence[Sequence[str]], preferred: Sequence[str]) -> str:
    """If there is none, the plan refuses one of the variants."""
    return next((x for x in preferred if all(x in some for some in served)), preferred[0])


def slug(text: str) -> str:
    """A text as the name of a file."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)


def profile_cells(
    cells: Sequence[Cell], engine: LocalEngine, seed: int, folder: Path
) -> list[dict[str, Any]]:
    """The profile of each; raises :class:`NotProfiled` for the first that has none, and StoreError
    where the folder can't be made.
    """
    for cell in cells:
        if cell.left_out is not None:
            raise NotProfiled(cell.left_out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"can't write to {folder}: {error.strerror}; use another --out") from None
    profiles = []
    for cell in cells:
        trace = str((folder / f"trace-{slug(cell.variant.label)}.json").resolve())
        job = plain(Job(cell.variant, cell.problem, seed, timed=False))
        question = {"answer": PROFILER, "job": job, "trace": trace}
        try:
            answer = engine.ask(question, CELL_LIMIT_S)
        except WorkerLost as lost:
            status, output = lost_status(lost), lost.output
            record = Record.of(cell.variant, cell.problem, status, lost.reason, detail=output)
            raise NotProfiled(record) from None
        if "profile" not in answer:
            raise NotProfiled(read_record(answer["record"]))
        profiles.append({**answer["profile"], "trace": trace})
    return profiles
