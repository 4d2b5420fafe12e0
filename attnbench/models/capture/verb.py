"""``attnbench capture [--out FILE] [--samples] -- PROGRAM ARGS…``: a program's attention calls."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.command.terminal import INTERRUPTED, say
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.models.capture.calls import SeenCalls, Site

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

    from attnbench.report.tables import FAINT, Table, columns, console, show

    names = ("site", "problem", "via", "calls", "forward", "backward", "share")
    heads = columns(*names, right=names[3:], wrap=names[:3])
    show(Table("", heads, [_cells(site) for site in calls.sites[:SHOWN]]))
    out = console()
    out.print()
    if not calls.overlap:  # else a sentence about what could not be seen says so
        out.print(escape(_share(calls)))
    notes = Counter(site.note for site in calls.sites if site.note)
    lines = [f"* {note}" + (f" ({n} sites)" if n > 1 else "") for note, n in notes.items()]
    if len(calls.sites) > SHOWN:
        lines.append(f"{len(calls.sites) - SHOWN} more sites are in the file")
    for line in (*lines, *calls.unseen):
        out.print(escape(line), style=FAINT)
    if problems := len(calls.problems()):
        many = "problem" if problems == 1 else "problems"
        out.print(
            escape(
                f"\nkept in {path}. Measure every variant on {problems} {many} of it: "
                f"attnbench run --problems {shlex.quote(str(path))}"
            )
        )


def _cells(site: Site) -> tuple[str, ...]:
    from attnbench.core.format import time_taken

    problem = str(site.problem.with_(inputs="normal")) + ("*" if site.note else "")
    share = "" if site.share is None else f"{site.share:.1%}"
    forward, backward = (time_taken(s) if s else "" for s in (site.seconds, site.backward_s))
    calls = f"{site.calls:,}" if site.calls else "?"
    return site.site, problem, site.via, calls, forward, backward, share


def _share(calls: SeenCalls) -> str:
    """How much of the time attention takes."""
    from attnbench.core.format import time_taken

    if calls.share is None:
        return "no call could be timed, so attention's share of the time is not known"
    if calls.step_share is not None and calls.step_s is not None:
        many = "step" if calls.steps == 1 else "steps"
        return (
            f"attention takes {calls.step_share:.1%} of a training step of "
            f"{time_taken(calls.step_s)} (medians over {calls.steps} {many}, from one "
            "optimizer's step to the next)"
        )
    return (
        f"attention takes {calls.share:.1%} of {time_taken(calls.wall_s)}, from the first call's "
        "beginning to the last one's end"
    )
