"""Where no run fits: what could win is measured, and then the best in pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.choice.chosen import ranked
from attnbench.answer.choice.runs import from_run, left_out
from attnbench.answer.verdict import MARGIN
from attnbench.lock import lock_for
from attnbench.machine import this_machine
from attnbench.store import read_records
from attnbench.sweep import contest, start
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.local import Local
from attnbench.sweep.plan import grid_of, make_plan
from attnbench.sweep.run import sweep

if TYPE_CHECKING:
    from attnbench.answer.choice.choice import Choice
    from attnbench.answer.choice.wants import Wants
    from attnbench.sweep.plan import Plan
    from attnbench.sweep.presets import Preset
    from attnbench.sweep.run import Interrupt, Watcher
    from attnbench.sweep.start import Run
    from impls import Table
    from impls.problem import Problem

SCOUT_S, SAMPLING_S = 0.05, 0.3
"""Seconds of sampling on the shorter sequence, and on the problem itself."""


@dataclass(frozen=True)
class Means:
    """What measuring needs to know, and whom it tells."""

    say: Callable[[str], None]
    watching: Callable[[int], AbstractContextManager[Watcher]]
    """Whoever shows the progress of so many cells."""
    interrupt: Callable[[], Interrupt]
    out: Path = Path("results")
    tables: Sequence[str] = ()
    seed: int = 0
    threads: int | None = None
    command: str | None = None


def measured(problem: Problem, wants: Wants, table: Table, means: Means) -> Choice:
    """A run of this problem alone, then pairs of whom its medians don't tell apart.

    Who was left out, and why, and what the pairs said, stands in the run's header: it is read again
    when the same is asked once more.
    """
    plan = _plan(problem, wants, table)
    names, too_large = contest.within(plan, wants.max_memory)
    about: dict[str, Any] = {"problem": problem.to_dict(), "too_large": too_large, "pairs": []}
    if (less := contest.shorter(plan)) is not None:
        means.say(f"first a shorter sequence, {less}, to see who could win")
        scouted = _carried_out(names, less, SCOUT_S, means)
        names, behind = contest.hopeful(list(read_records(scouted.folder.path)))
        about |= {"shorter": str(less), "behind": behind}
    if not names:
        return ranked(problem, wants, left_out({"contest": about}, problem, wants), margin=MARGIN)
    run = _carried_out(names, problem, SAMPLING_S, means)
    path = run.folder.path
    found = from_run(path, problem, wants, table, about)
    about["pairs"] = [held.to_dict() for held in _held(found, run, means)]
    run.folder.header["contest"] = about
    run.folder.save_header()
    return from_run(path, problem, wants, table)


def _plan(problem: Problem, wants: Wants, table: Table) -> Plan:
    """A cell of everybody who may be asked at all."""
    names = [
        row.name for row in table.rows.values()
        if row.computes in wants.computes and row.level == problem.level and not row.ranks
    ]  # fmt: skip
    return make_plan(table, names, _grid(problem, SAMPLING_S), this_machine(), [problem])


def _grid(problem: Problem, budget_s: float) -> Preset:
    return grid_of([problem], "one problem").with_(budget=budget_s)


def _carried_out(names: Sequence[str], problem: Problem, budget_s: float, means: Means) -> Run:
    """A run of some variants on one problem, kept like any other."""
    begun = start.begin(
        names, _grid(problem, budget_s), means.tables, means.out, seed=means.seed,
        threads=means.threads, problems=[problem], command=means.command,
    )  # fmt: skip
    means.say(f"{begun.plan.sentence()}; records go to {begun.folder.path}")
    with (
        closing(begun.folder),
        Local().slots(begun.settings, problem.device) as slots,
        means.watching(len(begun.plan.to_run)) as watcher,
    ):
        sweep(begun.plan, begun.done, begun.folder, slots, watcher, means.interrupt())
    return begun


def _held(found: Choice, run: Run, means: Means) -> list[contest.Held]:
    """Pairs of those that the medians leave near each other."""
    if found.winner is None:
        return []
    names = [c.variant for c in found.ranked]
    near = contest.near_the_best(list(read_records(run.folder.path)), names)
    if len(near) < 2:
        return []
    means.say(f"in pairs: {', '.join(near)}")
    cells, device = {c.variant.label: c for c in run.plan.to_run}, found.problem.device
    with (
        lock_for([device]),
        LocalEngine(run.settings, limited=device == "cpu") as engine,
    ):
        held = [cells[name] for name in near]
        return contest.in_pairs(held, found.winner.median_s, engine, run.folder.header, means.say)
