"""The contents of a report, made from its runs: answers, figures, evidence, what is missing."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from attnbench.answer.compare_runs import Incomparable, RunsComparison, compared
from attnbench.core.disk import StoreError
from attnbench.core.evidence import Evidence, evidence_of, read_evidence
from attnbench.core.machine import pace
from attnbench.features.claims.view import claims_for_page
from attnbench.features.quality.verb import quality_for_page
from attnbench.features.report.provenance import About, about
from attnbench.report.figures import (
    attention,
    closeness,
    memory,
    roofline,
    scaling,
    shares,
    tradeoffs,
    winner_map,
)
from attnbench.report.figures.sheet import Drawn
from attnbench.report.figures.style import Look, Looks, looks
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

if TYPE_CHECKING:
    from attnbench.command.progress import Progress

SCENES, LINES = 8, 1000
"""The first regimes that have times have figures of their own: so many, with so many lines in all.
Every regime is in the table."""
WHY_NOT = {
    "map": "nothing exact has a time, so there is no winner to draw",
    "scaling": "nothing has a time",
    "tradeoffs": "no length has both times and errors or memory to hold against each other",
    "roofline": "the machine's ceilings are not in the run's header, or no record says its work: "
                "'attnbench run' measures both",
    "closeness": "no problem has times of two exact variants to compare",
    "memory": "no memory was measured",
    "shares": "no calls were profiled; 'attnbench profile VARIANT --out RUN/profiles' does it",
    "attention": "no attention maps were kept with this run; 'attnbench run' keeps them unless "
                 "--no-report",
}  # fmt: skip
"""By section, in the order of the page: why nothing is drawn there."""
SECTIONS = tuple(WHY_NOT)
DRAWN_S = dict(zip(SECTIONS, (0.5, 1.6, 0.7, 0.3, 0.5, 0.4, 0.3, 0.5), strict=True))
READ_S, PAGE_S = 1.5, 2.5
"""Guesses at the seconds of a figure, by section; of reading the runs; and of the page: with as
many variants as the table has."""


def _share(variants: int) -> float:
    """What all this takes here with so many variants, as a share."""
    return pace() * (0.2 + variants / 100)


def report_s(regimes: int, variants: int) -> float:
    """A guess at the seconds of a report of one run."""
    scene = sum(DRAWN_S[section] for section in ("scaling", "tradeoffs", "roofline", "memory"))
    rest = sum(DRAWN_S.values()) - scene + PAGE_S
    return pace() * READ_S + _share(variants) * (min(max(regimes, 1), SCENES) * scene + rest)


def draw_all(
    runs: Sequence[ReportRun],
    scenes: Sequence[Scene],
    looks: Looks,
    baseline: str,
    progress: Progress | None = None,
    some: Collection[str] = (),
) -> tuple[list[Drawn], Mapping[str, Sequence[str]]]:
    """All figures in the order of the page, and by section why others are absent.

    ``some``: the sections that are wanted, and of scaling the measures.
    """
    figures: list[Drawn] = []
    absent: dict[str, dict[str, None]] = defaultdict(dict)
    timed = [scene for scene in scenes if scene.timed]
    lines = accumulate(len({r.variant for r in scene.regime.records}) for scene in timed)
    shown = timed[: max(1, min(sum(count <= LINES for count in lines), SCENES))]
    todo = list(_to_draw(runs, scenes, shown, looks, baseline, some, absent))
    todo = [each for each in todo if not some or each[0] in some]
    if progress:
        share = _share(
            max((len({r.variant for r in scene.regime.records}) for scene in shown), default=0)
        )
        progress.expect([share * s for s in (*(DRAWN_S[section] for section, *_ in todo), PAGE_S)])
    for section, what, function, *given in todo:
        if progress:
            progress.step(f"{section}, {what}")
        try:
            made = function(*given)
        except Exception as error:  # anything: the rest of the page is not lost with it
            first = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
            absent[section][f"the figure of {what} could not be drawn ({first})"] = None
            continue
        if made is not None:
            figures.extend(made if isinstance(made, list) else [made])
    if progress:
        progress.step("the page")
    _say_absent(
        figures, absent, timed, timed[len(shown) :], energy="energy" in (some or ["energy"])
    )
    figures.sort(key=lambda figure: SECTIONS.index(figure.section))
    return figures, {name: list(absent[name]) for name in SECTIONS if absent[name]}


def _to_draw(
    runs: Sequence[ReportRun],
    scenes: Sequence[Scene],
    shown: Sequence[Scene],
    looks: Looks,
    baseline: str,
    measures: Collection[str],
    absent: dict[str, dict[str, None]],
) -> Iterator[tuple[Any, ...]]:
    """The section of each figure, what it is of, the function that draws it, and what it needs."""
    for scene in shown:
        yield "scaling", scene.regime, scaling.draw, scene, looks, baseline, measures
        yield "tradeoffs", scene.regime, tradeoffs.draw, scene, looks
        yield "roofline", scene.regime, roofline.draw, scene, looks
        yield "memory", scene.regime, memory.draw, scene, looks
    for run in runs:
        yield "map", run.name, winner_map.draw, run, scenes, looks
        yield "closeness", run.name, closeness.draw, run, scenes, looks
        profiles, damaged = shares.read(sorted((run.path / "profiles").rglob("profile.json")))
        absent["shares"] |= dict.fromkeys(damaged)
        yield "shares", f"profiles of {run.name}", shares.draw, profiles, looks, run.number
    kept = [
        (run, *attention.read(file)) for run in runs if (file := run.path / "maps.json").exists()
    ]
    absent["attention"] |= dict.fromkeys(why for _, _, why in kept if why)
    for run, maps, _ in [each for each in kept if each[1]][:1]:  # those of all machines are alike
        yield "attention", f"maps of {run.name}", attention.draw, maps, looks, run.number


def _say_absent(
    figures: Sequence[Drawn],
    absent: dict[str, dict[str, None]],
    timed: Sequence[Scene],
    rest: Sequence[Scene],
    *,
    energy: bool,
) -> None:
    """Why a section has no figure, and which regimes have none."""
    drawn = {figure.section for figure in figures}
    for section, why in WHY_NOT.items():
        if section not in drawn and not absent[section]:
            absent[section][why] = None
    if "scaling" in drawn:
        absent["scaling"] |= dict.fromkeys(_not_in_scaling(timed, rest, energy=energy))


def _not_in_scaling(timed: Sequence[Scene], rest: Sequence[Scene], *, energy: bool) -> list[str]:
    said = []
    if energy and all(r.energy is None for scene in timed for r in scene.regime.records):
        said.append("no energy was measured; 'attnbench run --energy' does it")
    if rest:
        some = "; ".join(str(scene.regime) for scene in rest[:4])
        some += f"; and {len(rest) - 4} more" if len(rest) > 4 else ""
        regimes = "regimes of the run are" if len(rest) > 1 else "regime of the run is"
        said.append(f"{len(rest)} further {regimes} not among the files of figures: {some}")
    return said


@dataclass(frozen=True)
class Contents:
    """What the page, the summary and the files are made from."""

    title: str
    length: int | None
    """At which it opens; None where nothing has a time."""
    headlines: Sequence[str]
    sure: str
    only: Sequence[Only]
    runs: Sequence[ReportRun]
    abouts: Sequence[About]
    scenes: Sequence[Scene]
    looks: Mapping[str, Look]
    baseline: str
    """The variant that times are shown as multiples of; empty where there is none."""
    figures: Sequence[Drawn]
    absent: Mapping[str, Sequence[str]]
    missing: Sequence[Missing]
    comparisons: Sequence[RunsComparison]
    incomparable: Sequence[str]
    to_run: Mapping[int, str]
    """By the number of a run: the path from the report to its folder."""
    claims: Sequence[Mapping[str, Any]] = ()
    model_cost: Sequence[Mapping[str, Any]] = ()


def contents_of(runs: Sequence[ReportRun], out: Path, progress: Progress | None = None) -> Contents:
    """The contents of a report of these runs that will be written to a folder."""
    found = scenes(runs)
    look = looks(record for run in runs for record in run.records)
    base = baseline(found)
    figures, absent = draw_all(runs, found, look, base, progress)
    comparisons, incomparable = list[RunsComparison](), list[str]()
    first, *others = runs
    for other in others:
        names, headers = (first.name, other.name), (first.header, other.header)
        try:
            comparisons.append(compared(names, headers, (first.records, other.records)))
        except Incomparable as error:
            incomparable.append(str(error))
    machines = list(dict.fromkeys(run.machine for run in runs))
    title = f"Which attention to use: {len(runs)} runs on {', '.join(machines)}"
    if len(runs) == 1:
        title = f"Which attention to use on {machine_line(first).partition(' · ')[0]}"
    elif len(machines) == 1:
        title = f"Which attention to use on {machines[0]}: {len(runs)} runs side by side"
    to_run = {run.number: os.path.relpath(run.path.resolve(), out.resolve()) for run in runs}
    return Contents(
        title=title,
        length=(length := usual_length(found)),
        headlines=list(headlines(found, len(runs) > 1, length)),
        runs=runs,
        sure=how_sure(found),
        only=[one for run in runs if (one := only(run, found))],
        abouts=[about(run) for run in runs],
        scenes=found,
        looks=look,
        baseline=base,
        figures=figures,
        absent=absent,
        missing=missing(found),
        comparisons=comparisons,
        incomparable=incomparable,
        to_run={number: quote(Path(path).as_posix()) for number, path in to_run.items()},
        claims=claims_of([run.path for run in runs]),
        model_cost=model_cost([run.path for run in runs]),
    )


BASELINES = ("sdpa", "matmul", "einsum")
"""The first of these that has a time is the baseline."""


def baseline(found: Sequence[Scene]) -> str:
    """The variant that times are shown as multiples of; empty where nothing exact has a time."""
    records = (r for scene in found for r in scene.regime.records)
    timed = Counter(r.variant for r in records if r.time and r.computes == "softmax")
    known = [name for name in BASELINES if timed[name]]
    return (known or sorted(timed, key=lambda name: (-timed[name], name)) or [""])[0]


# ---- evidence beside the runs: claims, and what a variant costs a model --------------------------

MISFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What is raised where a file of evidence is not as attnbench writes it."""
TITLES = {
    "model": "A trained model, its attention replaced by each variant",
    "recall": "What small models recall that were trained with each variant",
    "real": "Error and skill on what that model’s layers hand to attention",
}


def claims_of(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """The newest claims that can be read in each machine's folder that has any."""
    found = []
    for folder in dict.fromkeys(run.resolve().parent for run in runs):
        note = ""
        for path in evidence_of(folder, "reproduce"):
            try:
                found.append({**claims_for_page(read_evidence(path)), "note": note})
                break
            except StoreError as error:
                note = note or str(error)
            except MISFORMED as error:
                note = note or f"{path.name} is not as attnbench writes it ({type(error).__name__})"
        else:
            nothing: dict[str, Any] = {"made": "", "tried": [], "footnote": "", "left": None}
            found += [{"machine": folder.name, "note": note, **nothing}] if note else []
    return found


def model_cost(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """The newest evidence of each kind in each machine's folder, or its newest part."""
    found = []
    for folder in dict.fromkeys(run.resolve().parent for run in runs):
        for kind, title in TITLES.items():
            part: dict[str, Any] | None = None
            for file in evidence_of(folder, kind):
                empty: dict[str, Any] = dict.fromkeys(("conclusions", "tables", "lines"), ())
                about = {"title": title, "file": file.name, "figure": None, **empty}
                try:
                    evidence = read_evidence(file)
                except StoreError as error:
                    part = {**about, "source": str(error)}
                    break
                if not evidence.partial or part is None:
                    part = {**about, **_shown(evidence)}
                if not evidence.partial:
                    break
            found += [part] if part else []
    return found


def _shown(found: Evidence) -> dict[str, Any]:
    """What is shown of a file of evidence, or as its source why it can't be."""
    try:
        made = found.made
        source = f"{made['started'][:10]}, {made['machine']['name']}: {made['command']}"
        if found.partial:
            source += "; stopped before its end: a part of what was asked"
        return {"source": source, **quality_for_page(found)}
    except MISFORMED as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        return {"source": f"it can't be shown: something in it is not what it should be ({first})"}
