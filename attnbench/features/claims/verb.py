"""``attnbench reproduce [NAME …]``: published claims, and what our figures say of them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import impls
from attnbench.command.progress import Progress
from attnbench.command.terminal import INTERRUPTED, say
from attnbench.core.evidence import Evidence, check_writable, made_here, save_evidence
from attnbench.core.format import roughly
from attnbench.core.machine import pace, this_machine
from attnbench.features.claims import claim as claims
from attnbench.features.claims import trial, view
from attnbench.features.claims.claim import Claim, ClaimOutcome, ClaimRequest, ClaimVerdict
from attnbench.report import tidy
from attnbench.sweep.start import pinned

STARTED_S = 6.0


def reproduce(command: argparse.Namespace) -> int:
    """Test all claims or some: 1 where one is not reproduced; 2 where none could be tried."""
    some = claims.find(command.names)
    if command.points:
        some = [each.of_points(command.points) for each in some]
    if command.list:
        if command.json:
            print(json.dumps([claim.to_dict() for claim in some], indent=1))
        elif command.csv:
            tidy.show(map(view.list_row, some))
        else:
            view.list_claims(some)
        return 0
    outcomes, stopped = _run(command, some)
    rows = [one.to_dict() for one in outcomes]
    if command.json:
        print(json.dumps(rows, indent=1))
    elif command.csv:
        tidy.show(each for row in rows for each in view.csv_rows(row))
    else:
        for row in rows if command.names else ():
            view.details(row)
        view.table(rows)
    verdicts = {one.verdict for one in outcomes}
    if stopped:
        return INTERRUPTED
    if not verdicts & {ClaimVerdict.REPRODUCED, ClaimVerdict.NOT_REPRODUCED}:
        say("attnbench: no claim was put to the test, for the reasons said")
        return 2
    return int(ClaimVerdict.NOT_REPRODUCED in verdicts)


def _run(command: argparse.Namespace, some: list[Claim]) -> tuple[list[ClaimOutcome], bool]:
    """The outcomes, which are kept, and true if Ctrl-C stopped it."""
    machine, out, table = this_machine(), Path(command.out), impls.table(command.table)
    settings: dict[str, Any] = {
        "seed": command.seed or 0,
        "threads": pinned(command.threads or 1, machine),
    }
    check_writable(out, machine)
    outcomes = [claims.lacking(claim, machine, table) for claim in some]
    to_try = [claim for claim, outcome in zip(some, outcomes, strict=True) if outcome is None]
    scale, stopped = trial.scale_of(to_try, command.budget), False
    guesses = [pace() * STARTED_S + 60 * c.minutes * (scale if c.timed else pace()) for c in to_try]
    about = roughly(sum(guesses))
    say(f"{len(some)} claims, {len(to_try)} of which can be tried here; about {about}")
    with Progress() as progress:
        progress.expect(guesses)
        for claim in to_try:
            again = f"attnbench reproduce {claim.name}"
            one = ClaimOutcome(claim, ClaimVerdict.NOT_RUN, "it was stopped", again)
            cells = {point.name: point.cell for point in claim.points if point.cell}
            request = ClaimRequest(cells=cells, seconds=60 * claim.minutes * scale, **settings)
            if not stopped:
                progress.step(claim.name)
                try:
                    one = trial.outcome(claim, request)
                except KeyboardInterrupt:  # stops the claim at hand and those that follow
                    stopped = True
            if one.took_s and one.verdict is not ClaimVerdict.REPRODUCED:
                progress.tell(view.line(one), "yellow")
            outcomes[some.index(claim)] = one
    if stopped:
        say("stopped: what was found until then is kept")
    all_outcomes = [one for one in outcomes if one is not None]
    origin = made_here(machine, **settings, budget_scale=scale, stopped=stopped)
    rows = [one.to_dict() for one in all_outcomes]
    say(f"kept in {save_evidence(out, Evidence('reproduce', origin, rows))}")
    return all_outcomes, stopped
