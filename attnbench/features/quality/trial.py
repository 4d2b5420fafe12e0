"""An original model first, then one variant after another in it: what ``model`` and ``lm`` share.

The model runs in a child process; another one is started where that was lost or changed. A stage
of an answer that has arrived counts, whatever happens later.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import impls
from attnbench.command.progress import Progress
from attnbench.command.terminal import say
from attnbench.core.format import counted, roughly
from attnbench.core.machine import Machine
from attnbench.core.record import FINDINGS, Status
from attnbench.features.quality.task import (
    Row,
    TaskWorker,
    refusal,
    status_words,
    variant_row,
)
from impls.problem import Problem
from impls.spec import Variant

Refusal = Callable[[Variant], str | None]
"""A sentence for a variant that the task can't try, else None."""


@dataclass(frozen=True)
class TrialPlan:
    """The process that is asked, what it is asked, and how long that takes."""

    worker_module: str
    question: Row
    """Of the original and of every variant; ``device`` is in it."""
    original_only: Row
    """What the original is asked besides."""
    problem: Problem
    """An attention call that a variant must take."""
    original_s: float
    variant_s: float
    """About, of each."""
    limit_s: float
    """Of each."""
    lists: Mapping[str, str]
    """Keys of stages, and the lists of a row that their values are added to."""
    figures: str
    """The key that a row has once something of it counts."""
    earlier: Mapping[str, Row] = field(default_factory=dict)
    """Rows of an earlier call, by variant."""


class VariantTrial:
    """Asks the process that has the model: the original, then variants."""

    def __init__(self, plan: TrialPlan, worker: TaskWorker, folder: Path) -> None:
        """Run the original, whose results go to ``folder``; raises CantBeDone if it can't be."""
        self._plan, self._worker = plan, worker
        self._question = {**plan.question, "folder": str(folder)}
        self.original: Row = {}
        answer, question = (
            f"{plan.worker_module}:original",
            {**self._question, **plan.original_only},
        )
        for stage in worker.original(answer, question, plan.limit_s):
            for name, value in stage.items():
                if name == "original":
                    self.original |= value
                else:
                    self.original.setdefault(name, []).append(value)

    def run_variant(self, variant: Variant) -> Row:
        """A row of evidence, whatever becomes of the process after the first figures, or before."""
        plan = self._plan
        row: Row = {
            **variant_row(variant, "failed", "it gave no answer"),
            **{name: [] for name in plan.lists.values()},
            "amiss": [],
        }
        answer = f"{plan.worker_module}:variant"
        question = {**self._question, "variant": variant.label, "original": self.original}
        for stage in self._worker.stages(answer, question, plan.limit_s):
            for name in plan.lists.keys() & stage.keys():
                row[plan.lists[name]].append(stage.pop(name))
            if stage.get("status") not in (None, "measured", "wrong") and row.get(plan.figures):
                row["amiss"].append(status_words(stage))
            else:
                row |= stage
        return row


def chosen_variants(arguments: argparse.Namespace, refused: Refusal) -> list[Variant]:
    """The variants named, or all of the table that can be tried; the exact ones first."""
    table = impls.table(arguments.table)
    variants = [table.find(name) for name in arguments.variants]
    variants = variants or [row for row in table.rows.values() if refused(row) is None]
    return sorted(variants, key=lambda row: row.computes != "softmax")


def trial_steps(
    plan: TrialPlan,
    variants: Sequence[Variant],
    machine: Machine,
    threads: int,
    header: Row,
    progress: Progress,
) -> Generator[Row | None]:
    """The rows of evidence as they come; what is told of the original goes into the header."""
    refusals = [
        plan.earlier.get(row.label) or refusal(row, plan.problem, machine) for row in variants
    ]
    each_s = [plan.variant_s if refused is None else 0.0 for refused in refusals]
    progress.expect(guesses := [plan.original_s, *each_s])
    count = counted(len(variants), "variant")
    say(f"the original model, then {count}; about {roughly(sum(guesses))}")
    progress.step("the original model")
    limited = plan.problem.device == "cpu"
    with (
        tempfile.TemporaryDirectory() as folder,
        TaskWorker(threads, limited=limited) as worker,
    ):
        trial = VariantTrial(plan, worker, Path(folder))
        header["original"] = {**header.get("original", {}), **trial.original}
        yield None
        for variant, refused in zip(variants, refusals, strict=True):
            progress.step(variant.label)
            row = trial.run_variant(variant) if refused is None else refused
            if row["status"] in {*FINDINGS, Status.TIMED_OUT}:
                progress.tell(f"{row['variant']}: {status_words(row)}", "yellow")
            yield row
