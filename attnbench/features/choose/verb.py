"""``attnbench choose``: an answer for given shapes and limits; it may abstain, and says why."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.dispatch_table import FALLBACK, DispatchTable
from attnbench.command import arguments
from attnbench.command.terminal import say
from attnbench.core.machine import this_machine
from attnbench.core.record import Status
from impls.asked import CantBeDone
from impls.problem import INPUTS, Problem

if TYPE_CHECKING:
    import argparse

    from attnbench.answer.choose import Choice, Wants
    from attnbench.core.record import Record
    from impls import Table


class NoProblem(CantBeDone):
    """The words on the command line are not one problem."""


def choose(given: argparse.Namespace) -> int:
    """``attnbench choose --seq N …``, or ``--problems calls.json``, or ``--export table.json``"""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # many small matrices: threads only wait
    import impls
    from attnbench.answer.choose import Wants
    from attnbench.features.choose import view

    wants = Wants.of(
        exact=given.exact,
        allow=given.allow or (),
        max_memory=given.max_memory,
        max_error=given.max_error,
    )
    table = impls.table(given.table)
    _refuse_contradictions(given)
    if given.export is not None:
        return _export(given, wants, table)
    if given.problems is not None:
        return _answer_calls(given, lambda problem: _answer(given, problem, wants, table))
    choice = _answer(given, _one_problem(given), wants, table)
    if given.json:
        print(json.dumps(_plain(choice)))
    else:
        view.show(choice)
    return int(choice.winner is None)


def _plain(choice: Choice) -> dict[str, Any]:
    """As plain values, with what can be pasted."""
    from attnbench.answer import paste

    return {**choice.to_dict(), **paste.pasted(choice)}


def _refuse_contradictions(given: argparse.Namespace) -> None:
    """Raise :class:`NoProblem` for options that would be ignored."""
    if given.source and given.measure:
        raise NoProblem("--from answers from runs and --measure measures: leave one of them out")
    if given.source and given.threads:
        raise NoProblem("--threads is of measuring; a run that --from names has its own")
    asked = ["--" + name.replace("_", "-") for name in arguments.grid_changes(given)]
    if given.export is not None:
        asked += [f"--{name}" for name in ("problems", "measure") if getattr(given, name)]
        if asked:
            raise NoProblem(f"--export is of all that a run measured: leave {', '.join(asked)} out")
    elif given.problems is not None and asked:
        raise NoProblem(f"--problems says what is asked about: leave {', '.join(asked)} out")


def _answer(given: argparse.Namespace, problem: Problem, wants: Wants, table: Table) -> Choice:
    """From the runs named, from one that was measured here, or measured now."""
    from attnbench.answer import choose_runs
    from attnbench.answer.choose_runs import Means
    from attnbench.sweep import sweep

    how = (given.table, given.seed or 0, given.threads)
    means = Means(say, sweep.watcher, Path(given.out), *how)
    named = [Path(x) for x in given.source or ()]
    try:
        return choose_runs.answer(problem, wants, table, means, named=named, anew=given.measure)
    except sweep.Stopped:
        raise KeyboardInterrupt from None


def _one_problem(given: argparse.Namespace) -> Problem:
    """The one problem that the options describe."""
    from attnbench.sweep.plan import problems
    from attnbench.sweep.presets import one_problem

    changes = arguments.grid_changes(given)
    if "seq" not in changes:
        raise NoProblem(
            "choose answers for a problem: say --seq at the least, such as --seq 4096, or give "
            "--problems calls.json as 'attnbench capture' wrote it"
        )
    several = [name for name, x in changes.items() if isinstance(x, tuple) and len(x) > 1]
    if several:
        options = ", ".join("--" + name.replace("_", "-") for name in several)
        raise NoProblem(f"choose answers for one problem, and {options} has several values")
    start = one_problem(given.device or this_machine().devices[-1])
    (problem,) = problems(start.with_(**changes), given.level or ("core",))
    return problem


def _answer_calls(given: argparse.Namespace, answer: Callable[[Problem], Choice]) -> int:
    """The answers for a captured program; ``answer`` gives that of one problem."""
    from attnbench.answer.choose_calls import gain, site_times
    from attnbench.features.choose import view
    from attnbench.models.capture.calls import SeenCalls

    calls = SeenCalls.read(Path(given.problems))
    for sentence in calls.unseen:
        say(f"note: {sentence}")
    problems = calls.problems()
    if not problems:
        raise CantBeDone(f"{given.problems} holds no call that can be put as a problem")
    choices = {problem: answer(problem) for problem in problems}
    sites = [
        site_times(
            f"{s.site} · {s.problem}",
            s.share,
            s.via,
            choices.get(s.problem) if s.faithful else None,
            off=calls.off,
            inside_s=calls.a_call_s(s),
            why="" if s.faithful else s.note,
        )
        for s in calls.sites
    ]
    gained = gain(sites, "a step" if calls.step_share is not None else "the program's time")
    if given.json:
        answers = [_plain(choice) for choice in choices.values()]
        print(json.dumps({"answers": answers, "gain": gained.to_dict()}))
    else:
        view.show_calls(choices, gained)
    return int(all(choice.winner is None for choice in choices.values()))


def _export(given: argparse.Namespace, wants: Wants, table: Table) -> int:
    """Write the dispatch table of the run named, or of the newest of this machine as it is now."""
    from attnbench.answer.choose_runs import measured_here
    from attnbench.core.store import find_runs, read_header

    if wants.allowed:
        raise CantBeDone("a dispatch table holds exact variants alone: leave --allow out")
    named = [Path(x) for x in given.source or ()]
    runs = list(find_runs(named))
    if not named:
        here = measured_here(Path(given.out), given.threads, given.table)
        runs = [run for run in here if "contest" not in read_header(run)]
    if not runs or (named and len(runs) != 1):
        which = "several runs" if runs else "no run"
        raise CantBeDone(
            f"a dispatch table is of one run, and there is {which}: name one with --from RUN, or "
            "make one with 'attnbench run'"
        )
    made = _checked(runs[0], wants, table, given)
    made.write(given.export)
    if given.json:
        print(json.dumps(made.to_dict()))
        return 0
    kinds, ranges = len(made.entries), sum(len(entry.ranges) for entry in made.entries)
    say(f"from {runs[0]}: kinds of call: {kinds}; ranges of lengths: {ranges}")
    print(given.export)
    print(f'use it:  attend = attnbench.dispatch("{given.export}")')
    return 0


def _checked(run: Path, wants: Wants, rows: Table, given: argparse.Namespace) -> DispatchTable:
    """The table, without variants that are wrong on some kind of inputs: a call may bring any."""
    from attnbench.answer.exported import table_of

    made, here = table_of(run, wants, rows), this_machine()
    ran_on = (made.made["machine"], made.made["torch"])
    if ran_on != (here.name, here.versions.get("torch")) or (
        made.made["device"] not in here.devices
    ):
        say(
            "the variants could not be checked on other inputs than the run's, since it is not of "
            "this machine and torch: dispatch checks each before its first call"
        )
        return made
    wrong: list[Record] = []
    asked: set[tuple[str, Problem]] = set()
    while new := [x for x in dict.fromkeys(_to_check(made)) if x not in asked]:
        asked.update(new)
        for record in _check(new, rows, given):
            if record.status != "measured":
                said = f"{record.variant}, {record.status} on {record.problem}: {record.reason}"
                say(f"not exported: {said}")
                wrong.append(record.with_(status=Status.WRONG))
        made = table_of(run, wants, rows, wrong)
    return DispatchTable({**made.made, "inputs": list(INPUTS)}, entries=made.entries)


def _to_check(table: DispatchTable) -> Iterator[tuple[str, Problem]]:
    """Each variant on the longest call that it takes, with every kind of inputs but the run's.

    The longest has the most extreme scores, and so shows most. Torch's own function, which takes
    all other calls too, is left out.
    """
    for entry in table.entries:
        for variant, problem in list(entry.examples(table.made["device"]))[1::2]:
            if variant != FALLBACK:
                yield from ((variant, problem.with_(inputs=kind)) for kind in INPUTS[1:])


def _check(
    asked: Sequence[tuple[str, Problem]], rows: Table, given: argparse.Namespace
) -> list[Record]:
    """What the gate says of variants on problems; nothing is timed."""
    from attnbench.core.settings import Settings
    from attnbench.sweep import sweep
    from attnbench.sweep.engine import engine_on
    from attnbench.sweep.plan import Plan, make_plan
    from attnbench.sweep.presets import one_problem
    from attnbench.sweep.start import pinned

    machine = this_machine()
    device = asked[0][1].device
    start = one_problem(device)
    plans = [make_plan(rows, [name], start, machine, [problem]) for name, problem in asked]
    plan = Plan([cell for each in plans for cell in each.cells])
    say(f"checking each variant of the table on other inputs than the run's: {plan.sentence()}")
    settings = Settings(threads=pinned(given.threads, machine))
    with (
        engine_on(device, settings) as engine,
        sweep.watcher(len(plan.to_run)) as watcher,
    ):
        return sweep.check_cells(plan, engine, given.seed or 0, watcher)
