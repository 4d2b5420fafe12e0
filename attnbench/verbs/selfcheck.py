"""``attnbench selfcheck``: does this ruler measure right, here?"""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from attnbench.verbs import INTERRUPTED, say

if TYPE_CHECKING:
    import argparse

    from attnbench.machine import Machine
    from attnbench.selfcheck import Outcome, SelfCheck

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def selfcheck(given: argparse.Namespace) -> int:
    """Plant every fault, say what became of each, and keep the result beside the runs."""
    from attnbench.machine import this_machine
    from attnbench.selfcheck import save
    from attnbench.store import check_writable

    machine, out = this_machine(), Path(given.out)
    check_writable(out, machine)
    result = _checked(machine, given.seed or 0, out)
    say(f"kept in {save(result, out)}")
    if given.json:
        print(json.dumps(result.to_dict(), indent=1))
    else:
        from attnbench.report import selfcheck_view

        selfcheck_view.table(result)
    return INTERRUPTED if result.stopped else int(not result.passed)


def _checked(machine: Machine, seed: int, out: Path) -> SelfCheck:
    """All outcomes, or those until Ctrl-C; a part is kept after each.

    What is planted on a CPU is tried where no GPU is seen: of its workers one in two has to be
    replaced, and each would wait seconds for CUDA.
    """
    from attnbench.lock import lock_for
    from attnbench.measure.settings import Settings
    from attnbench.selfcheck import SelfCheck, run_plants, run_slow_downs, save
    from attnbench.sweep import progress
    from attnbench.sweep.engine import LocalEngine
    from attnbench.truth.planted import PLANTS

    start = monotonic()
    outcomes: list[Outcome] = []

    def result(*, stopped: bool) -> SelfCheck:
        return SelfCheck(
            outcomes, machine.name, {"python": machine.python, **machine.versions}, seed,
            round(monotonic() - start, 1), stopped=stopped,
        )  # fmt: skip

    devices = {plant.problem.device for plant in PLANTS} & set(machine.devices)
    # one thread, however many there are: a fault is one for a fixed number of them
    settings, watching = Settings(threads=1), progress.watcher(len(PLANTS))
    try:
        with (
            lock_for(devices),
            LocalEngine(settings, variables=NO_GPU) as engine,
            LocalEngine(settings, limited=False) as on_gpu,
            watching as watcher,
        ):
            for outcome in run_plants(machine, engine, seed, watcher, on_gpu=on_gpu):
                outcomes.append(outcome)
                save(result(stopped=True), out)
            say("planted slow-downs, in pairs: about a minute …")
            for outcome in run_slow_downs(engine, seed):
                outcomes.append(outcome)
                save(result(stopped=True), out)
    except KeyboardInterrupt:
        return result(stopped=True)
    return result(stopped=False)
