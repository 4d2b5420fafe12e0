"""All that a report says, before it is a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnbench.answer.compare_runs import RunsComparison
from attnbench.report.figures.looks import Look
from attnbench.report.figures.sheet import Drawn
from attnbench.report.page.claims import Claims
from attnbench.report.page.model_cost import Found
from attnbench.report.page.sure import Only
from attnbench.report.scenes import Ran, Scene


@dataclass(frozen=True)
class Missing:
    """Cells that have no time, for one reason."""

    status: str
    reason: str
    remedy: str
    variants: Sequence[str]
    where: Sequence[str]
    """Of the regimes, with the lengths: ``train, causal …: 2,048, 4,096``."""
    cells: int


@dataclass(frozen=True)
class About:
    """Where a run comes from and what it may be trusted for."""

    run: Ran
    machine_line: str
    """``AMD EPYC, 2 cores, 24 GiB · torch 2.13.0+cpu · 1 thread · 22 November 2026``"""
    trust: Sequence[str]
    """Sentences: the ruler's self-check, the noise floor, what was amiss while it ran."""
    facts: Sequence[tuple[str, str]]
    """Name and value of everything numbers may depend on."""
    commands: Sequence[str]
    """That repeat the run, and this report."""


@dataclass(frozen=True)
class Contents:
    """What the page, the summary and the files are made from."""

    title: str
    headlines: Sequence[str]
    """One or two sentences that answer, for the longest lengths."""
    sure: str
    """How sure all answers are, in a line; empty where there is none."""
    only: Sequence[Only]
    """Of each run that measured enough, what to take if only one may be chosen."""
    runs: Sequence[Ran]
    abouts: Sequence[About]
    scenes: Sequence[Scene]
    looks: Mapping[str, Look]
    baseline: str
    """The variant that times are told as multiples of; empty where there is none."""
    figures: Sequence[Drawn]
    absent: Mapping[str, Sequence[str]]
    """By section: sentences on what is not drawn there, and why."""
    missing: Sequence[Missing]
    comparisons: Sequence[RunsComparison]
    """Each other run against the first."""
    incomparable: Sequence[str]
    method: Sequence[str]
    to_run: Mapping[int, str]
    """Of each run by its number: the path from the report to its folder."""
    claims: Sequence[Claims] = ()
    """Of each machine that has any: the claims of others that were put to the test on it."""
    model_cost: Sequence[Found] = ()
    """What was found beside the runs of what a variant costs a model."""
