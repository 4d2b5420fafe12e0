"""``attnbench check [VARIANT …]``: is each variant computing what it says?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from attnbench import arguments
from attnbench.verbs import finding

if TYPE_CHECKING:
    import argparse


def check(given: argparse.Namespace) -> int:
    """``attnbench check [VARIANT …]``"""
    import impls
    from attnbench.lock import lock_for
    from attnbench.machine import this_machine
    from attnbench.measure.settings import Settings
    from attnbench.sweep import progress
    from attnbench.sweep.engine import LocalEngine
    from attnbench.sweep.plan import make_plan
    from attnbench.sweep.run import check_cells
    from attnbench.sweep.start import find_preset, pinned
    from attnbench.sweep.worlds import shared_out

    machine = this_machine()
    grid = find_preset(given.preset or "check", machine)
    if given.variants:  # then the levels are theirs
        grid = grid.with_(level=())
    grid = grid.with_(**arguments.grid_changes(given))
    if given.seq is None:
        grid = shared_out(grid)
    plan = make_plan(impls.table(given.table), given.variants, grid, machine)
    settings = Settings(threads=pinned(given.threads, machine))
    watching = progress.watcher(len(plan.to_run))
    with (
        lock_for([grid.device]),
        LocalEngine(settings, limited=grid.device == "cpu") as engine,
        watching as watcher,
    ):
        records = check_cells(plan, engine, given.seed or 0, watcher)
    if given.json:
        print(json.dumps([r.to_dict() for r in records], indent=1))
    else:
        from attnbench.report import check_view

        check_view.show(records)
    return finding(records)
