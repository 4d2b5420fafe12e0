"""The contents of a report, made from its runs: answers, figures, and what is missing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attnbench.answer.compare_runs import Incomparable, RunsComparison, compared
from attnbench.features.report.contents import Contents, headlines, how_sure, missing, only
from attnbench.features.report.evidence import claims_of, model_cost
from attnbench.features.report.provenance import about, machine_line, method
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
MAPS = "maps.json"
PROFILES = "profiles"
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


@dataclass
class _Sheets:
    """The figures so far, and by section why others are absent."""

    figures: list[Drawn] = field(default_factory=list)
    absent: dict[str, list[str]] = field(default_factory=dict)

    def add(self, section: str, draw: Callable[..., Any], *arguments: Any, what: str) -> None:
        """Call a function that draws; whatever it raises becomes a sentence."""
        try:
            made = draw(*arguments)
        except Exception as error:  # anything: the rest of the page is not lost with it
            first = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
            self.say(section, f"the figure of {what} could not be drawn ({first})")
            return
        if made is not None:
            self.figures += made if isinstance(made, list) else [made]

    def say(self, section: str, sentence: str) -> None:
        if sentence not in self.absent.setdefault(section, []):
            self.absent[section].append(sentence)


def draw_all(
    runs: Sequence[ReportRun], scenes: Sequence[Scene], looks: Looks, baseline: str
) -> tuple[list[Drawn], Mapping[str, Sequence[str]]]:
    """All figures in the order of the page, and by section why others are absent."""
    sheets = _Sheets()
    timed = [scene for scene in scenes if scene.timed]
    shown = _shown(timed)
    for run in runs:
        sheets.add("map", winner_map.draw, run, scenes, looks, what=run.name)
    for scene in shown:
        what = str(scene.regime)
        sheets.add("scaling", scaling.draw, scene, looks, baseline, what=what)
        sheets.add("tradeoffs", tradeoffs.draw, scene, looks, what=what)
        sheets.add("roofline", roofline.draw, scene, looks, what=what)
        sheets.add("memory", memory.draw, scene, looks, what=what)
    for run in runs:
        sheets.add("closeness", closeness.draw, run, scenes, looks, what=run.name)
        _draw_profiles(sheets, run, looks)
    _draw_maps(sheets, runs, looks)
    _explain_absent(sheets, timed, len(shown))
    figures = sorted(sheets.figures, key=lambda figure: SECTIONS.index(figure.section))
    return figures, {name: sheets.absent[name] for name in SECTIONS if name in sheets.absent}


def _draw_profiles(sheets: _Sheets, run: ReportRun, looks: Looks) -> None:
    paths = sorted((run.path / PROFILES).rglob("profile.json"))
    if not paths:
        return
    profiles, damaged = shares.read(paths)
    for sentence in damaged:
        sheets.say("shares", sentence)
    if profiles:
        what = f"profiles of {run.name}"
        sheets.add("shares", shares.draw, profiles, looks, run.number, what=what)


def _draw_maps(sheets: _Sheets, runs: Sequence[ReportRun], looks: Looks) -> None:
    """Draw the maps of the first run that has any: they are the same on every machine."""
    for run in runs:
        if not (run.path / MAPS).exists():
            continue
        maps, damaged = attention.read(run.path / MAPS)
        if damaged:
            sheets.say("attention", damaged)
        if maps is not None:
            what = f"{MAPS} of {run.name}"
            sheets.add("attention", attention.draw, maps, looks, run.number, what=what)
            return


def _shown(timed: Sequence[Scene]) -> Sequence[Scene]:
    """The first of them, as far as there is room; at least one."""
    lines = accumulate(len({r.variant for r in scene.regime.records}) for scene in timed)
    room = sum(count <= LINES for count in lines)
    return timed[: max(1, min(room, SCENES))]


def _explain_absent(sheets: _Sheets, timed: Sequence[Scene], shown: int) -> None:
    drawn = {figure.section for figure in sheets.figures}
    for section in SECTIONS:
        if section not in drawn and section not in sheets.absent:
            sheets.say(section, WHY_NOT[section])
    if "scaling" in drawn:
        if all(r.energy is None for scene in timed for r in scene.regime.records):
            sheets.say("scaling", "no energy was measured; 'attnbench run --energy' does it")
        if rest := timed[shown:]:
            some = "; ".join(str(scene.regime) for scene in rest[:4])
            more = f"; and {len(rest) - 4} more" if len(rest) > 4 else ""
            regimes = "regimes of the run are" if len(rest) > 1 else "regime of the run is"
            sheets.say(
                "scaling",
                f"{len(rest)} further {regimes} in the table without figures: {some}{more}",
            )


BASELINES = ("sdpa", "matmul", "einsum")
"""The first of these that has a time is the baseline."""


def contents_of(runs: Sequence[ReportRun], out: Path) -> Contents:
    """The contents of a report of these runs that will be written to a folder."""
    found = scenes(runs)
    records = [record for run in runs for record in run.records]
    look = looks(records)
    base = baseline(found)
    figures, absent = draw_all(runs, found, look, base)
    comparisons, incomparable = _compared(runs)
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
        method=method(runs),
        to_run={run.number: _address(run.path, out) for run in runs},
        claims=claims_of(runs),
        model_cost=model_cost([run.path for run in runs], look),
    )


def baseline(found: Sequence[Scene]) -> str:
    """The variant that times are shown as multiples of; empty where nothing exact has a time."""
    timed = Counter(
        r.variant
        for scene in found
        for r in scene.regime.records
        if r.time is not None and r.computes == "softmax"
    )
    for name in BASELINES:
        if timed[name]:
            return name
    return min(timed, key=lambda name: (-timed[name], name), default="")


def _title(runs: Sequence[ReportRun]) -> str:
    if len(runs) == 1:
        return f"Which attention to use on {machine_line(runs[0]).partition(' · ')[0]}"
    machines = dict.fromkeys(run.machine for run in runs)
    if len(machines) == 1:
        return f"Which attention to use on {runs[0].machine}: {len(runs)} runs side by side"
    return f"Which attention to use: {len(runs)} runs on {', '.join(machines)}"


def _compared(runs: Sequence[ReportRun]) -> tuple[list[RunsComparison], list[str]]:
    """Each other run against the first, and why some can't be compared."""
    first, *others = runs
    made, refused = [], []
    for run in others:
        try:
            made.append(
                compared(
                    (first.name, run.name), (first.header, run.header), (first.records, run.records)
                )
            )
        except Incomparable as error:
            refused.append(str(error))
    return made, refused


def _address(run: Path, out: Path) -> str:
    """The address of a run's folder, relative to the report."""
    return quote(Path(os.path.relpath(run.resolve(), out.resolve())).as_posix())
