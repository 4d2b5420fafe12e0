"""A measurement of the page: its place, its ratios, its units, and the command that repeats it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.answer.paste import command_words
from attnbench.core import format
from attnbench.core.record import Record
from attnbench.features.report.build import Contents
from attnbench.report.figures.style import Look
from attnbench.report.scenes import ReportRun, Scene
from attnbench.report.sentences import figures
from attnbench.sweep.presets import PRESETS


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
    def units(self) -> dict[str, str]:
        """Its time in words, by unit."""
        time, cost = self.record.time, self.record.cost
        return {
            "ms": format.ms(time.median_s if time else None),
            "tflops": format.figures(cost.flops / time.median_s / 1e12 if time and cost else None),
            "share": format.percent(self.record.share_of_ceiling if time else None),
            "baseline": format.ratio(self.to_baseline),
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
            home, ratios = scenes.get(id(record)), list[float | None]()
            if home and (time := record.time):
                others = medians[home.number, record.problem.kv_len]
                ratios = [time.median_s / other if other else None for other in others]
            look = contents.looks[record.variant]
            cells.append(PageCell(len(cells), record, run, line, home, look, *ratios))
    return cells


def place(cell: PageCell) -> tuple[float, ...]:
    """In the table: by regime, the longest first, by kind, the fastest first, the untimed last."""
    kinds = {"softmax": 0, "softmax on its own pattern": 1, "approximates softmax": 1}
    time, kind = cell.record.time, kinds.get(cell.look.computes, 2)
    rank = (kind, time.median_s) if time else (math.inf, math.inf)
    return (cell.scene.number if cell.scene else math.inf, -cell.record.problem.kv_len, *rank)


STOPS = {
    "budget": "stopped by its budget",
    "plateau": "stopped when its interval narrowed no more",
    "converged": "stopped when its interval was within 1\N{NO-BREAK SPACE}%",
}


def summarize(cell: PageCell) -> str:
    """A record in a line: ``550 ms [466, 568] · 9 samples, stopped by …``"""
    record, time = cell.record, cell.record.time
    if time is None:
        parts = [
            f"{record.status.words}: {record.reason}" if record.reason else record.status.words
        ]
    else:
        stop = STOPS.get(time.stop, f"stopped: {time.stop}")
        parts = [figures(time), f"{time.n:,} {'sample' if time.n == 1 else 'samples'}, {stop}"]
        parts += filter(None, [time.sustained_words()])
    if record.memory:
        parts.append(f"peak {format.size(record.memory.peak_bytes)}")
    if record.worst_error is not None:
        error = format.three(record.worst_error)
        parts.append("worst error " + error.replace("-", "\N{NON-BREAKING HYPHEN}"))  # one word
    if time and time.doubts:
        parts.append(f"noisy: {'; '.join(map(format.doubt_words, time.doubts))}")
    return " · ".join(parts)


def tables_of(header: Mapping[str, Any]) -> list[str]:
    """``--table FILE`` for each file of rows, as the header spells it: the same on any machine."""
    return [word for table in header.get("tables") or () for word in ("--table", str(table))]


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
    words: list[Any] = ["attnbench", "run", record.variant, *command_words(p)]
    words += (word for name, value in options.items() if value for word in (name, value))
    words += ["--energy"] if header.get("energy") else []
    words += tables_of(header)
    return shlex.join(map(str, words))
