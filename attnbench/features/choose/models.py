"""``attnbench choose --model``: the choice for each kind of layer of a published model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from msgspec import structs

from attnbench.answer import paste
from attnbench.answer.engines import EngineAnswer, EngineCall, in_engine
from attnbench.answer.layers import LayerChoice, layer_problems, together
from attnbench.answer.ranking import EXACT
from attnbench.command import arguments
from attnbench.command.terminal import say
from attnbench.core.machine import this_machine
from attnbench.features.choose import runs, view
from attnbench.report import tidy
from attnbench.sweep.models import grid_asked
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.answer.choose import Wants
    from attnbench.sweep.presets import Preset
    from impls import Table


def show_answer(args: argparse.Namespace, wants: Wants, table: Table) -> int:
    """``attnbench choose --model NAME``, printed."""
    title, choices = answers(args, wants, table)
    engine = _in_engine(args, choices)
    if args.json:
        plain = {
            "model": title,
            "layers": [{**each.to_dict(), **paste.pasted(each.choice)} for each in choices],
            "together": [each.to_dict() for each in together(choices)],
            **({"engine": asdict(engine)} if engine else {}),
        }
        print(json.dumps(plain))
    elif args.csv:
        tidy.show(rows(choices))
    else:
        view.show_model(title, choices, engine)
    return int(any(each.choice.ranking is None for each in choices))


def answers(args: argparse.Namespace, wants: Wants, table: Table) -> tuple[str, list[LayerChoice]]:
    """The model and how it is scaled, in a line; and the choice for each kind of layer."""
    grid = _grid(args)
    say(grid.title)
    return grid.title, [
        LayerChoice(kind, layers, runs.answer(args, p, replace(wants, operator=operator), table))
        for kind, layers, operator, p in layer_problems(grid)
    ]


def _grid(args: argparse.Namespace) -> Preset:
    """The model's grid in one phase and at one length: forward, and its longest, if none is given.

    Raises CantBeDone for several values.
    """
    changes = arguments.grid_changes(args)
    changes.setdefault("phase", ("forward",))
    several = [name for name, x in changes.items() if isinstance(x, tuple) and len(x) > 1]
    if several:
        options = ", ".join("--" + name.replace("_", "-") for name in several)
        raise CantBeDone(f"choose answers for one problem a kind, and {options} has several values")
    grid = grid_asked(args.model, args.tp, args.device or this_machine().devices[-1], changes)
    return structs.replace(
        grid, parts=tuple(structs.replace(part, seq=part.seq[-1:]) for part in grid.parts)
    )


def rows(choices: Sequence[LayerChoice]) -> Iterator[tidy.Row]:
    """A row a variant and kind of layer."""
    for each in choices:
        for row in view.rows(each.choice):
            yield {"kind": each.kind, "layers": each.layers, **row}


def _in_engine(args: argparse.Namespace, choices: Sequence[LayerChoice]) -> EngineAnswer | None:
    """The answer for the engine of ``--for``, which takes one variant for all softmax layers."""
    if args.engine is None:
        return None
    calls = [
        EngineCall(each.kind, each.choice.problem, each.choice.ranking, each.layers)
        for each in choices
        if each.choice.wants.operator == EXACT
    ]
    return in_engine(args.engine, calls, args.table or ())
