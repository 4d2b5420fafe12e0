"""Over how many processes variants run that run over several: who is told, and what is too many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnbench.machine import Machine
from attnbench.sweep.presets import Preset
from impls.problem import InvalidProblem
from impls.spec import Variant


def spread(variants: Sequence[Variant], world: int, device: str,
           machine: Machine) -> list[Variant]:  # fmt: skip
    """The variants, those that run over several processes over ``world`` of them unless they were
    asked for with a number of their own; refuses more than the machine has devices for.
    """
    if world > 1 and not any(row.ranks for row in variants):
        raise InvalidProblem(
            f"--world {world} says nothing of {', '.join(row.label for row in variants[:3])}"
            f"{', …' * (len(variants) > 3)}: each runs in one process; leave it out, or name one "
            "that runs over several, such as ring"
        )
    told = [
        row.with_options({"world": str(world)}) if row.ranks and row.world == 1 else row
        for row in variants
    ]
    for row in told:
        _refuse_too_many(row, device, machine)
    return told


def shared_out(grid: Preset) -> Preset:
    """A grid whose lengths can be dealt out: of a preset's odd ones the next that two pieces for
    each process divide.
    """
    if grid.world == 1:
        return grid
    pieces = 2 * grid.world
    if grid.parts:
        return replace(grid, parts=tuple(map(shared_out, grid.products)))
    return grid.with_(seq=tuple(str(-(-int(n) // pieces) * pieces) for n in grid.seq))


def _refuse_too_many(row: Variant, device: str, machine: Machine) -> None:
    if device == "cpu":
        there, what = machine.cores, "core"
    else:
        there, what = len(machine.gpus), "GPU"
    if row.world > max(there, 1):
        remedy = f"use --world {there} at the most" if there > 1 else "leave it out"
        raise InvalidProblem(
            f"{row.label} needs a {what} for each of its {row.world} processes, and this machine "
            f"has {there}: {remedy}"
        )
