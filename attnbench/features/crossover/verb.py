"""``attnbench crossover A B``: from which length on one is faster than the other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from attnbench.answer.crossover import CrossoverSearch, pairs_by
from attnbench.answer.search import grid_for, refuse_several
from attnbench.command import arguments
from attnbench.command.searching import search_all
from attnbench.command.terminal import INTERRUPTED, say, status_of
from attnbench.core.evidence import floor_first, stored_floors
from attnbench.core.format import ms, percent
from attnbench.core.machine import Machine, this_machine, why_not
from attnbench.report import tidy
from attnbench.report.tables import BAD, FAINT, GOOD, Styled, Table, columns, console
from attnbench.report.tables import show as show_table
from attnbench.sweep.compare import unlike
from attnbench.sweep.plan import problems
from attnbench.sweep.start import settings_of
from impls.errors import CantBeDone
from impls.problem import InvalidProblem

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from attnbench.sweep.presets import Preset
    from impls.spec import Variant

DEFAULT_SEQ = {"cpu": ("64", "4096"), "cuda": ("256", "32768")}
LONGEST = 1 << 24
"""A longer one is a mistake at the keyboard."""
AXES = ("batch", "heads", "kv_heads", "head_dim", "v_head_dim", "dtype", "mask", "phase", "inputs")


def crossover(command: argparse.Namespace) -> int:
    """``attnbench crossover A B``"""
    import impls

    machine = this_machine()
    table = impls.table(command.table)
    a, b = table.find(command.a), table.find(command.b)
    notes = list(unlike(a, b))
    changes = arguments.grid_changes(command)
    grid = grid_for(changes, machine, lambda kind: {"seq": DEFAULT_SEQ[kind]})
    search = plan(a, b, grid, machine)
    for note in (*notes, *(f"note: {each}" for each in search.left_out())):
        say(note)
    _run(command, search, machine)
    if command.json:
        print(json.dumps(search.to_dict()))
    elif command.csv:
        tidy.show(rows(search))
    else:
        show(search)
    if search.stopped:
        return INTERRUPTED
    return status_of([str(look.result.status) for look in search.looks]) if search.looks else 2


def plan(a: Variant, b: Variant, grid: Preset, machine: Machine) -> CrossoverSearch:
    """The search of two variants over the range of a grid; raises :class:`CantBeDone`."""
    if a.label == b.label:
        raise CantBeDone(f"{a.label} can't overtake itself; name two variants")
    ends = _range(grid.seq)
    refuse_several(grid, "crossover", (*AXES, "level"), "the length alone")
    for row in (a, b):
        if row.ranks:
            raise CantBeDone(f"{row.label} runs over several processes: compare takes it")
        if (missing := why_not(row, machine)) is not None:
            raise CantBeDone("; ".join(filter(None, [missing.reason, missing.remedy])))
    longest = grid.with_(seq=(str(ends[1]),))
    return CrossoverSearch(a, b, next(problems(longest, grid.level or (a.level,))), ends)


def _range(seq: Sequence[str]) -> tuple[int, int]:
    """Two lengths, the shorter first: ``128,16384``."""
    low, high = (int(n) if re.fullmatch(r"[0-9]{1,9}", n) else 0 for n in (*seq, "", "")[:2])
    if len(seq) != 2 or not 1 <= low < high <= LONGEST:
        raise InvalidProblem(
            f"--seq {','.join(seq)} is no range: crossover looks between two lengths of 1 to "
            f"{LONGEST:,}, and the shorter comes first, as in --seq 128,16384"
        )
    return low, high


def _run(command: argparse.Namespace, search: CrossoverSearch, machine: Machine) -> None:
    """Look until all is found, or something ends it."""
    settings = settings_of(command, machine)
    floors = stored_floors(Path(command.out), machine, settings)
    measures_floor = command.margin is None and not floors
    words = " ".join(w for w in str(search.problem).split() if w[:1] != "n")

    def hear(_: CrossoverSearch, tell: Callable[..., None]) -> None:
        if search.looks and (result := search.looks[-1].result).comparison is None:
            tell(f"{search.looks[-1].size:,}: {result.status}: {result.why}", "yellow")

    search.stopped = search_all(
        [search],
        lambda engine: pairs_by(engine, command.seed or 0, command.margin, floors),
        command.budget,
        search.problem.device,
        settings,
        what=f"where {search.a.label} and {search.b.label} overtake each other, from "
        f"{search.rungs[0]:,} to {search.rungs[-1]:,} ({words})",
        notes=[floor_first("at the first length")] if measures_floor else [],
        hear=hear,
    )


def rows(search: CrossoverSearch) -> Iterator[tidy.Row]:
    """A row a length that was looked at: b against a."""
    for look in search.all_looks:
        c = look.result.comparison
        a_s, b_s = c.medians if c else (None, None)
        yield {
            "variant": search.b.label,
            "computes": search.b.computes,
            "against": search.a.label,
            "against_computes": search.a.computes,
            **tidy.of_problem(search.at(look.size)),
            "faster": search.label_of(look.side),
            **tidy.flat({"median_s": b_s, "against_s": a_s}),
            **tidy.of_comparison(c),
            "status": look.result.status.replace("_", " "),
            "reason": look.result.why,
        }


def show(search: CrossoverSearch) -> None:
    """The looks by length, then the answer, then what else must be known."""
    labels = search.a.label, search.b.label
    numbers = (*(f"{label} ms" for label in labels), "ratio", "99 % interval", "pairs", "margin")
    lines: list[tuple[Any, ...]] = []
    for look in search.all_looks:
        where, c = f"{look.size:,}", look.result.comparison
        if c is None:
            lines.append((where, Styled(look.result.status, BAD), *[None] * 6))
            continue
        first = search.label_of(look.side)
        faster = Styled(search.name_of(first), GOOD) if first else Styled("neither", FAINT)
        interval = f"[{c.low:.3f}, {c.high:.3f}]"
        figures = *map(ms, c.medians), f"{c.ratio:.3f}", interval, c.n, percent(c.margin)
        lines.append((where, faster, *figures))
    right = (search.unit, *numbers)
    heads = columns(search.unit, "faster", *numbers, right=right, wrap=("faster",))
    show_table(Table("", heads, lines))
    out = console()
    out.print(escape(f"{search.sentence()}."))
    for note in search.notes():
        out.print(escape(f"! {note}"), style=FAINT)
