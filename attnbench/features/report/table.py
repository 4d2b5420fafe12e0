"""Every cell of a report as a row: its numbers in all units, and the command that repeats it."""

from __future__ import annotations

import base64
import json
import math
import shlex
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attnbench.answer.paste import words_of
from attnbench.answer.ranking import Answer, Standing, Stretch
from attnbench.core import format
from attnbench.core.record import Record, Time
from attnbench.features.report.contents import Contents, NameSentence, beside, figures, lead
from attnbench.report.figures.sheet import Drawn
from attnbench.report.figures.style import Look
from attnbench.report.scenes import ReportRun, Scene
from attnbench.sweep.presets import PRESETS
from impls.problem import Problem

MOST = 2500
"""Rows that a page holds; the file beside it holds all."""
KINDS = {"softmax": 0, "softmax on its own pattern": 1, "approximates softmax": 1}
"""These are never ranked together."""


@dataclass(frozen=True)
class PageCell:
    """One record, where it stands."""

    number: int
    """Among all of the report."""
    record: Record
    run: ReportRun
    line: int
    """In the run's records.jsonl, counted from 1."""
    scene: Scene | None
    """None of a cell that was measured again later in its run."""
    look: Look
    to_best: float | None
    """Its median over that of the fastest exact one at its length."""
    to_baseline: float | None

    @property
    def length(self) -> int:
        """How many keys."""
        return self.record.problem.kv_len

    @property
    def status(self) -> str:
        """``out of memory``"""
        return str(self.record.status).replace("_", " ")

    @cached_property
    def units(self) -> dict[str, str]:
        """Its time, in each unit."""
        return units(self.record, self.to_baseline)

    @property
    def kept(self) -> str:
        """What it keeps of what softmax does beyond averaging: all of it, if it is softmax."""
        skill = self._skill
        return format.share(skill) if skill is None or skill > -0.005 else "< 0"

    @property
    def _skill(self) -> float | None:
        if self.record.distance is None:
            return 1.0 if self.look.exact and self.record.time else None
        return self.record.distance.skill

    @property
    def error(self) -> float | None:
        """The largest relative error of its tensors, against what it says it computes."""
        told = [e.relative for e in (self.record.error or {}).values() if e.relative is not None]
        return max(told, default=None)


def cells(contents: Contents) -> list[PageCell]:
    """All of them, run by run in the order of their files."""
    scenes = {id(r): scene for scene in contents.scenes for r in scene.regime.records}
    bars = {
        (scene.number, length): _bars(scene, length, contents.baseline)
        for scene in contents.scenes
        for length in scene.regime.lengths
    }
    made: list[PageCell] = []
    for run in contents.runs:
        for record, line in zip(run.records, run.lines, strict=True):
            scene = scenes.get(id(record))
            bar = bars[scene.number, record.problem.kv_len] if scene else (None, None)
            best, base = (_over(record.time, other) for other in bar)
            look = contents.looks[record.variant]
            made.append(PageCell(len(made), record, run, line, scene, look, best, base))
    return made


def in_order(found: Sequence[PageCell]) -> list[PageCell]:
    """As a reader wants them: by regime, the longest first, what is exact before what is not.

    Of these the fastest first; what has no time comes last.
    """

    def place(cell: PageCell) -> tuple[float, ...]:
        scene = cell.scene.number if cell.scene else math.inf
        time = cell.record.time.median_s if cell.record.time else math.inf
        time = time if math.isfinite(time) else math.inf
        kind = math.inf if cell.record.time is None else KINDS.get(cell.look.computes, 2)
        return (scene, -cell.length, kind, time)

    return sorted(found, key=place)


def _bars(scene: Scene, length: int, baseline: str) -> tuple[float | None, float | None]:
    """What times at a length are held against: the fastest exact one's, and the baseline's."""
    beside = scene.regime.timed(length)
    best = min(scene.regime.exact(length).values(), default=None)
    base = beside[baseline].time if baseline in beside else None
    return best, base.median_s if base else None


def _over(time: Time | None, other: float | None) -> float | None:
    if time is None:
        return None
    return time.median_s / other if other and math.isfinite(time.median_s / other) else None


def units(record: Record, to_baseline: float | None) -> dict[str, str]:
    """Its time in words, by unit."""
    time, cost, share = record.time, record.cost, record.share_of_ceiling
    if time is None or not time.median_s > 0:
        return dict.fromkeys(("ms", "tflops", "share", "baseline"), format.NONE)
    return {
        "ms": format.ms(time.median_s),
        "tflops": format.figures(cost.flops / time.median_s / 1e12) if cost else format.NONE,
        "share": format.share(share),
        "baseline": format.ratio(to_baseline),
    }


def repeats(record: Record, header: Mapping[str, Any]) -> str:
    """The command that measures this cell again: the same variant on the same problem.

    The grid is said whole, so that no preset of another machine may change it.
    """
    p = record.problem
    words: list[Any] = ["attnbench", "run", record.variant, *words_of(p)]
    words += ["--world", record.ranks.world] if record.ranks else []
    words += ["--seed", record.seed] * bool(record.seed) + _settings(p, header)
    return shlex.join(map(str, words))


def _settings(p: Problem, header: Mapping[str, Any]) -> list[Any]:
    """What the run was told besides its grid."""
    words: list[Any] = []
    threads, budget = (header.get("settings") or {}).get("threads"), header.get("budget_s")
    words += ["--threads", threads] if threads else []
    preset = PRESETS["cuda" if p.device.startswith("cuda") else "cpu"]
    words += ["--budget", budget] if budget and budget != preset.budget else []
    words += ["--energy"] * bool(header.get("energy"))
    for table in header.get("tables") or ():
        words += ["--table", table]
    return words


NAMED = 3
"""Of variants that can't be told from the winner, so many are named; the rest is counted."""
DOUBTS = 3


@dataclass(frozen=True)
class CardRow:
    """One stretch of lengths."""

    stretch: Stretch
    winner: Look | None
    """None where nothing exact has a time."""
    tied: Sequence[PageCell]
    """Those that can't be told from it, as far as they are named."""
    more: int
    """How many tie besides."""
    cell: PageCell | None
    """The winner's at the longest of these lengths."""
    beside: NameSentence | None
    other: Look | None
    """Of what stands in ``beside``."""

    @property
    def badges(self) -> Sequence[tuple[str, str]]:
        """How sure it is: marks (clear, tie, only, doubt) with their words, of all lengths."""
        answer = self.stretch.last.answer
        if answer is None:
            return ()
        doubt = [("doubt", "in doubt")] * bool(self.doubts)
        if answer.equal:
            return [("tie", f"a tie of {len(answer.equal) + 1}"), *doubt]
        if answer.next is None:
            return [("only", "the only one"), *doubt]
        return doubt or [("clear", "clear")]

    @property
    def lead(self) -> str:
        """``1.31× [1.28, 1.34] faster than chunked``"""
        return _lead(self.stretch.last)

    @property
    def memory(self) -> str:
        """What the winner needs, and what needs much less."""
        answer = self.stretch.last.answer
        return _memory(answer) if answer else ""

    @property
    def doubts(self) -> Sequence[str]:
        """What was amiss, at any of these lengths."""
        return self.stretch.doubts

    @property
    def doubted(self) -> str:
        """The same as a line, the first of them named."""
        told, rest = self.doubts[:DOUBTS], len(self.doubts) - DOUBTS
        return "; ".join(told) + f"; {rest} more" * (rest > 0)


@dataclass(frozen=True)
class Card:
    """One regime."""

    scene: Scene
    rows: Sequence[CardRow]
    """The longest lengths first: they are what is asked about."""
    untimed: int
    """Cells of it that have no time."""
    cells: int

    @property
    def linked(self) -> list[PageCell]:
        """Those whose numbers stand on it, and lead to their records."""
        return [c for row in self.rows for c in (row.cell, *row.tied) if c is not None]


def cards(
    scenes: Sequence[Scene], looks: Mapping[str, Look], cells: Sequence[PageCell]
) -> list[Card]:
    """One for each regime in which anything has a time."""
    of = {id(cell.record): cell for cell in cells}
    made = []
    for scene in scenes:
        if scene.timed:
            rows = [_row(scene, stretch, looks, of) for stretch in reversed(scene.stretches)]
            records = scene.regime.records
            untimed = sum(record.time is None for record in records)
            made.append(Card(scene, rows, untimed, len(records)))
    return made


def _row(
    scene: Scene, stretch: Stretch, looks: Mapping[str, Look], of: Mapping[int, PageCell]
) -> CardRow:
    last = stretch.last
    at = scene.regime.cells[last.length]
    cells = {name: of.get(id(at.get(name))) for name in last.leaders}
    winner = last.leaders[0] if last.leaders else ""
    tied = [cell for name, cell in cells.items() if cell is not None and name != winner]
    said = beside(last)
    other = looks[said.found.variant] if said and said.found else None
    more = max(0, len(tied) - NAMED)
    return CardRow(stretch, looks.get(winner), tied[:NAMED], more, cells.get(winner), said, other)


def _lead(standing: Standing) -> str:
    answer = standing.answer
    if answer is None:
        return ""
    if answer.next is not None:
        return f"{lead(standing)} faster than {answer.next}"
    return "none that is exact is slower for sure" if answer.equal else "nothing exact beside it"


def _memory(answer: Answer) -> str:
    if answer.memory_bytes is None:
        return ""
    text = format.nbytes(answer.memory_bytes)
    if answer.frugal:
        name, least, slower = answer.frugal
        text += f" ({name}: {format.nbytes(least)} at {format.ratio(slower)} the time)"
    return text


LEVEL = 6
FIGURES = 7
"""So many of a number's are kept: the file that the page names has them all."""


def packed(contents: Contents, cells: Sequence[PageCell]) -> str:
    """All of it as one word."""
    text = json.dumps(held(contents, cells), allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), LEVEL)).decode()


def later(figure: Drawn) -> bool:
    """Whether it is on the page only once its unit is asked for: the first one is there at once."""
    return figure.unit not in ("", "ms")


def held(contents: Contents, cells: Sequence[PageCell]) -> dict[str, Any]:
    """By kind: ``cells`` by their numbers; ``csv`` and ``svg`` by the names of figures."""
    return {
        "cells": {cell.number: _cell(contents, cell) for cell in cells},
        "csv": {figure.name: figure.csv for figure in contents.figures},
        "svg": {figure.name: figure.inline for figure in contents.figures if later(figure)},
    }


def _cell(contents: Contents, cell: PageCell) -> dict[str, Any]:
    record = _short(cell.record.to_dict())
    where = cell.scene.regime if cell.scene else cell.record.problem.phase
    return {
        "title": f"{cell.record.variant} at {cell.length:,} tokens: {where}",
        "file": f"{contents.to_run[cell.run.number]}/records.jsonl",
        "line": cell.line,
        "told": told(cell),
        "repeat": repeats(cell.record, cell.run.header),
        "record": record,
    }


STOPS = {
    "budget": "stopped by its budget",
    "plateau": "stopped when its interval narrowed no more",
    "converged": "stopped when its interval was within 1\N{NO-BREAK SPACE}%",
}


def told(cell: PageCell) -> str:
    """A record in a line for people: ``550 ms [466, 568] · 9 samples, stopped by …``"""
    record, time = cell.record, cell.record.time
    if time is None:
        said = [f"{cell.status}: {record.reason}" if record.reason else cell.status]
    else:
        stop = STOPS.get(time.stop, f"stopped: {time.stop}")
        said = [figures(time), f"{time.n:,} sample{'s' * (time.n != 1)}, {stop}"]
    said += [f"peak {format.nbytes(record.memory.peak_bytes)}"] if record.memory else []
    if cell.error is not None:
        error = format.three(cell.error).replace("-", "\N{NON-BREAKING HYPHEN}")  # 4e-7 is a word
        said.append(f"worst error {error}")
    said += [f"in doubt: {'; '.join(time.flags)}"] if time and time.flags else []
    return " · ".join(said)


def _short(value: Any) -> Any:
    """The same with shorter numbers, and without the samples of a time."""
    if isinstance(value, float):
        return float(f"{value:.{FIGURES}g}")
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items() if key != "samples_s"}
    return [_short(inner) for inner in value] if isinstance(value, list) else value
