"""Claims one after the other: each gets its verdict, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from time import monotonic
from typing import Any

import impls
from attnbench.core.machine import Machine
from attnbench.core.process import Worker, WorkerLost
from attnbench.features.claims.claim import (
    Claim,
    ClaimFindings,
    ClaimOutcome,
    ClaimRequest,
    ClaimVerdict,
    lacking,
)

LIMIT_S, TIMES = 120.0, 3.0
"""For loading and checking, and how often the time that a claim is given may pass besides."""
FAULT = "run it again by its name; if it fails again, that is a fault of attnbench"
GIVE_TIME = "give it more time with --budget, or a machine that is not busy"


def outcome(claim: Claim, asked: ClaimRequest, limit_s: float | None = None) -> ClaimOutcome:
    """What became of a claim. Ctrl-C ends its process, and is raised again."""
    start = monotonic()
    limit_s = limit_s or LIMIT_S + TIMES * asked.seconds * claim.timed
    question = {"how": claim.how, "torch": not claim.timed, "request": asdict(asked)}
    with Worker("attnbench.features.claims.child", asked.threads, limited=False) as worker:
        try:
            answer = worker.ask(question, limit_s)
        except WorkerLost as lost:
            remedy = GIVE_TIME if lost.timed_out else FAULT
            return _not_run(claim, str(lost), remedy, start)
    if "cant" in answer:
        return _not_run(claim, answer["cant"], "", start)
    return ClaimOutcome.of(claim, ClaimFindings.from_dict(answer["found"]), monotonic() - start)


def _not_run(claim: Claim, why: str, remedy: str, start: float) -> ClaimOutcome:
    return ClaimOutcome(claim, ClaimVerdict.NOT_RUN, why, remedy, took_s=monotonic() - start)


STOPPED = "it was stopped"


class Reproduction:
    """What is asked of all claims, and what was found so far."""

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
        self.claims, self.machine, self._table = list(some), machine, table
        self._seed, self._threads, self._embeddings = seed, threads, embeddings
        self.found: list[ClaimOutcome] = []
        self.stopped = False
        self._left_out = {
            claim.name: out
            for claim in some
            if (out := lacking(claim, machine, table, embeddings)) is not None
        }
        self._scale = 1.0
        if budget_s is not None and (all_s := sum(60 * c.minutes for c in self._timed())):
            self._scale = budget_s / all_s

    @property
    def minutes(self) -> float:
        """About how long all that can be tried takes."""
        return sum(c.minutes * (self._scale if c.timed else 1.0) for c in self.to_try)

    @property
    def to_try(self) -> list[Claim]:
        """Those that this machine can try."""
        return [claim for claim in self.claims if claim.name not in self._left_out]

    def all(
        self, try_one: Callable[[Claim, ClaimRequest], ClaimOutcome] | None = None
    ) -> Iterator[ClaimOutcome]:
        """Claim after claim; after Ctrl-C the rest is said to be stopped."""
        try_one = try_one or outcome
        for claim in self.claims:
            one = self._left_out.get(claim.name)
            if one is None:
                try:
                    one = (
                        self._stopped(claim) if self.stopped else try_one(claim, self.asked(claim))
                    )
                except KeyboardInterrupt:
                    self.stopped = True
                    one = self._stopped(claim)
            self.found.append(one)
            yield one

    def give_up(self) -> None:
        """What has no outcome yet was stopped."""
        self.stopped = True
        for claim in self.claims[len(self.found) :]:
            self.found.append(self._left_out.get(claim.name) or self._stopped(claim))

    def how(self) -> dict[str, Any]:
        """What was asked of all, for the evidence."""
        return {
            "seed": self._seed,
            "threads": self._threads,
            "embeddings": self._embeddings,
            "budget_scale": self._scale,
            "stopped": self.stopped,
        }

    def asked(self, claim: Claim) -> ClaimRequest:
        """What the measuring function of a claim is told."""
        cells = {point.name: point.cell for point in claim.points if point.cell}
        seconds = 60 * claim.minutes * self._scale
        return ClaimRequest(cells, self._seed, self._threads, seconds, self._embeddings)

    def _timed(self) -> list[Claim]:
        return [claim for claim in self.to_try if claim.timed]

    def _stopped(self, claim: Claim) -> ClaimOutcome:
        return ClaimOutcome(
            claim, ClaimVerdict.NOT_RUN, STOPPED, f"attnbench reproduce {claim.name}"
        )
