"""A plan carried out: for each setting the budget of time first, then training after training.

Before anything else the baseline is trained for its steps with a seed of its own; what its loop
took is the time that everybody gets. Trainings of one seed follow each other in random order, so
that a machine that drifts does so for all alike.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from attnbench.models.quality.recall import process
from attnbench.models.quality.recall.plan import NotTrainable, Plan
from attnbench.models.quality.recall.setting import Job, Setting

Say = Callable[[str], None]
Train = Callable[[Job], dict[str, Any]]


class Going:
    """What has been trained so far: ``rows`` are whole whenever it is stopped."""

    def __init__(self, plan: Plan, say: Say, train: Train | None = None) -> None:
        self.plan, self._say, self._train = plan, say, train or process.run
        self.rows = [each.row() for each in plan.left_out]
        self.budgets: dict[str, float] = {}
        """Seconds, by the setting's slug."""
        self._ended, self._start = 0, monotonic()

    def run(self, *, seconds: float | None = None, timed: bool = True) -> None:
        """All of it. ``seconds``: the budget of time, if given; ``timed``: whether there is one."""
        for each in self.plan.left_out:
            remedy = f"; {each.remedy}" if each.remedy else ""
            self._say(f"not trained: {each.reason}{remedy}")
        for setting in self.plan.settings:
            budget = seconds
            if timed and budget is None:
                budget = self._budget(setting)
            if budget is not None:
                self.budgets[setting.slug] = budget
            self._trainings(setting, budget)

    def _budget(self, setting: Setting) -> float:
        job = self.plan.timing(setting)
        row = self._train(job)
        if row["status"] != "trained":
            raise NotTrainable(
                f"{job.variant.label} could not be trained in {setting.slug}: {row['reason']}; "
                "without it there is no budget of time and nothing to compare"
            )
        took = float(row["curve"][-1]["seconds"])
        self._say(f"{setting.slug}: {job.variant.label} took {took:.1f} s for {setting.steps:,} "
                  "steps; everybody gets as many steps, and as much time")  # fmt: skip
        return took

    def _trainings(self, setting: Setting, seconds: float | None) -> None:
        refused: set[str] = set()
        for job in self.plan.jobs(setting, seconds):
            if job.variant.label in refused:
                continue
            row = self._train(job)
            self.rows.append(row)
            self._ended += 1
            self._say(f"[{self._ended}/{self.plan.trainings}, {self._left()} left] {told(row)}")
            if row["status"] == "unsupported":
                refused.add(job.variant.label)

    def _left(self) -> str:
        each = (monotonic() - self._start) / self._ended
        left = each * (self.plan.trainings - self._ended)
        return f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min"


def told(row: dict[str, Any]) -> str:
    """A training in a line: ``linear.elu seed 1: 600 steps in 12.3 s: 99 60 41 % right``."""
    name = f"{row['variant']} seed {row['seed']}"
    if not row["curve"]:
        return f"{name}: {row['status'].replace('_', ' ')}: {row['reason']}"
    last = row["curve"][-1]
    right = " ".join(f"{100 * share:.0f}" for share in last["accuracy"].values())
    pairs = ", ".join(last["accuracy"])
    said = f"{name}: {last['step']:,} steps in {last['seconds']:.1f} s"
    return f"{said}: {right} % right with {pairs} pairs" + f"; {row['reason']}" * bool(
        row["reason"]
    )
