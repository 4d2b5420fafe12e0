"""One claim in a process of its own, with the ruler's environment and a time limit.

Whatever becomes of that process, it costs this claim alone.
"""

from __future__ import annotations

from dataclasses import asdict
from time import monotonic

from attnbench.claims.claim import Claim
from attnbench.claims.figures import Asked, Found
from attnbench.claims.outcome import Outcome
from attnbench.claims.verdict import Verdict
from attnbench.sweep.aside import Aside, Lost

LIMIT_S, TIMES = 120.0, 3.0
"""For loading and checking, and how often the time that a claim is given may pass besides."""
FAULT = "run it again by its name; if it fails again, that is a fault of attnbench"


def outcome(claim: Claim, asked: Asked, limit_s: float | None = None) -> Outcome:
    """What became of a claim. Ctrl-C ends its process, and is raised again."""
    start = monotonic()
    limit_s = limit_s or LIMIT_S + TIMES * asked.seconds * claim.timed
    with Aside("attnbench.claims.child", asked.threads) as aside:
        aside.ask({"how": claim.how, "torch": not claim.timed, "asked": asdict(asked)})
        why, remedy = None, FAULT
        try:
            for answer in aside.answers(start + limit_s):
                if "found" in answer:
                    return Outcome.of(claim, Found.from_dict(answer["found"]), monotonic() - start)
                return _not_run(claim, answer["cant"], "", start)
            why = aside.end(start + limit_s)
        except Lost as lost:
            why = str(lost)
    if why is None:
        why = f"it was still running after {limit_s:.0f} s"
        remedy = "give it more time with --budget, or a machine that is not busy"
    return _not_run(claim, why, remedy, start)


def _not_run(claim: Claim, why: str, remedy: str, start: float) -> Outcome:
    return Outcome(claim, Verdict.NOT_RUN, why, remedy, took_s=monotonic() - start)
