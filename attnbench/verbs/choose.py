"""``attnbench choose``: an answer for given shapes and limits; it may abstain, and says why."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench import arguments
from attnbench.verbs import say
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.answer.choice.choice import Choice
    from attnbench.answer.choice.wants import Wants
    from impls import Table
    from impls.problem import Problem


class NoProblem(CantBeDone):
    """What is asked about is no one problem; a sentence."""


def choose(given: argparse.Namespace) -> int:
    """``attnbench choose --seq N …``, or ``--problems calls.json``, or ``--export table.json``"""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # many small matrices: threads only wait
    import impls
    from attnbench.answer.choice.wants import Wants

    wants = Wants.of(exact=given.exact, allow=given.allow or (), max_memory=given.max_memory,
                     max_error=given.max_error)  # fmt: skip
    table = impls.table(given.table)
    _refuse_contradictions(given)
    if given.export is not None:
        from attnbench.verbs.choose_export import export

        return export(given, wants, table)
    if given.problems is not None:
        from attnbench.verbs.choose_calls import answer_calls

        return answer_calls(given, lambda problem: answer(given, problem, wants, table))
    found = answer(given, problem_asked(given), wants, table)
    _show(found, as_json=given.json)
    return int(found.winner is None)


def _refuse_contradictions(given: argparse.Namespace) -> None:
    """What was asked for and would be ignored is refused."""
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


def answer(given: argparse.Namespace, problem: Problem, wants: Wants, table: Table) -> Choice:
    """From the runs named, from one that was measured here, or measured now."""
    from attnbench.answer.choice import asking
    from attnbench.answer.choice.measuring import Means
    from attnbench.sweep import progress
    from attnbench.sweep.run import Interrupt, Stopped

    means = Means(
        say, progress.watcher, lambda: Interrupt(say), Path(given.out), given.table,
        given.seed or 0, given.threads,
    )  # fmt: skip
    named = [Path(x) for x in given.source or ()]
    try:
        return asking.answer(problem, wants, table, means, named=named, anew=given.measure)
    except Stopped:
        raise KeyboardInterrupt from None


def problem_asked(given: argparse.Namespace) -> Problem:
    """The one problem that the words say."""
    from attnbench.machine import this_machine
    from attnbench.sweep.plan import problems
    from attnbench.sweep.presets import one_problem

    changes = arguments.grid_changes(given)
    if "seq" not in changes:
        raise NoProblem(
            "choose answers for a problem: say --seq at the least, such as --seq 4096, or give "
            "--problems calls.json as 'attnbench capture' wrote it"
        )
    several = [name for name, values in changes.items()
               if isinstance(values, tuple) and len(values) > 1]  # fmt: skip
    if several:
        options = ", ".join("--" + name.replace("_", "-") for name in several)
        raise NoProblem(f"choose answers for one problem, and {options} has several values")
    start = one_problem(given.device or this_machine().devices[-1])
    (problem,) = problems(start.with_(**changes), given.level or ("core",))
    return problem


def _show(found: Choice, *, as_json: bool) -> None:
    from attnbench.answer.choice import paste

    if as_json:
        print(json.dumps({**found.to_dict(), **paste.pasted(found)}))
        return
    from attnbench.report import choice_view

    choice_view.show(found)
