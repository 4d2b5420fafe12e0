"""``attnbench compare A B``: two variants, two run folders, or two commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.command import arguments
from attnbench.command.terminal import say
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from attnbench.core.machine import Machine
    from attnbench.core.settings import Settings
    from attnbench.sweep.presets import Preset
    from impls import Table
    from impls.spec import Variant


PAIRS_S = 30.0
"""Seconds of pairs a problem."""
COMMITS_VARIANT = "matmul"
"""Of two commits, what is compared if no --variant says."""


class NothingToCompare(CantBeDone):
    """A and B are no two things of a kind; a sentence."""


def compare(given: argparse.Namespace) -> int:
    """Which kind of thing A and B are decides how they are compared."""
    import impls
    from attnbench.core.disk import HEADER

    folders = [(Path(x) / HEADER).exists() for x in (given.a, given.b)]
    if all(folders):
        return _runs(given)
    table = impls.table(given.table)
    rows = [_is_row(table, x) for x in (given.a, given.b)]
    if all(rows):
        return _variants(given, table)
    if any(folders) or any(rows):
        kinds = [
            "a run folder" if f else "a variant" if r else "neither a run folder nor a variant"
            for f, r in zip(folders, rows, strict=True)
        ]
        raise NothingToCompare(
            f"{given.a} is {kinds[0]} and {given.b} is {kinds[1]}; compare takes two variants, two "
            f"run folders or two commits{_instead(table, given, rows)}"
        )
    return _commits(given, table)


def _instead(table: Table, given: argparse.Namespace, rows: list[bool]) -> str:
    """What a name that is no variant may have meant."""
    from impls import UnknownVariant

    for name, row in zip((given.a, given.b), rows, strict=True):
        if any(rows) and not row and not Path(name).exists():
            try:
                table.find(name)
            except UnknownVariant as unknown:
                return f" ({unknown})"
    return ""


def _worlds(table: Table, names: Sequence[str], grid: Preset) -> list[Preset]:
    """The grid for each side; a row that runs in one process gets a world of one."""
    several = [table.find(name).ranks for name in names]
    return [grid if each or not any(several) else grid.with_(world=1) for each in several]


def unlike(judged: Variant, against: Variant) -> Iterator[str]:
    """What must be known of two that do not do the same."""
    if judged.level != against.level:
        raise NothingToCompare(
            f"{judged.label} is a {judged.level} and {against.label} a {against.level}: their "
            "times are of other work; put the core into a layer, as in 'mha?core=sdpa', or take "
            "two of a level"
        )
    if judged.computes != against.computes:
        yield (
            f"note: {judged.label} computes {judged.computes}, {against.label} {against.computes}: "
            "which is faster says nothing of which is right for a model"
        )
    if judged.world != against.world:
        yield (
            f"note: {judged.label} runs over {_processes(judged)} and {against.label} over "
            f"{_processes(against)}: which is faster says nothing of which makes better use of a "
            "device"
        )


def _processes(row: Variant) -> str:
    return f"{row.world} processes" if row.world > 1 else "one process"


def _refuse_options(given: argparse.Namespace, what: str, *, but: Sequence[str] = ()) -> None:
    """What was asked for and would be ignored is refused."""
    asked = set(arguments.grid_changes(given))
    asked |= {n for n in ("preset", "margin", "variant", "threads", "seed") if getattr(given, n)}
    if left := sorted(asked - set(but)):
        options = ", ".join("--" + name.replace("_", "-") for name in left)
        raise NothingToCompare(f"{options} says nothing of {what}; leave it out")


def _is_row(table: Table, name: str) -> bool:
    from impls import UnknownVariant

    if name.split("?")[0] not in table.rows:
        return False
    try:
        table.find(name)
    except UnknownVariant:
        return False
    return True


def _begun(given: argparse.Namespace) -> tuple[Machine, Settings, Preset]:
    from attnbench.core.machine import this_machine
    from attnbench.core.settings import Settings
    from attnbench.sweep.presets import default_preset
    from attnbench.sweep.start import find_preset, pinned

    machine = this_machine()
    preset = given.preset or f"compare-{default_preset(machine.devices)}"
    grid = find_preset(preset, machine).with_(**arguments.grid_changes(given))
    return machine, Settings(threads=pinned(given.threads, machine)), grid


def _variants(given: argparse.Namespace, table: Table) -> int:
    from attnbench.core.evidence import stored_floors
    from attnbench.features.commits import view
    from attnbench.sweep.compare import compare_cells, counts
    from attnbench.sweep.engine import engine_on
    from attnbench.sweep.plan import make_plan

    machine, settings, grid = _begun(given)
    asked = (given.a, given.b)
    sides = zip(asked, _worlds(table, asked, grid), strict=True)
    judged, against = (make_plan(table, [x], each, machine).cells for x, each in sides)
    if given.variant:
        raise NothingToCompare("--variant is for two commits; A and B are the variants here")
    names = judged[0].variant.label, against[0].variant.label
    for note in unlike(judged[0].variant, against[0].variant):
        say(note)
    seconds = given.budget or PAIRS_S
    say(
        f"comparing on {len(judged)} problem{'s' * (len(judged) > 1)}: up to {seconds:.0f} s of "
        "pairs each, and the checks before them"
    )
    floors = stored_floors(Path(given.out), machine, settings.threads)
    if given.margin is None and not floors:
        say(
            "no noise floor is stored for this machine, so it is measured first for each problem; "
            "'attnbench env' measures it once"
        )
    with engine_on(grid.device, settings) as engine:
        found = compare_cells(
            judged,
            against,
            engine,
            seed=given.seed or 0,
            margin=given.margin,
            floors=floors,
            budget_s=seconds,
            watch=lambda one: say(view.pairs_line(one, *names)),
        )
    if given.json:
        sent: dict[str, Any] = {"judged": names[0], "against": names[1], "counts": counts(found)}
        print(json.dumps({**sent, "cells": [one.to_dict() for one in found]}))
    else:
        view.show_pairs(found, *names)
    return status([str(one.status) for one in found])


def status(statuses: list[str]) -> int:
    """1 where one was not what it says it is; 2 where nothing was compared."""
    from attnbench.core.record import FINDINGS, NOT_TRIED

    if all(s in NOT_TRIED for s in statuses):
        say("attnbench: nothing was compared, for the reasons said")
        return 2
    return int(any(s in FINDINGS for s in statuses))


def _runs(given: argparse.Namespace) -> int:
    _refuse_options(given, "two run folders, which were measured already")
    from attnbench.answer.compare_runs import compare_runs
    from attnbench.features.commits import view

    found = compare_runs(Path(given.a), Path(given.b))
    if given.json:
        print(json.dumps(found.to_dict()))
    else:
        view.runs(found)
    return found.exit_status


def _commits(given: argparse.Namespace, table: Table) -> int:
    import impls
    from attnbench.core.checkout import resolve
    from attnbench.core.evidence import stored_margin
    from attnbench.core.lock import lock_for
    from attnbench.features.commits import view
    from attnbench.features.commits.rounds import BUDGET_S, compare_in_rounds
    from attnbench.sweep.holding import open_worker
    from attnbench.sweep.plan import make_plan

    machine, settings, grid = _begun(given)
    cells = make_plan(table, given.variant or [COMMITS_VARIANT], grid, machine).cells
    margin = given.margin or stored_margin(Path(given.out), machine, settings.threads)
    root = Path(impls.__file__).parents[1]
    a, b = resolve(given.a, root), resolve(given.b, root)
    opened = open_worker(settings, given.seed or 0, grid.budget, device=grid.device)

    with lock_for([grid.device]):
        found = compare_in_rounds(
            a,
            b,
            cells,
            opened,
            margin=margin,
            budget_s=given.budget or BUDGET_S,
            root=root,
            watch=lambda cell: say(view.line(cell, given.a, given.b)),
        )
    if given.json:
        print(json.dumps(found.to_dict()))
    else:
        view.commits(found)
    return found.exit_status
