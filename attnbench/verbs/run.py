"""``attnbench run [VARIANT …]``: measure a grid, and answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench import arguments
from attnbench.verbs import INTERRUPTED, finding, say

if TYPE_CHECKING:
    import argparse

    from attnbench.record import Record


def run(given: argparse.Namespace) -> int:
    """``attnbench run [VARIANT …]``"""
    from attnbench.lock import lock_for
    from attnbench.machine import this_machine
    from attnbench.store import StoreError, read_records
    from attnbench.sweep import progress, start
    from attnbench.sweep.engine import LocalEngine
    from attnbench.sweep.run import Interrupt, Stopped, sweep

    changes = arguments.grid_changes(given)
    if given.resume is not None:
        rest = (given.variants, given.preset, given.table, given.seed, given.threads)
        if changes or any(x not in (None, []) for x in rest):
            raise StoreError("--resume takes the grid of the run it names; leave the rest out")
        begun = start.resume(Path(given.resume))
    else:
        grid = start.find_preset(given.preset, this_machine()).with_(**changes)
        begun = start.begin(
            given.variants, grid, given.table, Path(given.out), seed=given.seed or 0,
            threads=given.threads, energy=given.energy,
        )  # fmt: skip
    folder, left = begun.folder, [c for c in begun.plan.to_run if c.key not in begun.done]
    say(begun.plan.sentence() + (f"; {len(begun.done)} done before" if begun.done else ""))
    for warning in begun.plan.warnings():
        say(warning)
    say(f"records go to {folder.path}")
    try:
        devices, watching = {c.problem.device for c in left}, progress.watcher(len(left))
        with lock_for(devices), LocalEngine(begun.settings) as engine, watching as watcher:
            sweep(begun.plan, begun.done, folder, engine, watcher, Interrupt(say))
    except (Stopped, KeyboardInterrupt):
        say(f"stopped; what was measured is kept. Go on with: attnbench run --resume {folder.path}")
        return INTERRUPTED
    finally:
        folder.close()
    return _conclude(list(read_records(folder.path)), folder.path, as_json=given.json)


def _conclude(records: list[Record], where: Path, *, as_json: bool) -> int:
    """The picture, the table and the answer."""
    from attnbench.answer.verdict import answers
    from attnbench.report import scaling_picture

    left_out = ("unsupported", "unavailable")
    records = sorted(records, key=lambda r: str(r.status) in left_out)  # what was run comes first
    found = list(answers(records))
    pictures = [where / "scaling.png", where / "scaling.svg"]
    if scaling_picture.draw(
        records, f"attnbench run {where.name} on {where.parent.name}", pictures
    ):
        more = len(scaling_picture.regimes(r for r in records if r.time is not None)) - 1
        rest = f"; {more} other regime{'s' * (more > 1)} in the table alone" if more else ""
        say(f"drawn in {pictures[0]}{rest}")
    trust = _trust(where)
    if as_json:
        sent = {"run": str(where), "selfcheck": trust, "records": [r.to_dict() for r in records],
                "answers": [a.to_dict() for a in found]}  # fmt: skip
        print(json.dumps(sent))
    else:
        from attnbench.report import results_view

        results_view.show(records)
        print()
        for answer in found:
            print(answer.sentence())
        if not found:
            print("nothing exact was measured, so there is no fastest to name")
        print(trust)
    return finding(records)


def _trust(where: Path) -> str:
    """What the ruler's self-check said, on the machine of a run."""
    from attnbench.selfcheck import load

    found = load(where.parent.parent, where.parent.name)
    if found is None:
        return "ruler self-check: not run here yet; 'attnbench selfcheck' takes some minutes"
    return f"{found['line']} ({found['date'][:10]})"
