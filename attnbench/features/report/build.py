"""The contents of a report, made from its runs: answers, comparisons, evidence, what is missing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attnbench.answer.compare_runs import Incomparable, RunsComparison, compared
from attnbench.core.disk import StoreError
from attnbench.core.evidence import Evidence, evidence_of, read_evidence
from attnbench.features.claims.view import claims_for_page
from attnbench.features.quality.verb import quality_for_page
from attnbench.features.report.provenance import About, about
from attnbench.report.figures.style import Look, looks
from attnbench.report.scenes import ReportRun, Scene, machine_line, scenes
from attnbench.report.sentences import (
    Missing,
    Only,
    headlines,
    how_sure,
    missing,
    only,
    usual_length,
)


@dataclass(frozen=True)
class Contents:
    """The data of the page, the summary and the files."""

    title: str
    length: int | None
    """At which it opens; None where nothing has a time."""
    headlines: Sequence[str]
    confidence: str
    only: Sequence[Only]
    runs: Sequence[ReportRun]
    abouts: Sequence[About]
    scenes: Sequence[Scene]
    looks: Mapping[str, Look]
    baseline: str
    """The variant that times are shown as multiples of; empty where there is none."""
    missing: Sequence[Missing]
    comparisons: Sequence[RunsComparison]
    incomparable: Sequence[str]
    to_run: Mapping[int, str]
    """The path from the report to the folder of each run, by its number."""
    claims: Sequence[Mapping[str, Any]] = ()
    model_cost: Sequence[Mapping[str, Any]] = ()


def contents_of(runs: Sequence[ReportRun], out: Path) -> Contents:
    """The contents of a report of these runs that will be written to a folder."""
    all_scenes = scenes(runs)
    comparisons, incomparable = list[RunsComparison](), list[str]()
    first, *others = runs
    for other in others:
        names, headers = (first.name, other.name), (first.header, other.header)
        try:
            comparisons.append(compared(names, headers, (first.records, other.records)))
        except Incomparable as error:
            incomparable.append(str(error))
    length = usual_length(all_scenes)
    to_run = {run.number: os.path.relpath(run.path.resolve(), out.resolve()) for run in runs}
    return Contents(
        title=_title(runs),
        length=length,
        headlines=list(headlines(all_scenes, len(runs) > 1, length)),
        confidence=how_sure(all_scenes),
        only=[best for run in runs if (best := only(run, all_scenes))],
        runs=runs,
        abouts=[about(run) for run in runs],
        scenes=all_scenes,
        looks=looks(record for run in runs for record in run.records),
        baseline=baseline(all_scenes),
        missing=missing(all_scenes),
        comparisons=comparisons,
        incomparable=incomparable,
        to_run={number: quote(Path(path).as_posix()) for number, path in to_run.items()},
        claims=claims_of([run.path for run in runs]),
        model_cost=model_cost([run.path for run in runs]),
    )


def _title(runs: Sequence[ReportRun]) -> str:
    machines = list(dict.fromkeys(run.machine for run in runs))
    if len(runs) == 1:
        return f"Which attention to use on {machine_line(runs[0]).partition(' · ')[0]}"
    if len(machines) == 1:
        return f"Which attention to use on {machines[0]}: {len(runs)} runs side by side"
    return f"Which attention to use: {len(runs)} runs on {', '.join(machines)}"


BASELINES = ("sdpa", "matmul", "einsum")
"""The first of these that has a time is the baseline."""


def baseline(scenes: Sequence[Scene]) -> str:
    """The variant that times are shown as multiples of; empty where nothing exact has a time."""
    records = (r for scene in scenes for r in scene.regime.records)
    timed = Counter(r.variant for r in records if r.time and r.computes == "softmax")
    usual = [name for name in BASELINES if timed[name]]
    return (usual or sorted(timed, key=lambda name: (-timed[name], name)) or [""])[0]


# ---- evidence beside the runs: claims, and what a variant costs a model --------------------------

MISFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""The errors that a file of evidence raises that is not as attnbench writes it."""
TITLES = {
    "model": "A trained model, its attention replaced by each variant",
    "recall": "What small models recall that were trained with each variant",
    "real": "Error and skill on what that model’s layers hand to attention",
}


def claims_of(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """The newest claims in each machine's folder, or a note on why they can't be read."""
    results = []
    for folder in dict.fromkeys(run.resolve().parent for run in runs):
        for path in list(evidence_of(folder, "reproduce"))[:1]:
            nothing: dict[str, Any] = {"made": "", "tried": [], "footnote": "", "left": None}
            claims, note = {"machine": folder.name, **nothing}, ""
            try:
                claims = claims_for_page(read_evidence(path))
            except StoreError as error:
                note = str(error)
            except MISFORMED as error:
                note = f"{path.name} is not as attnbench writes it ({type(error).__name__})"
            results.append({**claims, "note": note})
    return results


def model_cost(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """The newest evidence of each kind in each machine's folder, or its newest part."""
    parts = []
    for folder in dict.fromkeys(run.resolve().parent for run in runs):
        for kind, title in TITLES.items():
            part: dict[str, Any] | None = None
            for file in evidence_of(folder, kind):
                empty: dict[str, Any] = dict.fromkeys(("conclusions", "tables", "lines"), ())
                base = {"title": title, "file": file.name, "figure": None, **empty}
                try:
                    evidence = read_evidence(file)
                except StoreError as error:
                    part = {**base, "source": str(error)}
                    break
                if not evidence.partial or part is None:
                    part = {**base, **_evidence_on_page(evidence)}
                if not evidence.partial:
                    break
            parts += [part] if part else []
    return parts


def _evidence_on_page(evidence: Evidence) -> dict[str, Any]:
    """The part of the page from a file of evidence, or as its source why it can't be shown."""
    try:
        header = evidence.made
        source = f"{header['started'][:10]}, {header['machine']['name']}: {header['command']}"
        if evidence.partial:
            source += "; stopped before its end: a part of what was asked"
        return {"source": source, **quality_for_page(evidence, figure=True)}
    except MISFORMED as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        return {"source": f"it can't be shown: something in it is not what it should be ({first})"}
