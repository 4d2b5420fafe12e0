"""Where an answer comes from: the runs named, a run that was measured here, or measuring now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.answer.choice import runs
from attnbench.answer.choice.measuring import Means, measured

if TYPE_CHECKING:
    from attnbench.answer.choice.choice import Choice
    from attnbench.answer.choice.wants import Wants
    from impls import Table
    from impls.problem import Problem


def answer(problem: Problem, wants: Wants, table: Table, means: Means, *,
           named: Sequence[Path] = (), anew: bool = False) -> Choice:  # fmt: skip
    """``named``: runs to answer from, and nothing else. ``anew``: measure, whatever there is."""
    if named:
        return runs.best_of(named, problem, wants, table)
    if not anew:
        here = runs.measured_here(means.out, means.threads, means.tables)
        if (found := runs.first_that_says(here, problem, wants, table, means.say)) is not None:
            means.say(f"from {found.source}, which was measured here; to measure anew: --measure")
            return found
    return measured(problem, wants, table, means)
