"""The contents of a report, made from its runs: answers and evidence, every measurement, what the
page's script draws from, and what it unpacks.
"""

from __future__ import annotations

import base64
import json
import math
import os
import shlex
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attnbench.answer.paste import (
    command_words,
    in_transformers,
    lines,
    repeats,
    table_options,
)
from attnbench.answer.ranking import EXACT, with_same
from attnbench.answer.regimes import time_of
from attnbench.answer.standings import Standing
from attnbench.core import format
from attnbench.core.evidence import Evidence, newest_evidence
from attnbench.core.format import positive
from attnbench.core.record import NOT_TRIED, Record, Time
from attnbench.core.wire import plain
from attnbench.features.claims.view import claims_for_page
from attnbench.features.quality.verb import quality_for_page
from attnbench.report.figures.style import MARKERS, VariantLook, looks
from attnbench.report.scenes import ReportRun, Scene, scenes
from attnbench.report.sentences import (
    Headline,
    Missing,
    Only,
    distinct_words,
    headlines,
    how_sure,
    missing,
    only,
    parts,
    usual_length,
)
from impls import Table, own_rows
from impls.errors import CantBeDone
from impls.loading import mathematics
from impls.problem import Problem
from impls.spec import Variant


@dataclass(frozen=True)
class Contents:
    """The data of the page, the summary and the files."""

    title: str
    length: int | None
    """At which it opens; None where nothing has a time."""
    headlines: Sequence[Headline]
    confidence: str
    only: Sequence[Only]
    runs: Sequence[ReportRun]
    scenes: Sequence[Scene]
    looks: Mapping[str, VariantLook]
    missing: Sequence[Missing]
    to_run: Mapping[int, str]
    """The path from the report to the folder of each run, by its number."""
    claims: Sequence[Mapping[str, Any]] = ()
    model_cost: Sequence[Mapping[str, Any]] = ()


def contents_of(runs: Sequence[ReportRun], out: Path) -> Contents:
    """The contents of a report of these runs that will be written to a folder."""
    all_scenes = scenes(runs)
    length = usual_length(all_scenes)
    folders = list(dict.fromkeys(run.path.resolve().parent for run in runs))
    to_run = {run.number: os.path.relpath(run.path.resolve(), out.resolve()) for run in runs}
    return Contents(
        title=_title(runs),
        length=length,
        headlines=headlines(all_scenes, len(runs) > 1, length),
        confidence=how_sure(all_scenes),
        only=[best for run in runs if (best := only(run, all_scenes))],
        runs=runs,
        scenes=all_scenes,
        looks=looks(record for run in runs for record in run.records),
        missing=missing(all_scenes),
        to_run={number: quote(Path(path).as_posix()) for number, path in to_run.items()},
        claims=[claims for folder in folders for claims in claims_of(folder)],
        model_cost=[cost for folder in folders for cost in model_cost(folder)],
    )


def _title(runs: Sequence[ReportRun]) -> str:
    machines = list(dict.fromkeys(run.machine for run in runs))
    if len(runs) == 1:
        return f"Which attention to use on {runs[0].machine_line.partition(' · ')[0]}"
    if len(machines) == 1:
        return f"Which attention to use on {machines[0]}: {len(runs)} runs side by side"
    return f"Which attention to use: {len(runs)} runs on {', '.join(machines)}"


# ---- evidence beside the runs: claims, and what a variant costs a model --------------------------

TITLES = {
    "lm": "A causal language model, its attention replaced by each variant",
    "caches": "What a causal language model keeps with each cache",
    "model": "A trained model, its attention replaced by each variant",
    "recall": "What small models recall that were trained with each variant",
    "real": "Error and skill on what that model’s layers hand to attention",
}


def claims_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The newest claims in a machine's folder, or a note on why they can't be read."""
    nothing: dict[str, Any] = {"made": "", "tried": [], "footnote": "", "left": None, "note": ""}
    for _, claims in newest_evidence(folder, "reproduce", claims_for_page):
        shown = {"note": claims} if isinstance(claims, str) else claims
        yield {"machine": folder.name, **nothing, **shown}


def model_cost(folder: Path) -> Iterator[dict[str, Any]]:
    """The newest evidence of each kind in a machine's folder."""
    nothing: dict[str, Any] = {"conclusions": (), "tables": (), "lines": (), "figure": None}
    for kind, title in TITLES.items():
        for file, cost in newest_evidence(folder, kind, _model_cost):
            shown = {"source": cost} if isinstance(cost, str) else cost
            yield {"title": title, "file": file.name, **nothing, **shown}


def _model_cost(evidence: Evidence) -> dict[str, Any]:
    header = evidence.made
    source = f"{header['started'][:10]}, {header['machine']['name']}: {header['command']}"
    if evidence.partial:
        source += "; stopped before its end: a part of what was asked"
    return {"source": source, **quality_for_page(evidence)}


# ---- one measurement -----------------------------------------------------------------------------


@dataclass(frozen=True)
class PageCell:
    """One record and its place in the report."""

    number: int
    record: Record
    run: ReportRun
    line: int
    """Its line in the run's records.jsonl, counted from 1."""
    scene: Scene | None
    """None for a cell that was measured again later in its run."""
    look: VariantLook
    to_best: float | None = None
    """Its median over that of the fastest exact variant at its length."""

    @property
    def units(self) -> dict[str, str]:
        """Its time in words, by unit."""
        time, cost = self.record.time, self.record.cost
        return {
            "ms": format.ms(time.median_s if time else None),
            "tflops": format.figures(cost.flops / time.median_s / 1e12 if time and cost else None),
            "share": format.percent(self.record.share_of_ceiling if time else None),
        }

    @property
    def fidelity(self) -> str:
        """Its fidelity to softmax in words: all of it, if it is softmax."""
        skill = 1.0 if self.look.exact and self.record.time else None
        if self.record.distance is not None:
            skill = self.record.distance.skill
        if skill is None or skill >= 0.0005:
            return format.percent(skill)
        return "< 0" if skill <= -0.005 else format.percent(0.0)

    @property
    def parts(self) -> str:
        """The parts of its time, and what it selects."""
        return parts(self.record)


def cells_of(contents: Contents) -> list[PageCell]:
    """All cells, run by run in the order of their files."""
    scenes = {id(r): scene for scene in contents.scenes for r in scene.regime.records}
    best = {
        (scene.number, length): min(scene.regime.exact(length).values(), default=None)
        for scene in contents.scenes
        for length in scene.regime.lengths
    }
    cells: list[PageCell] = []
    for run in contents.runs:
        for record, line in zip(run.records, run.lines, strict=True):
            home, to_best = scenes.get(id(record)), None
            fastest = best[home.number, record.problem.kv_len] if home else None
            if fastest and record.time:
                to_best = record.time.median_s / fastest
            look = contents.looks[record.variant]
            cells.append(PageCell(len(cells), record, run, line, home, look, to_best))
    return cells


def place(cell: PageCell) -> tuple[float, ...]:
    """In the table: by regime, the longest first, by kind, the fastest first, the untimed last."""
    kinds = {"softmax": 0, "softmax on its own pattern": 1, "approximates softmax": 1}
    time, kind = cell.record.time, kinds.get(cell.look.computes, 2)
    rank = (kind, time.median_s) if time else (math.inf, math.inf)
    return (cell.scene.number if cell.scene else math.inf, -cell.record.problem.kv_len, *rank)


# ---- what the script draws from ------------------------------------------------------------------

AXES = ("run", "phase", "mask", "dtype")


def axes_of(scene: Scene) -> dict[str, str]:
    """The values by which regimes are filtered."""
    regime = scene.regime
    return dict(zip(AXES, (scene.run.name, regime.phase, regime.mask, regime.dtype), strict=True))


def lengths_of(scenes: Sequence[Scene]) -> list[int]:
    """Every length at which anything has a time, the shortest first."""
    return sorted({s.length for scene in scenes for s in scene.standings if s.timed})


def drawing(contents: Contents, numbers: Mapping[int, int]) -> dict[str, Any]:
    """All data of the figures. ``numbers``: the number of a record's cell, by its identity."""
    place = {name: look.number for name, look in contents.looks.items()}
    apart, scenes = distinct_words(contents.scenes), dict[int, Any]()
    timed, untimed = list[dict[str, Any]](), list[list[Any]]()
    for scene in contents.scenes:
        scenes[scene.number] = {
            **axes_of(scene),
            "title": apart[scene.number],
            "unit": scene.regime.unit,
            "lengths": [s.length for s in scene.standings if s.timed],
            "margin": shorten(scene.run.margin),
            "names": {place[name]: with_same(name, x) for name, x in scene.one_kernel.items()},
            "left_out": [place[name] for some in scene.one_kernel.values() for name in some],
            "answers": {s.length: _answer(scene, s, place) for s in scene.standings},
            "ask": {s.length: words for s in scene.standings if (words := _ask(scene, s.length))},
            "crossings": list(map(str, scene.crossings)),
        }
        for length, cells in scene.regime.cells.items():
            for name, record in cells.items():
                place_of = {
                    "scene": scene.number,
                    "variant": place[name],
                    "length": length,
                    "number": numbers[id(record)],
                }
                if time := time_of(record):
                    timed.append({**place_of, **shorten(_values(record, time))})
                else:
                    untimed.append([*place_of.values(), record.status.words])
    return {
        "fields": list(timed[0]) if timed else [],
        "variants": [
            [x.variant, x.family, x.computes, x.hue, MARKERS.index(x.marker)]
            for x in contents.looks.values()
        ],
        "scenes": scenes,
        "timed": [list(cell.values()) for cell in timed],
        "untimed": untimed,
        "lengths": lengths_of(contents.scenes),
        "length": contents.length,
    }


def why_none(scene: Scene, length: int) -> str:
    """The reason why a length has no winner; exact variants that were tried come first."""
    records = list(scene.regime.cells.get(length, {}).values())
    exact = [r for r in records if r.computes == EXACT]
    if not exact:
        return "nothing exact was tried" if records else "not run"
    tried = [r for r in exact if r.status not in NOT_TRIED]
    return Counter(r.status for r in tried or exact).most_common(1)[0][0].words


def shorten(value: Any, digits: int = 5) -> Any:
    """A value with fewer significant digits; None for a number that is not finite."""
    if isinstance(value, dict):
        return {key: shorten(inner, digits) for key, inner in value.items()}
    if isinstance(value, list):
        return [shorten(inner, digits) for inner in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _values(record: Record, time: Time) -> dict[str, float | None]:
    """The fields of a measurement: seconds, bytes, joules."""
    memory, far, work, exact = record.memory, record.distance, record.cost, record.computes == EXACT
    return {
        "s": time.median_s,
        "low": time.low_s,
        "high": time.high_s,
        "peak": positive(memory.peak_bytes) if memory else None,
        "saved": positive(memory.saved_bytes) if memory else None,
        "cache": record.bytes_a_token,
        "error": positive(record.worst_error),
        "distance": None if exact or not far else positive(far.relative),
        "fidelity": 1 if exact else far.skill if far else None,
        "share": positive(record.share_of_ceiling),
        "flops": positive(work.flops) if work else None,
        "joules": positive(record.energy.joules) if record.energy else None,
        "noisy": int(bool(time.doubts)),
    }


def _answer(scene: Scene, standing: Standing, place: Mapping[str, int]) -> dict[str, Any]:
    """The winner and what ties with it, or why there is none."""
    if (answer := standing.answer) is None:
        return {"why": why_none(scene, standing.length)}
    return {
        "use": place[answer.winner],
        "ties": [place[name] for name in answer.equal],
        "next": place[answer.next] if answer.next else -1,
        "lead": shorten(answer.lead.value) if answer.lead else None,
        "noisy": int(bool(answer.flags)),
    }


def _ask(scene: Scene, length: int) -> str:
    """The words of a command for the problem at a length; empty where no command can measure it."""
    record = next(iter(scene.regime.cells[length].values()))
    return shlex.join(
        [*command_words(record.problem, whole=False), *table_options(scene.run.header)]
    )


# ---- the facts of a variant ----------------------------------------------------------------------


def panels_of(contents: Contents) -> dict[str, dict[str, Any]]:
    """The facts of each variant, by its number in the report."""
    problems: dict[str, dict[int, Problem]] = {}
    for scene in contents.scenes:
        for record in scene.regime.records:
            problems.setdefault(record.variant, {})[scene.number] = record.problem
    table, panels = Table(dict(own_rows())), {}
    for name, look in contents.looks.items():
        try:
            row = table.find(name)
        except CantBeDone:
            row = None
        about = _row(row) if row else {"facts": []}
        core = not row or row.level == "core"
        code = {n: "\n".join(lines(name, p)) for n, p in problems.get(name, {}).items() if core}
        own = problems.get(name, {}).values()
        model = in_transformers(name, problems=own) if core and look.family != "parallel" else []
        panels[str(look.number)] = {**about, "code": code, "transformers": "\n".join(model)}
    return panels


def _row(row: Variant) -> dict[str, Any]:
    """Its title, its mathematics, and the first facts; 'attnbench show' has all."""
    needs = ", ".join([*row.requires, *(["CUDA"] if row.devices == ("cuda",) else [])])
    facts = {
        "Paper": row.paper,
        "Written by": row.origin,
        "Needs": f"{needs} ({row.install})" if needs and row.install else needs or "torch alone",
        "Options": ", ".join(f"{k}={v}" for k, v in row.chosen.items() if k != "core"),
    }
    some = [[name, value] for name, value in facts.items() if value]
    return {"title": row.title, "mathematics": mathematics(row.build), "facts": some}


# ---- the packed records --------------------------------------------------------------------------

DIGITS = 7
"""Significant digits that the page keeps of a number; the file that it names has them all."""


def pack(contents: Contents, cells: Sequence[PageCell]) -> str:
    """``cells`` and ``panels`` by their numbers: as one word."""
    records = {}
    for cell in cells:
        p, record = cell.record.problem, plain(cell.record)
        if record["time"]:
            del record["time"]["samples_s"]
        where = cell.scene.regime if cell.scene else p.phase
        records[cell.number] = {
            "title": f"{cell.record.variant} at {p.kv_len:,} tokens: {where}",
            "file": f"{contents.to_run[cell.run.number]}/records.jsonl",
            "line": cell.line,
            "repeat": repeats(cell.record, cell.run.header),
            "record": shorten(record, DIGITS),
        }
    data = {"cells": records, "panels": panels_of(contents)}
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(errors="backslashreplace"), 6)).decode()
