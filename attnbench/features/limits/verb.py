"""``attnbench limits [VARIANT …]``: the longest sequence each variant can take in a budget."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.search import grid_for
from attnbench.command import arguments
from attnbench.command.searching import search_all
from attnbench.command.terminal import INTERRUPTED, say
from attnbench.core.evidence import STAMP, check_writable, made_here, save_beside
from attnbench.core.format import duration, size
from attnbench.core.machine import Machine, this_machine
from attnbench.features.limits import view
from attnbench.features.limits.search import (
    BATCH_SEQ,
    GATE_SEQ,
    CallBudget,
    LimitSearch,
    finding,
    frontier,
    plan,
    probes_by,
)
from attnbench.report import tidy
from attnbench.sweep.plan import here
from attnbench.sweep.start import settings_of
from impls.problem import InvalidProblem

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from attnbench.sweep.presets import Preset

DEFAULT_MEMORY = 2 << 30
"""Bytes on a CPU."""
GPU_SHARE = 0.5
"""The share of a GPU's memory: the inputs, and the checks of the outputs, need the rest."""
DEFAULT_TIME_S = 0.2
"""A longer one leaves more brackets of the whole table open when the time below is over."""


def limits(command: argparse.Namespace) -> int:
    """``attnbench limits [VARIANT …]``"""
    import impls

    machine, out = this_machine(), Path(command.out)
    grid = _grid(command, machine)
    budget = _budget(command, grid, machine)
    table = impls.table(command.table)
    searches = plan(table, command.variants, grid, command.by, budget, machine)
    settings = settings_of(command, machine)
    name = f"limits-{datetime.now(UTC):{STAMP}}"
    facts = made_here(machine, by=command.by, budget=asdict(budget), seed=command.seed or 0)
    facts["settings"] = settings.to_dict()

    def save(*, stopped: bool) -> Path:
        """The file, whole or not at all, with a row for each variant in each phase."""
        some = searches if command.variants else [x for x in searches if x.possible]
        facts.update(stopped=stopped, rows=frontier(some, stopped=stopped))
        return save_beside(out, machine.name, f"{name}/limits.json", facts)

    def hear(search: LimitSearch, tell: Callable[..., None]) -> None:
        if search.cut is not None:
            why = search.refusal[1] if search.refusal else "given up: the wall clock was spent"
            tell(f"{search.variant.label} {search.problem.phase}: {why}", "yellow")
        save(stopped=False)  # on disk when the next look begins

    check_writable(out, machine)
    stopped = search_all(
        searches,
        lambda engine: probes_by(engine, command.seed or 0),
        command.budget,
        grid.device,
        settings,
        what=f"the {'longest sequence' if command.by == 'seq' else 'largest batch'} of "
        f"{len({search.variant.label for search in searches})} variants in "
        f"{size(budget.peak_bytes)} and {duration(budget.seconds)} a call, "
        f"{len(searches)} searches",
        hear=hear,
    )
    file = save(stopped=stopped)
    if command.json:
        print(file.read_text(), end="")
    elif command.csv:
        tidy.show(map(view.csv_row, facts["rows"]))
    else:
        view.show(facts["rows"], facts["budget"], command.by)
    say(f"kept in {file}")
    if stopped:
        return INTERRUPTED
    if not any(search.possible for search in searches):
        say("attnbench: nothing was run: no variant takes this problem here, for the reasons said")
        return 2
    return int(finding(searches))


def _grid(command: argparse.Namespace, machine: Machine) -> Preset:
    """One problem but for phase and mask, at the length where the gate is passed."""
    changes = arguments.grid_changes(command)
    if changes.get(command.by) is not None:
        raise InvalidProblem(
            f"--{command.by} is what is searched; leave it out, or search the other with --by "
            f"{'batch' if command.by == 'seq' else 'seq'}"
        )
    start: dict[str, Any] = {"seq": (GATE_SEQ,), "phase": ("forward", "train")}
    if command.by == "batch":
        start |= {"seq": (BATCH_SEQ,), "batch": (1,)}
    return grid_for(changes, machine, lambda _: start)


def _budget(command: argparse.Namespace, grid: Preset, machine: Machine) -> CallBudget:
    there, default = machine.memory_bytes, DEFAULT_MEMORY
    if grid.device != "cpu":
        gpu = here(grid.device, machine)
        there = min(each.memory_bytes for each in ([gpu] if gpu else machine.gpus))
        default = int(GPU_SHARE * there)
    if command.max_memory is not None and command.max_memory > there:
        raise InvalidProblem(
            f"--max-memory {size(command.max_memory)} is more than {grid.device} has "
            f"({size(there)}): nothing could be run there; give less"
        )
    return CallBudget(command.max_memory or default, command.max_time or DEFAULT_TIME_S)
