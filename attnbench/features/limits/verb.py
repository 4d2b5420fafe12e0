"""``attnbench limits [VARIANT …]``: the longest sequence each variant can take in a budget."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.command import arguments
from attnbench.command.terminal import INTERRUPTED, say
from attnbench.core.format import duration, roughly, size
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from attnbench.core.machine import Machine
    from attnbench.core.settings import Settings
    from attnbench.features.limits.search import CallBudget, Limit
    from attnbench.sweep.presets import Preset

DEFAULT_MEMORY = 2 << 30
"""Bytes on a CPU."""
GPU_SHARE = 0.5
"""Of a GPU's memory: the inputs, and the checks of the outputs, need the rest."""
DEFAULT_TIME_S = 0.2
"""A longer one leaves more brackets of the whole table open when the time below is over."""

DRAWING_S = 1.5


def limits(given: argparse.Namespace) -> int:
    """``attnbench limits [VARIANT …]``"""
    import impls
    from attnbench.core.evidence import STAMP, check_writable, made_here, save_beside
    from attnbench.core.machine import this_machine
    from attnbench.core.record import NOT_TRIED
    from attnbench.features.limits.search import finding, frontier, plan
    from attnbench.sweep.start import settings_of

    machine = this_machine()
    grid = _grid(given, machine)
    budget = _budget(given, grid, machine)
    found = plan(impls.table(given.table), given.variants, grid, given.by, budget, machine)
    settings = settings_of(given, machine)
    name = f"limits-{datetime.now(UTC):{STAMP}}"
    facts = made_here(machine, by=given.by, budget=asdict(budget), seed=given.seed or 0)
    facts["settings"] = settings.to_dict()

    def tried() -> list[Limit]:
        return [x for x in found if x.closed is None or x.closed.why not in NOT_TRIED]

    def kept(*, stopped: bool, ended: bool = True) -> Path:
        """The file, whole or not at all, with a row for each variant in each phase."""
        rows = frontier(found if given.variants else tried(), stopped=stopped, ended=ended)
        facts.update(stopped=stopped, rows=rows)
        return save_beside(Path(given.out), machine.name, f"{name}/limits.json", facts)

    check_writable(Path(given.out), machine)
    stopped = _searched(given, found, budget, settings, kept)
    file = kept(stopped=stopped)
    title = f"attnbench {name} on {machine.name}"
    _show(facts, file, title, as_json=given.json, as_csv=given.csv)
    if stopped:
        return INTERRUPTED
    if not tried():
        say("attnbench: nothing was run: no variant takes this problem here, for the reasons said")
        return 2
    return int(finding(found))


def _searched(
    given: argparse.Namespace,
    found: Sequence[Limit],
    budget: CallBudget,
    settings: Settings,
    keep: Callable[..., object],
) -> bool:
    """Look at all limits in turn, and keep what is known after each; whether Ctrl-C ended it."""
    from attnbench.answer.search import LooksLeft, all_looks
    from attnbench.command.progress import Progress
    from attnbench.core.machine import pace
    from attnbench.features.limits.search import Hunt
    from attnbench.sweep.compare import starting_s

    seconds = given.budget
    left = LooksLeft(lambda: sum(limit.ahead_s for limit in found), seconds)
    about_s = min(starting_s() + left.left_s, seconds)
    say(
        f"the {'longest sequence' if given.by == 'seq' else 'largest batch'} of "
        f"{len({limit.variant.label for limit in found})} variants in {size(budget.peak_bytes)} "
        f"and {duration(budget.seconds)} a call, {len(found)} searches; about "
        f"{roughly(about_s + DRAWING_S * pace())}, {duration(seconds)} at the most"
    )

    def hear(look: tuple[Limit, str, float]) -> None:
        limit, said, _ = look
        if limit.closed is not None:
            progress.tell(f"{limit.variant.label} {limit.problem.phase}: {said}", "yellow")
        keep(stopped=False, ended=False)  # on disk when the next look begins

    def watch(limit: Limit, size: int, limit_s: float) -> None:
        left_s = left.begin(limit.guess_s(size), limit_s)
        at = f"{given.by} {size:,}" if size else "its correctness check"
        over = sum(each.next() is None for each in found)
        progress.at(over, len(found), left_s, f"{limit.variant.label} {limit.problem.phase}, {at}")

    with Progress(after_s=DRAWING_S) as progress:
        progress.at(0, len(found), about_s, "the worker starts")
        return all_looks(
            found[0].problem.device if found else "cpu",
            settings,
            lambda engine: Hunt(found, engine, budget, given.seed or 0).run(seconds, watch),
            hear,
            progress.tell,
        )


def _show(facts: Mapping[str, Any], file: Path, title: str, *, as_json: bool, as_csv: bool) -> None:
    """Print what was found, and draw it beside its file."""
    from attnbench.features.limits import view
    from attnbench.report import tidy

    shown = facts["rows"], facts["budget"], facts["by"]
    if as_json:
        print(file.read_text(), end="")
    elif as_csv:
        tidy.show(map(view.csv_row, facts["rows"]))
    else:
        view.show(*shown)
    pictures = [file.with_suffix(".png"), file.with_suffix(".svg")]
    try:
        drawn = f"; drawn in {pictures[0]}" * view.draw(*shown, title, pictures)
    except CantBeDone as error:
        drawn = f"; {error}"
    say(f"kept in {file}{drawn}")


def _grid(given: argparse.Namespace, machine: Machine) -> Preset:
    """One problem but for phase and mask, at the length where the gate is passed."""
    from attnbench.answer.search import grid_for
    from attnbench.features.limits.search import BATCH_SEQ, GATE_SEQ
    from impls.problem import InvalidProblem

    changes = arguments.grid_changes(given)
    if changes.get(given.by) is not None:
        raise InvalidProblem(
            f"--{given.by} is what is searched; leave it out, or search the other with --by "
            f"{'batch' if given.by == 'seq' else 'seq'}"
        )
    start: dict[str, Any] = {"seq": (GATE_SEQ,), "phase": ("forward", "train")}
    if given.by == "batch":
        start |= {"seq": (BATCH_SEQ,), "batch": (1,)}
    return grid_for(changes, machine, "compare-{}", lambda _: start)


def _budget(given: argparse.Namespace, grid: Preset, machine: Machine) -> CallBudget:
    from attnbench.features.limits.search import CallBudget
    from attnbench.sweep.plan import here
    from impls.problem import InvalidProblem

    there, default = machine.memory_bytes, DEFAULT_MEMORY
    if grid.device != "cpu":
        gpu = here(grid.device, machine)
        there = min(each.memory_bytes for each in ([gpu] if gpu else machine.gpus))
        default = int(GPU_SHARE * there)
    if given.max_memory is not None and given.max_memory > there:
        raise InvalidProblem(
            f"--max-memory {size(given.max_memory)} is more than {grid.device} has "
            f"({size(there)}): nothing could be run there; give less"
        )
    return CallBudget(given.max_memory or default, given.max_time or DEFAULT_TIME_S)
