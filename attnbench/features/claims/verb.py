"""``attnbench reproduce [NAME …]``: published claims, one after the other, each in a process.

Run as a program, this module is that process: it measures one claim and answers with its findings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from attnbench.core.process import Worker, WorkerLost
from attnbench.core.process_child import Answers, serve
from attnbench.features.claims import claim as claims
from attnbench.features.claims.claim import (
    Claim,
    ClaimFindings,
    ClaimOutcome,
    ClaimRequest,
    ClaimVerdict,
)
from impls.asked import CantBeDone
from impls.loading import load_function

if TYPE_CHECKING:
    import argparse

MODULE = "attnbench.features.claims.verb"
LIMIT_S, TIMES = 120.0, 3.0
"""The limit for loading and checking, and the multiple of the time given that is added to it."""
FAULT = "run it again by its name; if it fails again, that is a fault of attnbench"
GIVE_TIME = "give it more time with --budget, or a machine that is not busy"


def reproduce(given: argparse.Namespace) -> int:
    """Test all claims or some; the outcomes are kept beside the runs.

    1 where a claim is not reproduced; 2 where none could be tried.
    """
    from attnbench.command.terminal import INTERRUPTED, say
    from attnbench.features.claims import view

    some = claims.find(given.names)
    if given.list:
        if given.json:
            print(json.dumps([claim.to_dict() for claim in some], indent=1))
        else:
            view.list_claims(some)
        return 0
    outcomes, stopped = _run(given, some)
    rows = [one.to_dict() for one in outcomes]
    if given.json:
        print(json.dumps(rows, indent=1))
    else:
        for row in rows if given.names else ():
            view.details(row)
        view.table(rows)
    verdicts = {one.verdict for one in outcomes}
    if stopped:
        return INTERRUPTED
    if not verdicts & {ClaimVerdict.REPRODUCED, ClaimVerdict.NOT_REPRODUCED}:
        say("attnbench: no claim was put to the test, for the reasons said")
        return 2
    return int(ClaimVerdict.NOT_REPRODUCED in verdicts)


def _run(given: argparse.Namespace, some: list[Claim]) -> tuple[list[ClaimOutcome], bool]:
    """The outcomes, kept with a picture of each attention table; whether Ctrl-C stopped it."""
    import impls
    from attnbench.command.terminal import say
    from attnbench.core.evidence import Evidence, check_writable, made_here, save_evidence
    from attnbench.core.machine import this_machine
    from attnbench.features.claims.view import line
    from attnbench.features.show.view import draw
    from attnbench.sweep.plan import duration
    from attnbench.sweep.start import pinned

    machine, out, table = this_machine(), Path(given.out), impls.table(given.table)
    how: dict[str, Any] = {"seed": given.seed or 0, "threads": pinned(given.threads or 1, machine)}
    how["embeddings"] = given.embeddings
    check_writable(out, machine)
    left_out = {c.name: claims.lacking(c, machine, table, given.embeddings) for c in some}
    to_try = [claim for claim in some if left_out[claim.name] is None]
    scale = scale_of(to_try, given.budget)
    took_s = sum(60 * c.minutes * (scale if c.timed else 1.0) for c in to_try)
    say(f"{len(some)} claims, {len(to_try)} of which can be tried here; about {duration(took_s)}")
    outcomes, stopped = list[ClaimOutcome](), False
    for claim in some:
        again = f"attnbench reproduce {claim.name}"
        one = left_out[claim.name]
        one = one or ClaimOutcome(claim, ClaimVerdict.NOT_RUN, "it was stopped", again)
        try:
            if claim in to_try and not stopped:
                cells = {point.name: point.cell for point in claim.points if point.cell}
                request = ClaimRequest(cells=cells, seconds=60 * claim.minutes * scale, **how)
                one = outcome(claim, request)
            say(line(one))
        except KeyboardInterrupt:  # stops the claim at hand and those that follow
            stopped = True
        outcomes.append(one)
    if stopped:
        say("stopped: what was found until then is kept")
    made = made_here(machine, **how, budget_scale=scale, stopped=stopped)
    rows = [one.to_dict() for one in outcomes]
    path = save_evidence(out, Evidence("reproduce", made, rows))
    for each in (each for one in outcomes for each in one.findings.maps):
        picture = path.with_name(f"{path.stem}-{each.name}.svg")
        draw(each.words, each.weights, each.title, picture)
        say(f"drawn in {picture}")
    say(f"kept in {path}")
    return outcomes, stopped


def scale_of(to_try: Sequence[Claim], budget_s: float | None) -> float:
    """How much of its time each timed claim gets, so that they share a budget."""
    timed_s = sum(60 * claim.minutes for claim in to_try if claim.timed)
    return budget_s / timed_s if budget_s is not None and timed_s else 1.0


def outcome(claim: Claim, request: ClaimRequest, limit_s: float | None = None) -> ClaimOutcome:
    """Test a claim in a process. Ctrl-C ends the process, and is raised again."""
    start, answer, remedy = monotonic(), {}, ""
    limit_s = limit_s or LIMIT_S + TIMES * request.seconds * claim.timed
    question = {"how": claim.how, "torch": not claim.timed, "request": msgspec.to_builtins(request)}
    with Worker(MODULE, request.threads, limited=False) as worker:
        try:
            answer = worker.ask(question, limit_s)
        except WorkerLost as lost:
            answer, remedy = {"refusal": str(lost)}, GIVE_TIME if lost.timed_out else FAULT
    took_s = monotonic() - start
    if "refusal" in answer:
        why, verdict = answer["refusal"], ClaimVerdict.NOT_RUN
        return ClaimOutcome(claim, verdict, why, remedy, took_s=took_s)
    return ClaimOutcome.of(claim, msgspec.convert(answer["findings"], ClaimFindings), took_s)


def _answer(question: dict[str, Any], _: Answers) -> dict[str, Any]:
    request = ClaimRequest(**question["request"])
    if question["torch"]:
        from attnbench.core.settings import Settings, apply

        apply(Settings(threads=request.threads))
    try:
        return {"findings": msgspec.to_builtins(load_function(question["how"])(request))}
    except CantBeDone as error:
        return {"refusal": str(error)}


if __name__ == "__main__":
    serve(_answer, allow_nan=True)
