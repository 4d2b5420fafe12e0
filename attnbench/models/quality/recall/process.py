"""A training in a process of its own, as whoever started it holds it. Without torch.

A process that says nothing for too long is ended; what it told before is kept.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from attnbench.models.quality.recall.setting import Job
from attnbench.sweep.aside import Aside, Lost

START_S = 120.0
"""For torch to be loaded, a variant to be built, and the test to be looked at."""


def run(job: Job) -> dict[str, Any]:
    """One row of evidence: what was asked, how it ended, and its checkpoints."""
    row: dict[str, Any] = {
        "variant": job.variant.label, "computes": job.variant.computes,
        "family": job.variant.family, "setting": job.setting.to_dict(), "seed": job.seed,
        "seconds": job.seconds, "status": "", "reason": "", "remedy": "",
        "parameters": None, "state_numbers": None, "curve": [],
    }  # fmt: skip
    limit = START_S + 2 * job.limit_s
    until = monotonic() + limit
    with Aside("attnbench.models.quality.recall.child", job.threads) as aside:
        aside.ask(job.to_dict())
        try:
            for told in aside.answers(until):
                if "checkpoint" in told:
                    row["curve"].append(told["checkpoint"])
                else:
                    row.update(told)
            if not row["status"]:
                row["status"], row["reason"] = _ended(aside.end(until), limit)
        except Lost as lost:
            row["status"], row["reason"] = "failed", str(lost)
    return row


def _ended(how: str | None, limit_s: float) -> tuple[str, str]:
    """Of a process that did not say how it ended."""
    return ("timed_out", f"it was ended after {limit_s:.0f} s") if how is None else ("failed", how)
