"""A claim put to the test in a process: run as a program, this module is that process."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

import msgspec

from attnbench.core.process import Worker, WorkerLost
from attnbench.core.process_child import Answers, serve
from attnbench.features.claims.claim import (
    Claim,
    ClaimFindings,
    ClaimOutcome,
    ClaimRequest,
    ClaimVerdict,
    medians_of,
)
from impls.errors import CantBeDone
from impls.loading import load_function

MODULE = "attnbench.features.claims.trial"
LIMIT_S, TIMES = 120.0, 3.0
"""The limit for loading and checking, and the multiple of the time given that is added to it."""
FAULT = "run it again by its name; if it fails again, that is a fault of attnbench"
GIVE_TIME = "give it more time with --budget, or a machine that is not busy"


def scale_of(to_try: Sequence[Claim], budget_s: float | None) -> float:
    """The factor on the time of each timed claim, so that they share a budget."""
    timed_s = sum(60 * claim.minutes for claim in to_try if claim.timed)
    return budget_s / timed_s if budget_s is not None and timed_s else 1.0


def outcome(claim: Claim, request: ClaimRequest, limit_s: float | None = None) -> ClaimOutcome:
    """Test a claim in a process. Ctrl-C ends the process, and is raised again."""
    start, answer, remedy = monotonic(), {}, ""
    limit_s = limit_s or LIMIT_S + TIMES * request.seconds * claim.timed
    arguments = msgspec.to_builtins(request)
    about = {"measure": claim.measure, "draws": claim.draws, "torch": not claim.timed}
    question = {**about, "request": arguments}
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
        findings = findings_of(question["measure"], request, question["draws"])
    except CantBeDone as error:
        return {"refusal": str(error)}
    return {"findings": msgspec.to_builtins(findings)}


def findings_of(measure: str, request: ClaimRequest, draws: int) -> ClaimFindings:
    """What a measuring function gives; of one that draws, the medians in both dtypes."""
    function = load_function(measure)
    if not draws:
        findings: ClaimFindings = function(request)
        return findings
    seeds = range(request.seed, request.seed + draws)
    dtypes = {"{}": "float32", "{} float64": "float64"}
    return medians_of(
        {key: [function(seed, dtype) for seed in seeds] for key, dtype in dtypes.items()}
    )


if __name__ == "__main__":
    serve(_answer, allow_nan=True)
