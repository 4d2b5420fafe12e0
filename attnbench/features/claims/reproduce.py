"""Claims are tested one after the other, each in a process of its own.

Run as a program, this module is that process: it measures one claim and answers with its findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

import msgspec

import impls
from attnbench.core.machine import Machine
from attnbench.core.process import Worker, WorkerLost
from attnbench.core.process_child import Answers, serve
from attnbench.features.claims.claim import (
    Claim,
    ClaimFindings,
    ClaimOutcome,
    ClaimRequest,
    ClaimVerdict,
    lacking,
)
from impls.asked import CantBeDone
from impls.loading import load_function

LIMIT_S, TIMES = 120.0, 3.0
"""The limit for loading and checking, and the multiple of the time given that is added to it."""
FAULT = "run it again by its name; if it fails again, that is a fault of attnbench"
GIVE_TIME = "give it more time with --budget, or a machine that is not busy"


def outcome(claim: Claim, request: ClaimRequest, limit_s: float | None = None) -> ClaimOutcome:
    """Test a claim in a process. Ctrl-C ends the process, and is raised again."""
    start, answer, remedy = monotonic(), {}, ""
    limit_s = limit_s or LIMIT_S + TIMES * request.seconds * claim.timed
    question = {"how": claim.how, "torch": not claim.timed, "request": msgspec.to_builtins(request)}
    with Worker(__name__, request.threads, limited=False) as worker:
        try:
            answer = worker.ask(question, limit_s)
        except WorkerLost as lost:
            answer, remedy = {"refusal": str(lost)}, GIVE_TIME if lost.timed_out else FAULT
    took_s = monotonic() - start
    if "refusal" in answer:
        why, verdict = answer["refusal"], ClaimVerdict.NOT_RUN
        return ClaimOutcome(claim, verdict, why, remedy, took_s=took_s)
    return ClaimOutcome.of(claim, msgspec.convert(answer["findings"], ClaimFindings), took_s)


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
        self._left_out = {c.name: lacking(c, machine, table, embeddings) for c in some}
        timed_s = sum(60 * claim.minutes for claim in self.to_try if claim.timed)
        self._scale = budget_s / timed_s if budget_s is not None and timed_s else 1.0
        self._given: dict[str, Any] = {"seed": seed, "threads": threads, "embeddings": embeddings}

    @property
    def to_try(self) -> list[Claim]:
        """The claims that this machine can try."""
        return [claim for claim in self.claims if self._left_out[claim.name] is None]

    @property
    def minutes(self) -> float:
        """About how long all that can be tried takes."""
        return sum(c.minutes * (self._scale if c.timed else 1.0) for c in self.to_try)

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

    def settings(self) -> dict[str, Any]:
        """What holds for all claims, for the evidence."""
        return {**self._given, "budget_scale": self._scale, "stopped": self.stopped}

    def request(self, claim: Claim) -> ClaimRequest:
        """What the measuring function of a claim is given."""
        cells = {point.name: point.cell for point in claim.points if point.cell}
        seconds = 60 * claim.minutes * self._scale
        return ClaimRequest(cells=cells, seconds=seconds, **self._given)


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
