"""``attnbench selfcheck``: does this ruler measure right, here?"""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from attnbench.verbs import say

if TYPE_CHECKING:
    import argparse


def selfcheck(given: argparse.Namespace) -> int:
    """Plant every fault, say what became of each, and keep the result beside the runs."""
    from attnbench.lock import lock_for
    from attnbench.machine import this_machine
    from attnbench.measure.settings import Settings
    from attnbench.selfcheck import SelfCheck, run_plants, run_slow_downs, save
    from attnbench.store import check_writable
    from attnbench.sweep import progress
    from attnbench.sweep.engine import LocalEngine
    from attnbench.truth.planted import PLANTS

    machine, seed, start = this_machine(), given.seed or 0, monotonic()
    check_writable(Path(given.out), machine)
    devices = {plant.problem.device for plant in PLANTS} & set(machine.devices)
    # one thread, however many there are: a fault is one for a fixed number of them
    settings, watching = Settings(threads=1), progress.watcher(len(PLANTS))
    with (
        lock_for(devices),
        LocalEngine(settings, limited=devices == {"cpu"}) as engine,
        watching as watcher,
    ):
        outcomes = list(run_plants(machine, engine, seed, watcher))
        say("planted slow-downs, in pairs: about a minute …")
        outcomes += run_slow_downs(engine, seed)
    result = SelfCheck(
        outcomes, machine.name, {"python": machine.python, **machine.versions}, seed,
        round(monotonic() - start, 1),
    )  # fmt: skip
    say(f"kept in {save(result, Path(given.out))}")
    if given.json:
        print(json.dumps(result.to_dict(), indent=1))
    else:
        from attnbench.report import selfcheck_view

        selfcheck_view.table(result)
    return 0 if result.passed else 1
