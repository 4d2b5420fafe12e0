"""A report's contents, from its runs: answers, figures, what is missing, where all comes from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from attnbench.answer.compare_runs import Incomparable, RunsComparison, compared
from attnbench.report.figures.looks import looks
from attnbench.report.page.claims import claims_of
from attnbench.report.page.contents import Contents
from attnbench.report.page.drawn import draw_all
from attnbench.report.page.headlines import headlines
from attnbench.report.page.missing import missing
from attnbench.report.page.model_cost import model_cost
from attnbench.report.page.provenance import about, machine_line, method
from attnbench.report.page.sure import how_sure, only
from attnbench.report.scenes import Ran, Scene, scenes

BASELINES = ("sdpa", "matmul", "einsum")
"""What times are told as multiples of: the first of these that has any."""


def contents_of(runs: Sequence[Ran], out: Path) -> Contents:
    """All that a report of these runs says, for a folder that it will lie in."""
    found = scenes(runs)
    records = [record for run in runs for record in run.records]
    look = looks(records)
    base = baseline(found)
    figures, absent = draw_all(runs, found, look, base)
    comparisons, incomparable = _compared(runs)
    return Contents(
        title=_title(runs), headlines=headlines(found, several_runs=len(runs) > 1), runs=runs,
        sure=how_sure(found), only=[one for run in runs if (one := only(run, found))],
        abouts=[about(run) for run in runs], scenes=found, looks=look, baseline=base,
        figures=figures, absent=absent, missing=missing(found), comparisons=comparisons,
        incomparable=incomparable, method=method(runs), to_run={run.number: _way(run.path, out)
                                                          for run in runs},
        claims=claims_of(runs),
        model_cost=model_cost([run.path for run in runs], look),
    )  # fmt: skip


def baseline(found: Sequence[Scene]) -> str:
    """The variant that times are told as multiples of; empty where nothing exact has a time."""
    timed = Counter(
        r.variant for scene in found for r in scene.regime.records
        if r.time is not None and r.computes == "softmax"
    )  # fmt: skip
    for name in BASELINES:
        if timed[name]:
            return name
    return min(timed, key=lambda name: (-timed[name], name), default="")


def _title(runs: Sequence[Ran]) -> str:
    if len(runs) == 1:
        return f"Which attention to use on {machine_line(runs[0]).partition(' · ')[0]}"
    machines = dict.fromkeys(run.machine for run in runs)
    if len(machines) == 1:
        return f"Which attention to use on {runs[0].machine}: {len(runs)} runs side by side"
    return f"Which attention to use: {len(runs)} runs on {', '.join(machines)}"


def _compared(runs: Sequence[Ran]) -> tuple[list[RunsComparison], list[str]]:
    """Each other run against the first; where nothing can be said of two, why."""
    first, *others = runs
    made, refused = [], []
    for run in others:
        try:
            made.append(compared(
                (first.name, run.name), (first.header, run.header), (first.records, run.records)
            ))  # fmt: skip
        except Incomparable as error:
            refused.append(str(error))
    return made, refused


def _way(run: Path, out: Path) -> str:
    """From the report to the run's folder, as an address has it."""
    return quote(Path(os.path.relpath(run.resolve(), out.resolve())).as_posix())
