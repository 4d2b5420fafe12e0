"""The cells of a report: rows of the table, cards of the answer, and the records behind them."""

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
from attnbench.answer.ranking import Stretch
from attnbench.core import format
from attnbench.core.record import Record, Time
from attnbench.features.report.contents import Beside, Contents, beside, figures, lead
from attnbench.report.figures.sheet import Drawn
from attnbench.report.figures.style import Look
from attnbench.report.scenes import ReportRun, Scene
from attnbench.sweep.presets import PRESETS

MOST = 2500
"""Rows of a page; data.csv has all."""
KINDS = {"softmax": 0, "softmax on its own pattern": 1, "approximates softmax": 1}
"""The order of the kinds, which are never ranked together."""


@dataclass(frozen=True)
class PageCell:
    """One record and its place in the report."""

    number: int
    """Its place among all cells of the report."""
    record: Record
    run: ReportRun
    line: int
    """Its line in the run's records.jsonl, counted from 1."""
    scene: Scene | None
    """None for a cell that was measured again later in its run."""
    look: Look
    to_best: float | None
    """Its median over that of the fastest exact variant at its length."""
    to_baseline: float | None

    @property
    def length(self) -> int:
        """The number of keys."""
        return self.record.problem.kv_len

    @property
    def status(self) -> str:
        """``out of memory``"""
        return str(self.record.status).replace("_", " ")

    @cached_property
    def units(self) -> dict[str, str]:
        """Its time in words, by unit."""
        time, cost = self.record.time, self.record.cost
        if time is None or not time.median_s > 0:
            return dict.fromkeys(("ms", "tflops", "share", "baseline"), format.NONE)
        return {
            "ms": format.ms(time.median_s),
            "tflops": format.figures(cost.flops / time.median_s / 1e12) if cost else format.NONE,
            "share": format.share(self.record.share_of_ceiling),
            "baseline": format.ratio(self.to_baseline),
        }

    @property
    def kept(self) -> str:
        """What it keeps of what softmax does beyond averaging: all of it, if it is softmax."""
        if self.record.distance is not None:
            skill = self.record.distance.skill
        else:
            skill = 1.0 if self.look.exact and self.record.time else None
        return format.share(skill) if skill is None or skill > -0.005 else "< 0"

    @property
    def error(self) -> float | None:
        """The largest relative error of its tensors, against its definition."""
        errors = (self.record.error or {}).values()
        return max((e.relative for e in errors if e.relative is not None), default=None)

    @property
    def order(self) -> tuple[float, ...]:
        """Its place in the table: by regime, the longest first, the exact variants first.

        Of these the fastest come first; what has no time comes last.
        """
        scene, time = self.scene.number if self.scene else math.inf, self.record.time
        if time is None:
            return (scene, -self.length, math.inf, math.inf)
        median = time.median_s if math.isfinite(time.median_s) else math.inf
        return (scene, -self.length, KINDS.get(self.look.computes, 2), median)


def cells_of(contents: Contents) -> list[PageCell]:
    """All cells, run by run in the order of their files."""
    scenes = {id(r): scene for scene in contents.scenes for r in scene.regime.records}
    bars = {
        (scene.number, length): _bars(scene, length, contents.baseline)
        for scene in contents.scenes
        for length in scene.regime.lengths
    }
    cells: list[PageCell] = []
    for run in contents.runs:
        for record, line in zip(run.records, run.lines, strict=True):
            scene = scenes.get(id(record))
            bar = bars[scene.number, record.problem.kv_len] if scene else (None, None)
            best, base = (_over(record.time, other) for other in bar)
            look = contents.looks[record.variant]
            cells.append(PageCell(len(cells), record, run, line, scene, look, best, base))
    return cells


def _bars(scene: Scene, length: int, baseline: str) -> tuple[float | None, float | None]:
    """The medians at a length of the fastest exact variant and of the baseline."""
    timed = scene.regime.timed(length)
    best = min(scene.regime.exact(length).values(), default=None)
    base = timed[baseline].time if baseline in timed else None
    return best, base.median_s if base else None


def _over(time: Time | None, other: float | None) -> float | None:
    if time is None:
        return None
    return time.median_s / other if other and math.isfinite(time.median_s / other) else None


def repeats(record: Record, header: Mapping[str, Any]) -> str:
    """The command that measures this cell again: the same variant on the same problem.

    The grid is given in full, so that no preset of another machine can change it.
    """
    p = record.problem
    words: list[Any] = ["attnbench", "run", record.variant, *words_of(p)]
    words += ["--world", record.ranks.world] if record.ranks else []
    words += ["--seed", record.seed] if record.seed else []
    threads, budget = (header.get("settings") or {}).get("threads"), header.get("budget_s")
    words += ["--threads", threads] if threads else []
    preset = PRESETS["cuda" if p.device.startswith("cuda") else "cpu"]
    words += ["--budget", budget] if budget and budget != preset.budget else []
    words += ["--energy"] if header.get("energy") else []
    for table in header.get("tables") or ():
        words += ["--table", table]
    return shlex.join(map(str, words))


NAMED = 3
"""Of variants that can't be told from the winner, how many are named; the rest is counted."""
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
    """How many others tie."""
    cell: PageCell | None
    """The winner's at the longest of these lengths."""
    beside: Beside | None
    other: Look | None
    """The variant that ``beside`` names."""

    @property
    def badges(self) -> Sequence[tuple[str, str]]:
        """How sure it is at all lengths: marks (clear, tie, only, doubt) with their words."""
        answer = self.stretch.last.answer
        if answer is None:
            return ()
        doubt = [("doubt", "in doubt")] if self.doubts else []
        if answer.equal:
            return [("tie", f"a tie of {len(answer.equal) + 1}"), *doubt]
        if answer.next is None:
            return [("only", "the only one"), *doubt]
        return doubt or [("clear", "clear")]

    @property
    def lead(self) -> str:
        """``1.31× [1.28, 1.34] faster than chunked``"""
        answer = self.stretch.last.answer
        if answer is None:
            return ""
        if answer.next is not None:
            return f"{lead(self.stretch.last)} faster than {answer.next}"
        return (
            "none that is exact is slower for sure" if answer.equal else "nothing exact beside it"
        )

    @property
    def memory(self) -> str:
        """What the winner needs, and a variant that needs much less."""
        answer = self.stretch.last.answer
        if answer is None or answer.memory_bytes is None:
            return ""
        text = format.nbytes(answer.memory_bytes)
        if answer.frugal:
            name, least, slower = answer.frugal
            text += f" ({name}: {format.nbytes(least)} at {format.ratio(slower)} the time)"
        return text

    @property
    def doubts(self) -> str:
        """What was amiss at any of these lengths, the first few named."""
        doubts = self.stretch.doubts
        rest = f"; {len(doubts) - DOUBTS} more" if len(doubts) > DOUBTS else ""
        return "; ".join(doubts[:DOUBTS]) + rest


@dataclass(frozen=True)
class Card:
    """One regime."""

    scene: Scene
    rows: Sequence[CardRow]
    """The longest lengths first: they are what readers ask about."""
    untimed: int
    """How many of its cells have no time."""

    @property
    def linked(self) -> list[PageCell]:
        """The cells whose numbers are on the card, with links to their records."""
        return [c for row in self.rows for c in (row.cell, *row.tied) if c is not None]


def cards(
    scenes: Sequence[Scene], looks: Mapping[str, Look], cells: Sequence[PageCell]
) -> list[Card]:
    """One for each regime in which anything has a time."""
    by_record = {id(cell.record): cell for cell in cells}
    made = []
    for scene in scenes:
        if scene.timed:
            rows = [_row(scene, stretch, looks, by_record) for stretch in scene.stretches[::-1]]
            made.append(Card(scene, rows, sum(r.time is None for r in scene.regime.records)))
    return made


def _row(
    scene: Scene,
    stretch: Stretch,
    looks: Mapping[str, Look],
    by_record: Mapping[int, PageCell],
) -> CardRow:
    last = stretch.last
    records = scene.regime.cells[last.length]
    leaders = [by_record.get(id(records.get(name))) for name in last.leaders]
    winner = looks.get(last.leaders[0]) if last.leaders else None
    tied = [cell for cell in leaders[1:] if cell is not None]
    sentence = beside(last)
    other = looks[sentence.found.variant] if sentence and sentence.found else None
    more = max(0, len(tied) - NAMED)
    first = leaders[0] if leaders else None
    return CardRow(stretch, winner, tied[:NAMED], more, first, sentence, other)


LEVEL = 6
FIGURES = 7
"""How many figures of a number the page keeps; the file that it names has them all."""
STOPS = {
    "budget": "stopped by its budget",
    "plateau": "stopped when its interval narrowed no more",
    "converged": "stopped when its interval was within 1\N{NO-BREAK SPACE}%",
}


def packed(contents: Contents, cells: Sequence[PageCell]) -> str:
    """What :func:`page_data` returns, compressed, as one word."""
    text = json.dumps(page_data(contents, cells), allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), LEVEL)).decode()


def later(figure: Drawn) -> bool:
    """Whether a figure is on the page only once its unit is chosen."""
    return figure.unit not in ("", "ms")


def page_data(contents: Contents, cells: Sequence[PageCell]) -> dict[str, Any]:
    """``cells`` by their numbers; ``csv`` and ``svg`` by the names of figures."""
    return {
        "cells": {cell.number: _cell_data(contents, cell) for cell in cells},
        "csv": {figure.name: figure.csv for figure in contents.figures},
        "svg": {figure.name: figure.inline for figure in contents.figures if later(figure)},
    }


def _cell_data(contents: Contents, cell: PageCell) -> dict[str, Any]:
    where = cell.scene.regime if cell.scene else cell.record.problem.phase
    return {
        "title": f"{cell.record.variant} at {cell.length:,} tokens: {where}",
        "file": f"{contents.to_run[cell.run.number]}/records.jsonl",
        "line": cell.line,
        "summary": summarize(cell),
        "repeat": repeats(cell.record, cell.run.header),
        "record": _short(cell.record.to_dict()),
    }


def summarize(cell: PageCell) -> str:
    """A record in a line: ``550 ms [466, 568] · 9 samples, stopped by …``"""
    record, time = cell.record, cell.record.time
    if time is None:
        parts = [f"{cell.status}: {record.reason}" if record.reason else cell.status]
    else:
        stop = STOPS.get(time.stop, f"stopped: {time.stop}")
        parts = [figures(time), f"{time.n:,} sample{'' if time.n == 1 else 's'}, {stop}"]
    if record.memory:
        parts.append(f"peak {format.nbytes(record.memory.peak_bytes)}")
    if cell.error is not None:
        error = format.three(cell.error).replace("-", "\N{NON-BREAKING HYPHEN}")  # 4e-7 is a word
        parts.append(f"worst error {error}")
    if time and time.flags:
        parts.append(f"in doubt: {'; '.join(time.flags)}")
    return " · ".join(parts)


def _short(value: Any) -> Any:
    """The value with shorter numbers, and without the samples of a time."""
    if isinstance(value, float):
        return float(f"{value:.{FIGURES}g}")
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items() if key != "samples_s"}
    return [_short(inner) for inner in value] if isinstance(value, list) else value
