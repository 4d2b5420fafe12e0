"""The contents of a report, made from its runs: answers, figures, and what is missing."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attnbench.answer.compare_runs import Incomparable, RunsComparison, compared
from attnbench.features.report.contents import Contents, headlines, how_sure, missing, only
from attnbench.features.report.evidence import claims_of, model_cost
from attnbench.features.report.provenance import about, machine_line
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
from attnbench.report.figures.style import Looks, looks
from attnbench.report.scenes import ReportRun, Scene, scenes

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


def draw_all(
    runs: Sequence[ReportRun], scenes: Sequence[Scene], looks: Looks, baseline: str
) -> tuple[list[Drawn], Mapping[str, Sequence[str]]]:
    """All figures in the order of the page, and by section why others are absent."""
    figures: list[Drawn] = []
    absent: dict[str, dict[str, None]] = defaultdict(dict)

    def add(section: str, what: object, draw: Callable[..., Any], *given: Any) -> None:
        try:
            made = draw(*given)
        except Exception as error:  # anything: the rest of the page is not lost with it
            first = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
            absent[section][f"the figure of {what} could not be drawn ({first})"] = None
            return
        if made is not None:
            figures.extend(made if isinstance(made, list) else [made])

    timed = [scene for scene in scenes if scene.timed]
    shown = _shown(timed)
    for scene in shown:
        add("scaling", scene.regime, scaling.draw, scene, looks, baseline)
        add("tradeoffs", scene.regime, tradeoffs.draw, scene, looks)
        add("roofline", scene.regime, roofline.draw, scene, looks)
        add("memory", scene.regime, memory.draw, scene, looks)
    for run in runs:
        add("map", run.name, winner_map.draw, run, scenes, looks)
        add("closeness", run.name, closeness.draw, run, scenes, looks)
        profiles, damaged = shares.read(sorted((run.path / "profiles").rglob("profile.json")))
        absent["shares"] |= dict.fromkeys(damaged)
        add("shares", f"profiles of {run.name}", shares.draw, profiles, looks, run.number)
    kept = [
        (run, *attention.read(file)) for run in runs if (file := run.path / "maps.json").exists()
    ]
    absent["attention"] |= dict.fromkeys(why for _, _, why in kept if why)
    for run, maps, _ in [each for each in kept if each[1]][:1]:  # those of all machines are alike
        add("attention", f"maps of {run.name}", attention.draw, maps, looks, run.number)
    drawn = {figure.section for figure in figures}
    for section, why in WHY_NOT.items():
        if section not in drawn and not absent[section]:
            absent[section][why] = None
    if "scaling" in drawn:
        absent["scaling"] |= dict.fromkeys(_not_in_scaling(timed, timed[len(shown) :]))
    figures.sort(key=lambda figure: SECTIONS.index(figure.section))
    return figures, {name: list(absent[name]) for name in SECTIONS if absent[name]}


def _shown(timed: Sequence[Scene]) -> Sequence[Scene]:
    """The first of them, as far as there is room; at least one."""
    lines = accumulate(len({r.variant for r in scene.regime.records}) for scene in timed)
    room = sum(count <= LINES for count in lines)
    return timed[: max(1, min(room, SCENES))]


def _not_in_scaling(timed: Sequence[Scene], rest: Sequence[Scene]) -> list[str]:
    said = []
    if all(r.energy is None for scene in timed for r in scene.regime.records):
        said.append("no energy was measured; 'attnbench run --energy' does it")
    if rest:
        some = "; ".join(str(scene.regime) for scene in rest[:4])
        some += f"; and {len(rest) - 4} more" if len(rest) > 4 else ""
        regimes = "regimes of the run are" if len(rest) > 1 else "regime of the run is"
        said.append(f"{len(rest)} further {regimes} in the table without figures: {some}")
    return said


BASELINES = ("sdpa", "matmul", "einsum")
"""The first of these that has a time is the baseline."""


def contents_of(runs: Sequence[ReportRun], out: Path) -> Contents:
    """The contents of a report of these runs that will be written to a folder."""
    found = scenes(runs)
    look = looks(record for run in runs for record in run.records)
    base = baseline(found)
    figures, absent = draw_all(runs, found, look, base)
    comparisons, incomparable = _compared(runs)
    to_run = {run.number: os.path.relpath(run.path.resolve(), out.resolve()) for run in runs}
    return Contents(
        title=_title(runs),
        headlines=headlines(found, several_runs=len(runs) > 1),
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
        claims=claims_of(runs),
        model_cost=model_cost([run.path for run in runs], look),
    )


def baseline(found: Sequence[Scene]) -> str:
    """The variant that times are shown as multiples of; empty where nothing exact has a time."""
    records = (r for scene in found for r in scene.regime.records)
    timed = Counter(r.variant for r in records if r.time and r.computes == "softmax")
    known = [name for name in BASELINES if timed[name]]
    return (known or sorted(timed, key=lambda name: (-timed[name], name)) or [""])[0]


def _title(runs: Sequence[ReportRun]) -> str:
    if len(runs) == 1:
        return f"Which attention to use on {machine_line(runs[0]).partition(' · ')[0]}"
    machines = dict.fromkeys(run.machine for run in runs)
    if len(machines) == 1:
        return f"Which attention to use on {runs[0].machine}: {len(runs)} runs side by side"
    return f"Which attention to use: {len(runs)} runs on {', '.join(machines)}"


def _compared(runs: Sequence[ReportRun]) -> tuple[list[RunsComparison], list[str]]:
    """Each other run against the first, and why some can't be compared."""
    (a, *others), made, refused = runs, [], []
    for b in others:
        names, headers, records = (a.name, b.name), (a.header, b.header), (a.records, b.records)
        try:
            made.append(compared(names, headers, records))
        except Incomparable as error:
            refused.append(str(error))
    return made, refused
