"""``attnbench check`` and ``attnbench selfcheck``."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from attnbench.command import arguments
from attnbench.command.progress import Progress
from attnbench.command.terminal import INTERRUPTED, finding, say
from attnbench.core.format import roughly

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator

    from attnbench.core.machine import Machine
    from attnbench.features.selfcheck.selfcheck import PlantOutcome, SelfCheck


NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def selfcheck(options: argparse.Namespace) -> int:
    """``attnbench selfcheck``: plant every fault, and keep the result beside the runs."""
    from attnbench.core.evidence import check_writable
    from attnbench.core.machine import this_machine
    from attnbench.features.selfcheck import view
    from attnbench.features.selfcheck.selfcheck import save
    from attnbench.report import tidy

    machine, out = this_machine(), Path(options.out)
    check_writable(out, machine)
    result = _checked(machine, options.seed or 0, out)
    say(f"kept in {save(result, out)}")
    if options.json:
        print(json.dumps(result.to_dict(), indent=1))
    elif options.csv:
        tidy.show(map(tidy.flat, result.outcomes))
    else:
        view.table(result)
    return INTERRUPTED if result.stopped else int(not result.passed)


def _checked(machine: Machine, seed: int, out: Path) -> SelfCheck:
    """All outcomes, or those until Ctrl-C; those so far are kept after each."""
    from attnbench.features.selfcheck.selfcheck import SelfCheck, save

    start = monotonic()
    outcomes: list[PlantOutcome] = []

    def result(*, stopped: bool) -> SelfCheck:
        return SelfCheck(
            outcomes,
            machine.name,
            {"python": machine.python, **machine.versions},
            seed,
            round(monotonic() - start, 1),
            stopped=stopped,
        )

    try:
        with closing(_outcomes(machine, seed)) as results:
            for outcome in results:
                outcomes.append(outcome)
                save(result(stopped=True), out)
    except KeyboardInterrupt:
        return result(stopped=True)
    return result(stopped=False)


def _outcomes(machine: Machine, seed: int) -> Generator[PlantOutcome]:
    """That of each plant and of each slow-down, with a bar for either.

    Plants on a CPU run in workers that see no GPU: every second worker has to be replaced, and each
    would wait seconds for CUDA.
    """
    from attnbench.core.lock import lock_for
    from attnbench.core.machine import pace
    from attnbench.core.settings import Settings
    from attnbench.features.selfcheck import selfcheck as these
    from attnbench.gate.plants import PLANTS, SLOW_DOWNS
    from attnbench.sweep.engine import LocalEngine

    devices = {plant.problem.device for plant in PLANTS} & set(machine.devices)
    # one thread, however many there are: the plants are made for that
    settings = Settings(threads=1)
    plant_s = these.PLANT_S * pace()
    plants_s = plant_s * len(PLANTS)
    slow_downs_s = [pace() * these.SLOW_DOWN_S + 2 * plant_s] * len(SLOW_DOWNS)
    say(
        f"{len(PLANTS)} faults are injected, and slow-downs of {len(SLOW_DOWNS)} sizes; about "
        f"{roughly(plants_s + sum(slow_downs_s))}"
    )
    with (
        lock_for(devices),
        LocalEngine(settings, variables=NO_GPU) as engine,
        LocalEngine(settings, limited=False) as on_gpu,
    ):
        with Progress() as progress:
            progress.at(0, len(PLANTS), plants_s, "the worker starts")
            yield from these.run_plants(machine, engine, seed, progress, on_gpu=on_gpu)
        with Progress() as progress:
            progress.expect(slow_downs_s)
            steps = iter([*(f"{extra} % more work" for extra in SLOW_DOWNS), "the end"])
            progress.step(next(steps))
            for outcome in these.run_slow_downs(engine, seed):
                yield outcome
                progress.step(next(steps))


def check(given: argparse.Namespace) -> int:
    """``attnbench check [VARIANT …]``"""
    import impls
    from attnbench.core.machine import this_machine
    from attnbench.features.selfcheck import view
    from attnbench.report import tidy
    from attnbench.sweep import sweep
    from attnbench.sweep.compare import starting_s
    from attnbench.sweep.engine import engine_on
    from attnbench.sweep.plan import make_plan, shared_out
    from attnbench.sweep.start import find_preset, settings_of

    machine = this_machine()
    grid = find_preset(given.preset or "check", machine)
    if given.variants:  # then the levels are theirs
        grid = grid.with_(level=())
    grid = grid.with_(**arguments.grid_changes(given))
    if given.seq is None:
        grid = shared_out(grid)
    table, grid = impls.table(given.table), grid.with_(budget=0.0)
    plan = make_plan(table, given.variants, grid, machine, tuned=True)
    for note in plan.tuned_notes():
        say(note)
    settings = settings_of(given, machine)
    with (
        engine_on(grid.device, settings) as engine,
        Progress() as progress,
    ):
        guess_s = starting_s() + sum(cell.guess_s for cell in plan.to_run)
        progress.at(0, len(plan.to_run), guess_s, "the worker starts", begins_s=starting_s())
        records = sweep.check_cells(plan, engine, given.seed or 0, progress)
    if given.json:
        print(json.dumps([r.to_dict() for r in records], indent=1))
    elif given.csv:
        tidy.show(map(view.check_row, records))
    else:
        view.show_check(records)
    return finding(records)
