"""``attnbench crossover A B``: from which length on one is faster than the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from attnbench.command import arguments
from attnbench.command.terminal import INTERRUPTED, say, status_of
from attnbench.core.format import duration, ms, percent, roughly
from attnbench.features.crossover.search import (
    BUDGET,
    STOPPED,
    A,
    B,
    CrossoverAnswer,
    CrossoverSearch,
    LengthRatio,
    PairServer,
    plan,
    seek,
)
from attnbench.report import tidy
from attnbench.report.tables import BAD, FAINT, GOOD, Styled, Table, columns, console
from attnbench.report.tables import show as show_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from attnbench.core.machine import Machine
    from attnbench.features.crossover.search import Duel
    from attnbench.sweep.presets import Preset

DEFAULT_SEQ = {"cpu": ("64", "4096"), "cuda": ("256", "32768")}


def crossover(given: argparse.Namespace) -> int:
    """``attnbench crossover A B``"""
    import impls
    from attnbench.core.machine import this_machine
    from attnbench.sweep.compare import unlike

    machine = this_machine()
    table = impls.table(given.table)
    a, b = table.find(given.a), table.find(given.b)
    notes = list(unlike(a, b))
    duel = plan(a, b, _grid(given, machine), machine)
    for note in (*notes, *(f"note: {each}" for each in duel.notes())):
        say(note)
    found = _searched(given, duel, machine)
    if given.json:
        print(json.dumps({**found.to_dict(), "problem": duel.problem.to_dict()}))
    elif given.csv:
        tidy.show(rows(found, duel))
    else:
        show(found)
    if found.ended == STOPPED:
        return INTERRUPTED
    return status_of([str(look.status) for look in found.all_looks]) if found.all_looks else 2


def _grid(given: argparse.Namespace, machine: Machine) -> Preset:
    """One problem but for its length."""
    from attnbench.answer.search import grid_for

    changes = arguments.grid_changes(given)
    return grid_for(changes, machine, "compare-{}", lambda kind: {"seq": DEFAULT_SEQ[kind]})


def _searched(given: argparse.Namespace, duel: Duel, machine: Machine) -> CrossoverAnswer:
    """Everything that was found out until it was all, or until something ended it."""
    from attnbench.answer.search import LooksLeft, all_looks
    from attnbench.command.progress import Progress
    from attnbench.core.evidence import floor_first, stored_floors
    from attnbench.sweep.compare import starting_s
    from attnbench.sweep.start import settings_of

    settings = settings_of(given, machine)
    floors = stored_floors(Path(given.out), machine, settings)
    seconds, search = given.budget, CrossoverSearch(duel.rungs)
    words = " ".join(w for w in str(duel.problem).split() if w[:1] != "n")
    a, b = duel.a.label, duel.b.label
    what = "keys" if duel.problem.phase == "decode" else "tokens"
    measures_floor = given.margin is None and not floors

    def guess_s(length: int) -> float:
        """Of a look; the first has the worker to start, and may have a floor to measure."""
        first = not search.turn and length == duel.rungs[0]
        return duel.guess_s(length, machine, floor=measures_floor and first) + starting_s() * first

    left = LooksLeft(lambda: sum(map(guess_s, search.ahead())), seconds)
    say(
        f"where {a} and {b} overtake each other, from {duel.rungs[0]:,} to {duel.rungs[-1]:,} "
        f"({words}); about {roughly(left.left_s)}, {duration(seconds)} at the most"
    )
    if measures_floor:
        say(floor_first("at the first length"))
    with Progress() as progress:
        progress.at(0, 0, left.left_s, "the worker starts")

        def watch(length: int, limit_s: float) -> None:
            left_s = left.begin(guess_s(length), limit_s)
            progress.at(0, 0, left_s, f"look {search.turn + 1}, at {length:,} {what}")

        def hear(heard: tuple[LengthRatio, float]) -> None:
            look, _ = heard
            if look.comparison is None:
                progress.tell(f"{look.length:,}: {look.status}: {look.why}", "yellow")

        stopped = all_looks(
            duel.problem.device,
            settings,
            lambda engine: seek(
                search,
                PairServer(duel, engine, given.seed or 0, given.margin, floors),
                seconds,
                watch=watch,
            ),
            hear,
            progress.tell,
        )
    ended = STOPPED if stopped else BUDGET if search.next() is not None else ""
    computes = {row.label: row.computes for row in (duel.a, duel.b)}
    return CrossoverAnswer(a, b, what, duel.asked, search, ended, tuple(duel.notes()), computes)


def rows(answer: CrossoverAnswer, duel: Duel) -> Iterator[tidy.Row]:
    """A row a length that was looked at: b against a."""
    for look in answer.all_looks:
        took = {"median_s": look.b_s, "against_s": look.a_s} if look.comparison else {}
        yield {
            "variant": answer.b,
            "computes": duel.b.computes,
            "against": answer.a,
            "against_computes": duel.a.computes,
            **tidy.of_problem(duel.at(look.length)),
            "faster": {A: answer.a, B: answer.b}.get(look.leader, ""),
            **tidy.flat({"median_s": None, "against_s": None, **took}),
            **tidy.of_comparison(look.comparison),
            "status": look.status.words,
            "reason": look.why,
        }


def show(answer: CrossoverAnswer) -> None:
    """The looks by length, then the answer, then what else must be known."""
    numbers = (f"{answer.a} ms", f"{answer.b} ms", "ratio", "99 % interval", "pairs", "margin")
    names = {A: Styled(answer.name_of(answer.a), GOOD), B: Styled(answer.name_of(answer.b), GOOD)}
    rows: list[tuple[Any, ...]] = []
    for look in answer.all_looks:
        c, where = look.comparison, f"{look.length:,}"
        if c is None:
            rows.append((where, Styled(look.status, BAD), *[None] * 6))
            continue
        rows.append(
            (
                where,
                names.get(look.leader, Styled("neither", FAINT)),
                ms(look.a_s),
                ms(look.b_s),
                f"{c.ratio:.3f}",
                f"[{c.low:.3f}, {c.high:.3f}]",
                c.n,
                percent(c.margin),
            )
        )
    right = (answer.what, *numbers)
    heads = columns(answer.what, "faster", *numbers, right=right, wrap=("faster",))
    show_table(Table("", heads, rows))
    out = console()
    out.print(escape(f"{answer.sentence()}."))
    for note in answer.notes():
        out.print(escape(f"! {note}"), style=FAINT)
