"""``attnbench limits [VARIANT …]``: the longest sequence each variant can take in a budget."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from attnbench.answer.search import grid_for
from attnbench.command import arguments
from attnbench.command.searching import search_all
from attnbench.command.terminal import INTERRUPTED, say
from attnbench.core.evidence import STAMP, check_writable, made_here, save_beside
from attnbench.core.format import NOT_SOFTMAX, OTHER, duration, name_with_star, size
from attnbench.core.machine import Machine, this_machine
from attnbench.features.limits.search import (
    BATCH_SEQ,
    GATE_SEQ,
    MEMORY,
    TIME,
    CallBudget,
    LimitSearch,
    finding,
    plan,
    probes_by,
    rows_of,
)
from attnbench.report import tables, tidy
from attnbench.report.tables import BAD, GOOD, Styled, Table, columns, console
from attnbench.sweep.plan import here
from attnbench.sweep.start import settings_of
from impls.problem import InvalidProblem

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

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
    facts["settings"] = settings.facts()

    def save(*, stopped: bool) -> Path:
        """The file, whole or not at all, with a row for each variant in each phase."""
        some = searches if command.variants else [x for x in searches if x.possible]
        facts.update(stopped=stopped, rows=rows_of(some, stopped=stopped))
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
        tidy.show(map(csv_row, facts["rows"]))
    else:
        show(facts["rows"], facts["budget"], command.by)
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


# ---- the table ---------------------------------------------------------------------------------

BUDGETS = (MEMORY, TIME)


def show(rows: Sequence[Mapping[str, Any]], budget: Mapping[str, Any], by: str) -> None:
    """Print a table for each phase and mask, the longest first, and the notes below."""
    longest = "longest that held" if by == "seq" else "largest batch that held"
    numbers, fails = (longest, "time there", "peak there"), "does not hold at"
    names = ("variant", longest, "limited by", *numbers[1:], fails)
    heads = columns(*names, right=numbers, wrap=[fails])
    for (phase, mask), group in groupby(rows, lambda row: (row["phase"], row["mask"])):
        tables.show(Table(f"{phase} · mask {mask}", heads, [_cells(row) for row in group]))
    lines, flags = [], dict[str, list[str]]()
    for row in rows:
        fell, name = row["fails"], f"{row['variant']} {row['phase']}"
        if fell is not None and fell["why"] not in BUDGETS:
            lines.append(f"! {name} at {fell['size']:,}: {fell['why']}: {fell['reason']}")
        for flag in (row["held"] or {}).get("flags", ()):
            flags.setdefault(flag, []).append(name)
    lines += [f"! {flag}: {', '.join(names)}" for flag, names in flags.items()]
    lines += [
        f"budget: {size(budget['peak_bytes'])} and {duration(budget['seconds'])} a call; brackets "
        "of a sixteenth; what held was run there, and right",
        "peak: bytes live above the inputs at the worst instant, output included; time: the median "
        "of a few calls",
    ]
    if any(row["computes"] != "softmax" for row in rows):
        lines.append(f"{OTHER} {NOT_SOFTMAX}")
    console().print()
    for line in lines:
        console().print(escape(line), style=tables.FAINT)


def _cells(row: Mapping[str, Any]) -> list[Any]:
    best, why = row["held"], row["limited_by"]
    limited = Styled(why.replace("_", " "), BAD) if why and why not in BUDGETS else why or "–"
    return [
        name_with_star(row["variant"], row["computes"]),
        Styled(f"{best['size']:,}", GOOD) if best else "none",
        limited,
        duration(best["time_s"]) if best else "",
        size(best["peak_bytes"]) if best else "",
        _not_held(row),
    ]


def csv_row(row: Mapping[str, Any]) -> tidy.Row:
    """A row of CSV: the largest size that held, with its time and memory, and the least that did
    not.
    """
    best, fails = (row[name] or {} for name in ("held", "fails"))
    problem = tidy.of_problem(row["problem"])
    for name in ("seq", "q_len") if row["by"] == "seq" else ("batch",):
        del problem[name]  # what was searched
    return {
        "variant": row["variant"],
        "computes": row["computes"],
        **problem,
        "by": row["by"],
        "held": best.get("size"),
        **_took(best),
        "limited_by": row["limited_by"],
        "fails_at": fails.get("size"),
        **{f"fails_{name}": value for name, value in _took(fails).items()},
        "reason": fails.get("reason") or row["why"],
    }


def _took(look: Mapping[str, Any]) -> tidy.Row:
    return tidy.flat({"median_s": look.get("time_s"), "peak_bytes": look.get("peak_bytes")})


def _not_held(row: Mapping[str, Any]) -> str:
    """The shortest that does not hold, and its time or memory."""
    if (fails := row["fails"]) is None:
        return row["why"] or "nothing that was looked at"
    figure = ""
    if fails["why"] not in BUDGETS:
        figure = fails["reason"] if row["held"] is None else ""
    elif fails["why"] == TIME:
        figure = duration(fails["time_s"]) if fails["time_s"] else fails["reason"]
    elif fails["peak_bytes"]:
        figure = size(fails["peak_bytes"])
    return f"{fails['size']:,}" + (f" ({figure})" if figure else "")
