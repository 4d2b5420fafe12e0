"""A program's attention calls: where, which problems, how often, their share of the time."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.markup import escape

from attnbench.core.format import time_taken
from attnbench.models.capture.calls import SeenCalls, Site
from attnbench.report.tables import FAINT, console, grid, put

SHOWN = 40
"""Sites that are shown; the file has all."""


def show(calls: SeenCalls, path: Path) -> None:
    """``capture``: the sites, those of most seconds first, and what could not be seen."""
    columns = ("site", "problem", "via", "calls", "forward", "backward", "share")
    made = grid(*columns, right=columns[3:], words=columns[:3])
    for site in calls.sites[:SHOWN]:
        made.add_row(*map(escape, _cells(site)))
    put(made)
    out = console()
    out.print()
    for line in _said(calls):
        out.print(escape(line))
    for line in (*_notes(calls), *calls.unseen):
        out.print(escape(line), style=FAINT)
    problems = len(calls.problems())
    if problems:
        out.print(
            escape(
                f"\nkept in {path}. Measure every variant on "
                f"{problems} problem{'s' * (problems != 1)} of it: "
                f"attnbench run --problems {shlex.quote(str(path))}"
            )
        )


def _cells(site: Site) -> tuple[str, ...]:
    problem = str(site.problem.with_(inputs="normal")) + "*" * bool(site.note)
    share = "" if site.share is None else f"{site.share:.1%}"
    forward, backward = (time_taken(s) if s else "" for s in (site.seconds, site.backward_s))
    calls = f"{site.calls:,}" if site.calls else "?"
    return site.site, problem, site.via, calls, forward, backward, share


def _said(calls: SeenCalls) -> list[str]:
    """How much of the time attention is."""
    if calls.overlap:
        return []  # which is said with what could not be seen
    if calls.share is None:
        return ["no call could be timed, so attention's share of the time is not known"]
    if calls.step_share is not None and calls.step_s is not None:
        steps = f"{calls.steps} step{'s' * (calls.steps != 1)}"
        return [
            f"attention takes {calls.step_share:.1%} of a training step of "
            f"{time_taken(calls.step_s)} (medians over {steps}, from one optimizer's step to "
            "the next)"
        ]
    return [
        f"attention takes {calls.share:.1%} of {time_taken(calls.wall_s)}, from the first call's "
        "beginning to the last one's end"
    ]


def _notes(calls: SeenCalls) -> list[str]:
    notes: dict[str, int] = {}
    for site in calls.sites:
        if site.note:
            notes[site.note] = notes.get(site.note, 0) + 1
    found = [f"* {note}" + f" ({n} sites)" * (n > 1) for note, n in notes.items()]
    left = len(calls.sites) - SHOWN
    return found + [f"{left} more sites are in the file"] * (left > 0)
