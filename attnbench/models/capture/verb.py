"""``attnbench capture [--out FILE] [--samples] -- PROGRAM ARGS…``: a program's attention calls."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.command.terminal import INTERRUPTED, say
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.models.capture.calls import SeenCalls

SHOWN = 40
"""Sites that are shown; the file has all."""


def capture(given: argparse.Namespace) -> int:
    """``attnbench capture -- PROGRAM``"""
    from attnbench.models.capture.program import ending, run_program

    if not given.program:
        raise CantBeDone(
            "capture needs a program after --, as in: attnbench capture -- python train.py"
        )
    out = Path(given.out)
    status, calls = run_program(given.program, out, samples=given.samples, quiet=given.json)
    if given.json:
        print(json.dumps(calls.to_dict()))
    else:
        show(calls, out)
    if status:
        say(
            f"attnbench: the program ended with {ending(status)}; what it called until then is "
            f"in {out}"
        )
        return INTERRUPTED if status in (-2, INTERRUPTED) else 2
    return 0


def show(calls: SeenCalls, path: Path) -> None:
    """Print the sites, those of most seconds first, and what could not be seen."""
    from rich.markup import escape

    from attnbench.core.format import time_taken
    from attnbench.report.tables import FAINT, Table, columns, console, show

    names = ("site", "problem", "via", "calls", "forward", "backward", "share")
    heads = columns(*names, right=names[3:], wrap=names[:3])
    rows = []
    for s in calls.sites[:SHOWN]:
        problem = str(s.problem.with_(inputs="normal")) + "*" * bool(s.note)
        times = (time_taken(x) if x else "" for x in (s.seconds, s.backward_s))
        share = "" if s.share is None else f"{s.share:.1%}"
        rows.append((s.site, problem, s.via, f"{s.calls:,}" if s.calls else "?", *times, share))
    show(Table("", heads, rows))
    out = console()
    out.print()
    if not calls.overlap:  # else a sentence about what could not be seen says so
        out.print(escape(_share(calls)))
    lines = [f"* {note}" for note in dict.fromkeys(s.note for s in calls.sites if s.note)]
    if len(calls.sites) > SHOWN:
        lines.append(f"{len(calls.sites) - SHOWN} more sites are in the file")
    for line in (*lines, *calls.unseen):
        out.print(escape(line), style=FAINT)
    if problems := len(calls.problems()):
        run = f"attnbench run --problems {shlex.quote(str(path))}"
        out.print(
            escape(f"\nkept in {path}. Measure every variant on its problems ({problems}): {run}")
        )


def _share(calls: SeenCalls) -> str:
    """How much of the time attention takes."""
    from attnbench.core.format import time_taken

    if calls.share is None:
        return "no call could be timed, so attention's share of the time is not known"
    if calls.step_share is not None and calls.step_s is not None:
        return (
            f"attention takes {calls.step_share:.1%} of a training step of "
            f"{time_taken(calls.step_s)} (medians over {calls.steps} steps, from one optimizer's "
            "step to the next)"
        )
    return (
        f"attention takes {calls.share:.1%} of {time_taken(calls.wall_s)}, from the first call's "
        "beginning to the last one's end"
    )
