"""The shape of every task of ``quality``, and the one result that all of them give.

A task is a module with three functions, which :mod:`attnbench.features.quality.verb` names:

    start(arguments) -> TaskRun           refuses what can't be tried; nothing has run yet
    results(evidence) -> [ResultGroup]    what the kept rows show: a table and a panel each
    notes(evidence) -> [str]              what its words mean

What needs torch runs in a process of its own, which a :class:`TaskWorker` asks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from msgspec import Struct

from attnbench.command.progress import Progress
from attnbench.core.machine import Machine, why_not
from attnbench.core.process import Worker, WorkerLost
from attnbench.core.stats import CONFIDENCE, student_quantile
from attnbench.models import wrong_level
from impls.errors import CantBeDone
from impls.problem import Problem
from impls.spec import Variant

Row = dict[str, Any]


@dataclass(frozen=True)
class TaskRun:
    """A task that is about to run."""

    device: str
    header: Row
    """The facts behind the evidence; ``steps`` may add to them."""
    steps: Callable[[Progress], Generator[Row | None]]
    """The rows of evidence as they come; it may be ended at a None, too."""


class Judgement(StrEnum):
    """The side of a level on which a score lies."""

    KEEPS = "kept by"
    LACKS = "not by"
    OPEN = "can't be told of"


MOST_LOG = 700.0
"""The largest logarithm of a number of float64, about."""
MARKS = {Judgement.KEEPS: " ✓", Judgement.LACKS: "", Judgement.OPEN: " ?"}


class QualityFigure(Struct, frozen=True):
    """A figure and its interval; without ends where one sample shows none."""

    value: float
    low: float | None = None
    high: float | None = None

    def judge(self, level: float) -> Judgement:
        """The side on which the whole interval lies."""
        if self.low is None or self.high is None or self.low < level <= self.high:
            return Judgement.OPEN
        return Judgement.KEEPS if self.low >= level else Judgement.LACKS

    def __str__(self) -> str:
        """``0.865 ± 0.023``, by the end that is farther off."""
        if self.low is None or self.high is None or self.low == self.high:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ± {max(self.high - self.value, self.value - self.low):.3f}"

    @property
    def three(self) -> tuple[float, float, float]:
        """It and both ends; thrice itself where it has none."""
        value, low, high = self.value, self.low, self.high
        return value, value if low is None else low, value if high is None else high

    @property
    def powers(self) -> QualityFigure:
        """Of a logarithm, the number itself."""
        return QualityFigure(
            math.exp(min(self.value, MOST_LOG)),
            *(None if x is None else math.exp(min(x, MOST_LOG)) for x in (self.low, self.high)),
        )

    @property
    def with_ends(self) -> str:
        """``0.987 [0.981, 0.993]``"""
        ends = "" if self.low is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.value:.3f}{ends}"


def mean_figure(
    values: Sequence[float],
    least: float = -math.inf,
    most: float = math.inf,
    *,
    confidence: float = CONFIDENCE,
    rerun: bool = False,
) -> QualityFigure | None:
    """The mean with Student's interval, cut to what the values may be; None of no values.

    ``rerun``: the interval that the mean of as many other values falls into.
    """
    if not values:
        return None
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return QualityFigure(mean)
    half = student_quantile((1 + confidence) / 2, n - 1) * statistics.stdev(values) / math.sqrt(n)
    half *= math.sqrt(2) if rerun else 1
    return QualityFigure(mean, max(least, mean - half), min(most, mean + half))


def ratio_figure(
    ratios: Sequence[float], *, confidence: float = CONFIDENCE
) -> QualityFigure | None:
    """The geometric mean of ratios, and its interval."""
    mean = mean_figure([math.log(ratio) for ratio in ratios], confidence=confidence)
    return None if mean is None else mean.powers


class Result(Struct, frozen=True):
    """A variant in one setting of a task."""

    variant: str
    computes: str
    family: str
    scores: Mapping[str, QualityFigure] = {}
    """1 is as good as exact softmax; none for what has a step's time alone."""
    step: QualityFigure | None = None
    """A step's time over the baseline's."""
    step_s: float | None = None
    faster: bool = False
    """Than the baseline, beyond doubt."""
    more: Mapping[str, QualityFigure | float | None] = {}
    """Further columns."""
    memory: float | None = None
    """The bytes of its cache over the baseline's."""
    beaten_by: Sequence[str] = ()
    """Those that are better in a figure and in none worse."""


class ResultGroup(Struct, frozen=True):
    """The variants in one setting."""

    setting: str
    score: str
    """The score that is judged, one of each result's."""
    level: float
    """Which has to be kept."""
    baseline: str
    results: Sequence[Result]

    def judged(self) -> list[Result]:
        """Those that have the score: exact ones first, then the best."""
        some = [result for result in self.results if self.score in result.scores]
        return sorted(some, key=lambda r: (r.computes != "softmax", -r.scores[self.score].value))

    def keepers(self, level: float) -> list[Result]:
        """Those with a step's time that keep a level, the fastest first."""
        some = [
            (result.step.value, result.variant, result)
            for result in self.judged()
            if result.step and result.scores[self.score].judge(level) is Judgement.KEEPS
        ]
        return [result for *_, result in sorted(some, key=lambda each: each[:2])]


def status_words(row: Mapping[str, Any]) -> str:
    """``timed out: it was still running after 240 s``, and what to do about it."""
    why = "; ".join(filter(None, [row["reason"], row.get("remedy")]))
    return f"{row['status'].replace('_', ' ')}: {why}"


def variant_row(variant: Variant, status: str = "", reason: str = "", remedy: str = "") -> Row:
    """A row of evidence without figures."""
    about = {"variant": variant.label, "family": variant.family, "computes": variant.computes}
    return {**about, "status": status, "reason": reason, "remedy": remedy}


def refusal(row: Variant, problem: Problem, machine: Machine) -> Row | None:
    """The row of a variant that can't be tried on a problem here; None for one that can."""
    if (reason := wrong_level(row)) is not None:
        return variant_row(row, "refused", reason)
    if (missing := why_not(row, machine)) is not None:
        return variant_row(row, "unavailable", missing.reason, missing.remedy)
    reason = row.supports(problem)
    return None if reason is None else variant_row(row, "refused", reason)


class TaskWorker(Worker):
    """Asks the process of a task, which answers in parts of a row."""

    def __init__(self, threads: int, *, limited: bool = False) -> None:
        super().__init__("attnbench.features.quality.worker", threads, limited=limited)

    def stages(self, answer: str, question: Mapping[str, Any], limit_s: float) -> Iterator[Row]:
        """The parts of an answer; where it ends badly, the last has ``status`` and ``reason``.

        ``answer``: the function that yields them, as ``module:function``.
        """
        try:
            yield from self.messages({**question, "answer": answer}, limit_s)
        except WorkerLost as lost:
            yield {"status": "timed_out" if lost.timed_out else "crashed", "reason": str(lost)}

    def original(self, answer: str, question: Mapping[str, Any], limit_s: float) -> Iterator[Row]:
        """The parts of an answer of the original model; raises CantBeDone for a bad end."""
        for stage in self.stages(answer, question, limit_s):
            if "status" in stage:
                raise CantBeDone(f"the original model could not be run: {stage['reason']}")
            yield stage
