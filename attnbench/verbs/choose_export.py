"""``attnbench choose --export FILE``: all that a run measured, as a table for dispatch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.verbs import say
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.answer.choice.wants import Wants
    from impls import Table


def export(given: argparse.Namespace, wants: Wants, table: Table) -> int:
    """Of the run named, or the newest of this machine as it is now."""
    from attnbench.answer.choice.exported import table_of
    from attnbench.answer.choice.runs import measured_here
    from attnbench.store import find_runs, read_header

    if wants.allowed:
        raise CantBeDone("a dispatch table holds exact variants alone: leave --allow out")
    named = [Path(x) for x in given.source or ()]
    runs = list(find_runs(named))
    if not named:
        here = measured_here(Path(given.out), given.threads, given.table)
        runs = [run for run in here if "contest" not in read_header(run)]
    if not runs or (named and len(runs) != 1):
        which = "several runs" if runs else "no run"
        raise CantBeDone(
            f"a dispatch table is of one run, and there is {which}: name one with --from RUN, or "
            "make one with 'attnbench run'"
        )
    made = table_of(runs[0], wants, table)
    made.write(given.export)
    if given.json:
        print(json.dumps(made.to_dict()))
        return 0
    kinds, ranges = len(made.entries), sum(len(entry.ranges) for entry in made.entries)
    say(f"from {runs[0]}: kinds of call: {kinds}; ranges of lengths: {ranges}")
    print(given.export)
    print(f'use it:  attend = attnbench.dispatch("{given.export}")')
    return 0
