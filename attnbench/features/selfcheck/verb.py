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
from attnbench.core.wire import plain
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator

    from attnbench.core.machine import Machine
    from attnbench.features.selfcheck.selfcheck import PlantOutcome, SelfCheck


NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def selfcheck(options: argparse.Namespace) -> int:
    """``attnbench selfcheck``: plant every fault, and keep the result beside the runs."""
    from attnbench.core.disk import SELFCHECK
    from attnbench.core.evidence import check_writable, save_beside
    from attnbench.core.machine import this_machine
    from attnbench.features.selfcheck import view
    from attnbench.report import tidy

    machine, out = this_machine(), Path(options.out)
    check_writable(out, machine)
    result = _checked(machine, options.seed or 0)
    if not result.stopped:
        say(f"kept in {save_beside(out, machine.name, SELFCHECK, result.to_dict())}")
    if options.json:
        print(json.dumps(result.to_dict(), indent=1))
    elif options.csv:
        tidy.show(map(tidy.flat, result.outcomes))
    else:
        view.table(result)
    return INTERRUPTED if result.stopped else int(not result.passed)


def _checked(machine: Machine, seed: int) -> SelfCheck:
    """All outcomes, or those until Ctrl-C."""
    from attnbench.features.selfcheck.selfcheck import SelfCheck

    outcomes: list[PlantOutcome] = []
    start, stopped = monotonic(), False
    try:
        with closing(_outcomes(machine, seed)) as results:
            outcomes.extend(results)
    except KeyboardInterrupt:
        stopped = True
    versions, spent_s = {"python": machine.python, **machine.versions}, monotonic() - start
    return SelfCheck(outcomes, machine.name, versions, seed, round(spent_s, 1), stopped=stopped)


def _outcomes(machine: Machine, seed: int) -> Generator[PlantOutcome]:
    """That of each plant.

    Plants on a CPU run in workers that see no GPU: every second worker has to be replaced, and each
    would wait seconds for CUDA.
    """
    from attnbench.core.lock import lock_for
    from attnbench.core.machine import pace
    from attnbench.core.settings import Settings
    from attnbench.features.selfcheck import selfcheck as these
    from attnbench.gate.plants import PLANTS
    from attnbench.sweep.engine import LocalEngine

    devices = {plant.problem.device for plant in PLANTS} & set(machine.devices)
    # one thread, however many there are: the plants are made for that
    settings = Settings(threads=1)
    plants_s = these.PLANT_S * pace() * len(PLANTS)
    say(f"{len(PLANTS)} faults are injected; about {roughly(plants_s)}")
    with (
        lock_for(devices),
        LocalEngine(settings, variables=NO_GPU) as engine,
        LocalEngine(settings, limited=False) as on_gpu,
        Progress() as progress,
    ):
        progress.at(0, len(PLANTS), plants_s, "the worker starts")
        yield from these.run_plants(machine, engine, seed, progress, on_gpu=on_gpu)


def check(options: argparse.Namespace) -> int:
    """``attnbench check [VARIANT …]``"""
    if options.model is not None:
        return _check_model(options)
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
    grid = find_preset(options.preset or "check", machine)
    if options.variants:  # then the levels are theirs
        grid = grid.with_(level=())
    grid = grid.with_(**arguments.grid_changes(options))
    if options.seq is None:
        grid = shared_out(grid)
    table, grid = impls.table(options.table), grid.with_(budget=0.0)
    plan = make_plan(table, options.variants, grid, machine, tuned=True)
    for note in plan.tuned_notes():
        say(note)
    settings = settings_of(options, machine)
    with (
        engine_on(grid.device, settings) as engine,
        Progress() as progress,
    ):
        guess_s = starting_s() + sum(cell.guess_s for cell in plan.to_run)
        progress.at(0, len(plan.to_run), guess_s, "the worker starts", begins_s=starting_s())
        records = sweep.check_cells(plan, engine, options.seed or 0, progress)
    if options.json:
        print(json.dumps([plain(r) for r in records], indent=1))
    elif options.csv:
        tidy.show(map(view.check_row, records))
    else:
        view.show_check(records)
    return finding(records)


MODEL_OPTIONS = ("seq", "dtype", "device")
"""Of a grid's, what says something of a model."""


def _check_model(options: argparse.Namespace) -> int:
    """``attnbench check --model FOLDER``: 1 where an implementation differs from float64."""
    from attnbench.core.lock import lock_for
    from attnbench.core.machine import this_machine
    from attnbench.core.process import Worker
    from attnbench.features.selfcheck import model, view
    from attnbench.report import tidy
    from attnbench.sweep.start import settings_of

    others = {**arguments.grid_changes(options), "preset": options.preset}
    for name in (name for name, value in others.items() if value and name not in MODEL_OPTIONS):
        option = name.replace("_", "-")
        raise CantBeDone(f"--{option} goes with a grid, and --model has shapes of its own")
    machine = this_machine()
    some = model.questions(options, machine)
    settings = settings_of(options, machine)
    variables = {**model.OFFLINE, **(NO_GPU if some[0]["device"] == "cpu" else {})}
    limited = some[0]["device"] == "cpu"
    with (
        lock_for([some[0]["device"]]),
        Worker(
            model.WORKER_MODULE, settings.threads, limited=limited, variables=variables
        ) as worker,
        Progress() as progress,
    ):
        result = model.check_model(some, worker, progress)
    if options.json:
        print(json.dumps(result.to_dict(), indent=1))
    elif options.csv:
        tidy.show(view.model_rows(result))
    else:
        view.show_model(result)
    differs = any(row["status"] == "differs" for row in result.results)
    return INTERRUPTED if result.stopped else int(differs)
