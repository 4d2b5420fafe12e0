"""The cells of a report: rows of the table, cards of the answer, and the records behind them."""

from __future__ import annotations

import base64
import json
import math
import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.answer.paste import words_of
from attnbench.answer.ranking import Answer, Stretch
from attnbench.core import format
from attnbench.core.record import Record
from attnbench.features.report.contents import Contents, beside, figures
from attnbench.report.figures.style import Look
from attnbench.report.scenes import ReportRun, Scene
from attnbench.sweep.presets import PRESETS

MOST = 2500
KINDS = {"softmax": 0, "softmax on its own pattern": 1, "approximates softmax": 1}
"""The order of the kinds, which are never ranked together."""


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
    look: Look
    to_best: float | None = None
    """Its median over that of the fastest exact variant at its length."""
    to_baseline: float | None = None

    @property
    def length(self) -> int:
        """The number of keys."""
        return self.record.problem.kv_len

    @property
    def status(self) -> str:
        """``out of memory``"""
        return str(self.record.status).replace("_", " ")

    @property
    def units(self) -> dict[str, str]:
        """Its time in words, by unit."""
        time, cost = self.record.time, self.record.cost
        return {
            "ms": format.ms(time.median_s if time else None),
            "tflops": format.figures(cost.flops / time.median_s / 1e12 if time and cost else None),
            "share": format.share(self.record.share_of_ceiling if time else None),
            "baseline": format.ratio(self.to_baseline),
        }

    @property
    def kept(self) -> str:
        """What it keeps of what softmax does beyond averaging: all of it, if it is softmax."""
        skill = 1.0 if self.look.exact and self.record.time else None
        if self.record.distance is not None:
            skill = self.record.distance.skill
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
        time, kind = self.record.time, KINDS.get(self.look.computes, 2)
        rank = (kind, time.median_s) if time else (math.inf, math.inf)
        return (self.scene.number if self.scene else math.inf, -self.length, *rank)


def cells_of(contents: Contents) -> list[PageCell]:
    """All cells, run by run in the order of their files."""
    scenes = {id(r): scene for scene in contents.scenes for r in scene.regime.records}
    medians: dict[tuple[int, int], tuple[float | None, float | None]] = {}
    for scene in contents.scenes:  # of the fastest exact variant and of the baseline
        for length in scene.regime.lengths:
            base = scene.regime.timed(length).get(contents.baseline)
            best = min(scene.regime.exact(length).values(), default=None)
            both = best, base.time.median_s if base and base.time else None
            medians[scene.number, length] = both
    cells: list[PageCell] = []
    for run in contents.runs:
        for record, line in zip(run.records, run.lines, strict=True):
            found, over = scenes.get(id(record)), list[float | None]()
            if found and (time := record.time):
                others = medians[found.number, record.problem.kv_len]
                over = [time.median_s / other if other else None for other in others]
            look = contents.looks[record.variant]
            cells.append(PageCell(len(cells), record, run, line, found, look, *over))
    return cells


def repeats(record: Record, header: Mapping[str, Any]) -> str:
    """The command that measures this cell again: the same variant on the same problem.

    The grid is given in full, so that no preset of another machine can change it.
    """
    p = record.problem
    budget = header.get("budget_s")
    if budget == PRESETS["cuda" if p.device.startswith("cuda") else "cpu"].budget:
        budget = None
    options = {
        "--world": record.ranks and record.ranks.world,
        "--seed": record.seed,
        "--threads": (header.get("settings") or {}).get("threads"),
        "--budget": budget,
    }
    words: list[Any] = ["attnbench", "run", record.variant, *words_of(p)]
    words += (word for name, value in options.items() if value for word in (name, value))
    words += ["--energy"] if header.get("energy") else []
    words += (word for table in header.get("tables") or () for word in ("--table", table))
    return shlex.join(map(str, words))


NAMED = 3
"""Of variants that can't be told from the winner, how many are named; the rest is counted."""
DOUBTS = 3


def cards(
    scenes: Sequence[Scene], looks: Mapping[str, Look], cells: Sequence[PageCell]
) -> list[dict[str, Any]]:
    """For each regime in which anything has a time its rows, the longest lengths first.

    They are what readers ask about. Beside them ``untimed``: how many of its cells have no time.
    """
    by_record = {id(cell.record): cell for cell in cells}
    return [
        {
            "scene": scene,
            "rows": [_row(scene, stretch, looks, by_record) for stretch in scene.stretches[::-1]],
            "untimed": sum(r.time is None for r in scene.regime.records),
        }
        for scene in scenes
        if scene.timed
    ]


def linked(cards: Sequence[Mapping[str, Any]]) -> Iterator[PageCell]:
    """The cells whose numbers are on the cards, with links to their records."""
    for row in (row for card in cards for row in card["rows"]):
        yield from row["tied"]
        if row["cell"]:
            yield row["cell"]


def _row(
    scene: Scene,
    stretch: Stretch,
    looks: Mapping[str, Look],
    by_record: Mapping[int, PageCell],
) -> dict[str, Any]:
    """One stretch of lengths: ``winner`` is None where nothing exact has a time."""
    last, answer, sentence = stretch.last, stretch.last.answer, beside(stretch.last)
    records = scene.regime.cells[last.length]
    leaders = [by_record[id(records[name])] for name in last.leaders]
    tied = leaders[1:]
    doubts, more = stretch.doubts, len(stretch.doubts) - DOUBTS
    return {
        "stretch": stretch,
        "winner": looks[answer.winner] if answer else None,
        "cell": leaders[0] if leaders else None,
        "tied": tied[:NAMED],
        "more": max(0, len(tied) - NAMED),
        "badges": _badges(answer, bool(doubts)) if answer else [],
        "lead": _ahead(stretch, answer) if answer else "",
        "memory": _memory(answer) if answer else "",
        "doubts": "; ".join([*doubts[:DOUBTS], *[f"{more} more"] * (more > 0)]),
        "beside": sentence,
        "other": looks[sentence.found.variant] if sentence and sentence.found else None,
    }


def _badges(answer: Answer, doubted: bool) -> list[tuple[str, str]]:
    """How sure it is at all lengths: marks (clear, tie, only, doubt) with their words."""
    doubt = [("doubt", "in doubt")] * doubted
    if answer.equal:
        return [("tie", f"a tie of {len(answer.leaders)}"), *doubt]
    if answer.next is None:
        return [("only", "the only one"), *doubt]
    return doubt or [("clear", "clear")]


def _ahead(stretch: Stretch, answer: Answer) -> str:
    """``1.31× [1.28, 1.34] faster than chunked``"""
    if answer.next is not None:
        return f"{answer.lead} faster than {answer.next}"
    return "none that is exact is slower for sure" if answer.equal else "nothing exact beside it"


def _memory(answer: Answer) -> str:
    """What the winner needs, and a variant that needs much less."""
    if answer.memory_bytes is None:
        return ""
    text = format.nbytes(answer.memory_bytes)
    if answer.frugal:
        name, least, slower = answer.frugal
        text += f" ({name}: {format.nbytes(least)} at {format.ratio(slower)} the time)"
    return text


LEVEL = 6
FIGURES = 7
"""How many figures of a number the page keeps; the file that it names has them all."""
STOPS = {
    "budget": "stopped by its budget",
    "plateau": "stopped when its interval narrowed no more",
    "converged": "stopped when its interval was within 1\N{NO-BREAK SPACE}%",
}


def packed(contents: Contents, cells: Sequence[PageCell]) -> str:
    """``cells`` by their numbers; ``csv`` and ``svg`` by the names of figures: as one word."""
    data = {
        "cells": {cell.number: _cell_data(contents, cell) for cell in cells},
        "csv": {figure.name: figure.csv for figure in contents.figures},
        "svg": {f.name: f.inline for f in contents.figures if f.unit not in ("", "ms")},
    }
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), LEVEL)).decode()


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
