"""``attnbench reproduce [NAME …]``: published claims, one after the other, each in a process.

Run as a program, this module is that process: it measures one claim and answers with its findings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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

    import impls
    from attnbench.core.machine import Machine

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
    if given.list and given.json:
        print(json.dumps([claim.to_dict() for claim in some], indent=1))
    elif given.list:
        view.list_claims(some)
    if given.list:
        return 0
    series = _run(given, some)
    say(f"kept in {_keep(Path(given.out), series)}")
    rows = [one.to_dict() for one in series.outcomes]
    if given.json:
        print(json.dumps(rows, indent=1))
    else:
        for row in rows if given.names else ():
            view.details(row)
        view.table(rows)
    verdicts = {one.verdict for one in series.outcomes}
    if series.stopped:
        return INTERRUPTED
    if not verdicts & {ClaimVerdict.REPRODUCED, ClaimVerdict.NOT_REPRODUCED}:
        say("attnbench: no claim was put to the test, for the reasons said")
        return 2
    return int(ClaimVerdict.NOT_REPRODUCED in verdicts)


class Reproduction:
    """Some claims on this machine, and the outcomes so far."""

    def __init__(
        self,
        some: Sequence[Claim],
        machine: Machine,
        table: impls.Table,
        *,
        seed: int = 0,
        threads: int = 1,
        embeddings: str | None = None,
        budget_s: float | None = None,
    ) -> None:
        self.claims, self.machine = list(some), machine
        self.outcomes: list[ClaimOutcome] = []
        self.stopped = False
        self._left_out = {c.name: claims.lacking(c, machine, table, embeddings) for c in some}
        self.to_try = [claim for claim in some if self._left_out[claim.name] is None]
        timed_s = sum(60 * claim.minutes for claim in self.to_try if claim.timed)
        self.scale = budget_s / timed_s if budget_s is not None and timed_s else 1.0
        self.given: dict[str, Any] = {"seed": seed, "threads": threads, "embeddings": embeddings}

    @property
    def minutes(self) -> float:
        """About how long all that can be tried takes."""
        return sum(c.minutes * (self.scale if c.timed else 1.0) for c in self.to_try)

    def request(self, claim: Claim) -> ClaimRequest:
        """What the measuring function of a claim is given."""
        cells = {point.name: point.cell for point in claim.points if point.cell}
        return ClaimRequest(cells=cells, seconds=60 * claim.minutes * self.scale, **self.given)

    def run(self) -> Iterator[ClaimOutcome]:
        """The outcome of each claim; Ctrl-C stops the claim at hand and those that follow."""
        for claim in self.claims[len(self.outcomes) :]:
            one = self._left_out[claim.name]
            if one is None and not self.stopped:
                try:
                    one = outcome(claim, self.request(claim))
                except KeyboardInterrupt:
                    self.stopped = True
            if one is None:
                again = f"attnbench reproduce {claim.name}"
                one = ClaimOutcome(claim, ClaimVerdict.NOT_RUN, "it was stopped", again)
            self.outcomes.append(one)
            yield one


def _run(given: argparse.Namespace, some: list[Claim]) -> Reproduction:
    import impls
    from attnbench.command.terminal import say
    from attnbench.core.evidence import check_writable
    from attnbench.core.machine import this_machine
    from attnbench.features.claims.view import line
    from attnbench.sweep.plan import duration
    from attnbench.sweep.start import pinned

    machine = this_machine()
    threads = pinned(given.threads or 1, machine)
    check_writable(Path(given.out), machine)
    series = Reproduction(
        some,
        machine,
        impls.table(given.table),
        seed=given.seed or 0,
        threads=threads,
        embeddings=given.embeddings,
        budget_s=given.budget,
    )
    say(
        f"{len(some)} claims, {len(series.to_try)} of which can be tried here; about "
        f"{duration(60 * series.minutes)}"
    )
    try:
        for one in series.run():
            say(line(one))
    except KeyboardInterrupt:  # between two claims
        series.stopped = True
        list(series.run())
    if series.stopped:
        say("stopped: what was found until then is kept")
    return series


def _keep(out: Path, series: Reproduction) -> Path:
    """Write the evidence, and a picture of each attention table beside it."""
    from attnbench.command.terminal import say
    from attnbench.core.evidence import Evidence, made_here, save_evidence
    from attnbench.features.show import view

    how = {**series.given, "budget_scale": series.scale, "stopped": series.stopped}
    rows = [one.to_dict() for one in series.outcomes]
    path = save_evidence(out, Evidence("reproduce", made_here(series.machine, **how), rows))
    for one in series.outcomes:
        for each in one.findings.maps:
            picture = path.with_name(f"{path.stem}-{each.name}.svg")
            view.draw(each.words, each.weights, each.title, picture)
            say(f"drawn in {picture}")
    return path


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
    """The findings of a claim, or why it can't be measured."""
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
