"""``attnbench choose``: an answer for given shapes and limits; it may abstain, and says why."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from attnbench.command import arguments
from attnbench.core.machine import this_machine
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.answer.choose import Choice, Wants
    from attnbench.answer.engines import EngineAnswer
    from attnbench.answer.layers import LayerChoice
    from attnbench.features.choose.calls import ProgramAnswer
    from impls import Table
    from impls.problem import Problem


def choose(args: argparse.Namespace) -> int:
    """``attnbench choose --seq N …``, or ``--problems calls.json``, ``--model NAME``, ``--export
    table.json``
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # many small matrices: threads only wait
    from attnbench.answer import paste
    from attnbench.features.choose import runs, view
    from attnbench.report import tidy

    wants, table = _wants(args)
    if args.export is not None:
        from attnbench.features.choose.export import export

        return export(args, wants, table)
    if args.problems is not None:
        return _program(args, wants, table)
    if args.model is not None:
        from attnbench.features.choose import models

        return models.show_answer(args, wants, table)
    choice = runs.answer(args, _one_problem(args), wants, table)
    engine = _in_engine(args, choice)
    if args.json:
        more = {"engine": asdict(engine)} if engine else {}
        print(json.dumps({**choice.to_dict(), **paste.pasted(choice), **more}))
    elif args.csv:
        tidy.show(view.rows(choice))
    else:
        view.show(choice, engine)
    return int(choice.ranking is None)


def _program(args: argparse.Namespace, wants: Wants, table: Table) -> int:
    """``attnbench choose --problems calls.json``"""
    from attnbench.features.choose import calls, view
    from attnbench.report import tidy

    result = calls.answers(args, wants, table)
    if args.json:
        print(json.dumps(result.to_dict()))
    elif args.csv:
        tidy.show(view.site_rows(result.calls, result.choices, result.gained))
    else:
        view.show_calls(result)
    silent = all(choice.ranking is None for choice in result.choices.values())
    return int(silent or (args.verify and result.verified is None))


def _in_engine(args: argparse.Namespace, choice: Choice) -> EngineAnswer | None:
    """The answer for the engine of ``--for``, if there is one."""
    from attnbench.answer.engines import EngineCall, in_engine
    from attnbench.answer.paste import tables_of

    if args.engine is None or choice.ranking is None:
        return None
    call = EngineCall(str(choice.problem), choice.problem, choice.ranking)
    return in_engine(args.engine, [call], tables_of(choice))


def answer(args: argparse.Namespace) -> Choice:
    """The choice for one problem; raises CantBeDone where there can be none."""
    from attnbench.features.choose import runs

    return runs.answer(args, _one_problem(args), *_wants(args))


def _wants(args: argparse.Namespace) -> tuple[Wants, Table]:
    """The limits and the table; raises CantBeDone for options that contradict."""
    import impls
    from attnbench.answer.choose import Wants

    allowed = tuple(dict.fromkeys(args.allow or ()))
    wants = Wants(args.max_memory, args.max_error, allowed, same_bits=args.same_bits)
    table = impls.table(args.table)
    _refuse_contradictions(args)
    return wants, table


def _refuse_contradictions(args: argparse.Namespace) -> None:
    """Raise CantBeDone for options that would be ignored."""
    if args.source and args.measure:
        raise CantBeDone("--from answers from runs and --measure measures: leave one of them out")
    for name in ("threads", "allocator"):
        if args.source and getattr(args, name):
            raise CantBeDone(
                f"--{name} conflicts with --from: a run has its own; leave one of them out"
            )
    beside = ["--" + name.replace("_", "-") for name in arguments.grid_changes(args)]
    _refuse_beside_model(args)
    if args.verify != bool(args.program) or (args.verify and args.problems is None):
        raise CantBeDone(
            "--verify runs a program whose calls were captured: attnbench choose --problems "
            "calls.json --verify -- python train.py"
        )
    if args.engine and args.csv:
        raise CantBeDone("a table of numbers has no lines for an engine: leave --csv or --for out")
    if args.export is not None:
        beside += [
            f"--{name}" for name in ("problems", "measure", "json", "csv") if getattr(args, name)
        ]
        beside += ["--for"] if args.engine else []
        if beside:
            raise CantBeDone(
                f"--export takes all that a run measured: leave {', '.join(beside)} out"
            )
    elif args.problems is not None and beside:
        raise CantBeDone(f"--problems says what is asked about: leave {', '.join(beside)} out")


def _refuse_beside_model(args: argparse.Namespace) -> None:
    """Raise CantBeDone for what doesn't go with ``--model``, or only with it."""
    if args.tp is not None and args.model is None:
        raise CantBeDone("--tp requires --model")
    for name in ("problems", "export"):
        if args.model is not None and getattr(args, name) is not None:
            raise CantBeDone(
                f"--model and --{name} both say what is asked about: leave one of them out"
            )


def _one_problem(args: argparse.Namespace) -> Problem:
    """The one problem that the options describe."""
    from attnbench.sweep.plan import problems
    from attnbench.sweep.presets import one_problem

    changes = arguments.grid_changes(args)
    if "seq" not in changes:
        raise CantBeDone(
            "choose answers for a problem: say --seq at the least, such as --seq 4096, or give "
            "--problems calls.json as 'attnbench capture' wrote it, or --model gpt-oss-20b"
        )
    several = [name for name, x in changes.items() if isinstance(x, tuple) and len(x) > 1]
    if several:
        options = ", ".join("--" + name.replace("_", "-") for name in several)
        raise CantBeDone(f"choose answers for one problem, and {options} has several values")
    start = one_problem(args.device or this_machine().devices[-1])
    (problem,) = problems(start.with_(**changes), args.level or ("core",))
    return problem


def answer_model(args: argparse.Namespace) -> list[LayerChoice]:
    """The choice for each kind of layer of a model; raises CantBeDone where there can be none."""
    from attnbench.features.choose.models import answers

    return answers(args, *_wants(args))[1]


def answer_calls(args: argparse.Namespace) -> ProgramAnswer:
    """The changes of a captured program; raises CantBeDone where there can be no answer."""
    from attnbench.features.choose.calls import answers

    return answers(args, *_wants(args))
