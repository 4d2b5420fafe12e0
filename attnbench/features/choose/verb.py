"""``attnbench choose``: an answer for given shapes and limits; it may abstain, and says why."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from attnbench.command import arguments
from attnbench.core.machine import this_machine
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.answer.choose import Choice, Wants
    from attnbench.answer.engines import EngineAnswer
    from attnbench.features.choose.calls import ProgramAnswer
    from impls import Table
    from impls.problem import Problem


class NoProblem(CantBeDone):
    """The words on the command line are not one problem."""


def choose(given: argparse.Namespace) -> int:
    """``attnbench choose --seq N …``, or ``--problems calls.json``, or ``--export table.json``"""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # many small matrices: threads only wait
    from attnbench.answer import paste
    from attnbench.features.choose import runs, view
    from attnbench.report import tidy

    wants, table = _wants(given)
    if given.export is not None:
        from attnbench.features.choose.export import export

        return export(given, wants, table)
    if given.problems is not None:
        from attnbench.features.choose.calls import show_answer

        return show_answer(given, wants, table)
    choice = runs.answer(given, _one_problem(given), wants, table)
    engine = _in_engine(given, choice)
    if given.json:
        values = {**choice.to_dict(), **paste.pasted(choice)}
        print(json.dumps(values | ({"engine": engine.to_dict()} if engine else {})))
    elif given.csv:
        tidy.show(view.rows(choice))
    else:
        view.show(choice, engine)
    return int(choice.ranking is None)


def answer(given: argparse.Namespace) -> Choice:
    """The choice for one problem; raises CantBeDone where there can be none."""
    from attnbench.features.choose import runs

    return runs.answer(given, _one_problem(given), *_wants(given))


def _wants(given: argparse.Namespace) -> tuple[Wants, Table]:
    """What will do, and the table; raises :class:`NoProblem` for options that contradict."""
    import impls
    from attnbench.answer.choose import Wants

    wants = Wants.of(
        exact=given.exact,
        allow=given.allow or (),
        max_memory=given.max_memory,
        max_error=given.max_error,
    )
    table = impls.table(given.table)
    _refuse_contradictions(given)
    return wants, table


def _in_engine(given: argparse.Namespace, choice: Choice) -> EngineAnswer | None:
    """The answer in the words of the engine that was asked for, if one was."""
    from attnbench.answer.engines import TimedSite, in_engine

    if not given.engine or choice.ranking is None:
        return None
    ranking = choice.ranking
    site = TimedSite(str(choice.problem), choice.problem, ranking.by_name, ranking.winner.variant)
    return in_engine(given.engine, [site], given.table)


def _refuse_contradictions(given: argparse.Namespace) -> None:
    """Raise :class:`NoProblem` for options that would be ignored."""
    if given.source and given.measure:
        raise NoProblem("--from answers from runs and --measure measures: leave one of them out")
    measuring = [name for name in ("threads", "allocator") if getattr(given, name)]
    if given.source and measuring:
        raise NoProblem(f"--{measuring[0]} is of measuring; a run that --from names has its own")
    asked = ["--" + name.replace("_", "-") for name in arguments.grid_changes(given)]
    if given.verify != bool(given.program) or (given.verify and given.problems is None):
        raise NoProblem(
            "--verify runs a program whose calls were captured: attnbench choose --problems "
            "calls.json --verify -- python train.py"
        )
    if given.export is not None:
        asked += [f"--{name}" for name in ("problems", "measure") if getattr(given, name)]
        asked += ["--for"] * bool(given.engine)
        if asked:
            raise NoProblem(f"--export is of all that a run measured: leave {', '.join(asked)} out")
    elif given.problems is not None and asked:
        raise NoProblem(f"--problems says what is asked about: leave {', '.join(asked)} out")


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


def answer_calls(given: argparse.Namespace) -> ProgramAnswer:
    """What to change in a captured program; raises CantBeDone where there can be no answer."""
    from attnbench.features.choose.calls import answers

    return answers(given, *_wants(given))
