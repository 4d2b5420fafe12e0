"""Every cell of a report as a row: its numbers in all units, and the command that repeats it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attnbench.answer.asked import words_of
from attnbench.record import Record, Time
from attnbench.report import numbers
from attnbench.report.figures.looks import Look
from attnbench.report.page.contents import Contents
from attnbench.report.scenes import Ran, Scene
from attnbench.sweep.presets import PRESETS

MOST = 2500
"""Rows that a page holds; the file beside it holds all."""
KINDS = {"softmax": 0, "softmax on its own pattern": 1, "approximates softmax": 1}
"""These are never ranked together."""


@dataclass(frozen=True)
class Cell:
    """One record, where it stands."""

    number: int
    """Among all of the report."""
    record: Record
    run: Ran
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
        return int(self.record.problem["kv_len"])

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
        return numbers.share(skill) if skill is None or skill > -0.005 else "< 0"

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


def cells(contents: Contents) -> list[Cell]:
    """All of them, run by run in the order of their files."""
    scenes = {id(r): scene for scene in contents.scenes for r in scene.regime.records}
    bars = {
        (scene.number, length): _bars(scene, length, contents.baseline)
        for scene in contents.scenes for length in scene.regime.lengths
    }  # fmt: skip
    made: list[Cell] = []
    for run in contents.runs:
        for record, line in zip(run.records, run.lines, strict=True):
            scene = scenes.get(id(record))
            bar = bars[scene.number, int(record.problem["kv_len"])] if scene else (None, None)
            best, base = (_over(record.time, other) for other in bar)
            look = contents.looks[record.variant]
            made.append(Cell(len(made), record, run, line, scene, look, best, base))
    return made


def in_order(found: Sequence[Cell]) -> list[Cell]:
    """As a reader wants them: by regime, the longest first, what is exact before what is not.

    Of these the fastest first; what has no time comes last.
    """

    def place(cell: Cell) -> tuple[float, ...]:
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
        return dict.fromkeys(("ms", "tflops", "share", "baseline"), numbers.NONE)
    return {
        "ms": numbers.ms(time.median_s),
        "tflops": numbers.figures(cost.flops / time.median_s / 1e12) if cost else numbers.NONE,
        "share": numbers.share(share),
        "baseline": numbers.ratio(to_baseline),
    }  # fmt: skip


def repeats(record: Record, header: Mapping[str, Any]) -> str:
    """The command that measures this cell again: the same variant on the same problem.

    The grid is said whole, so that no preset of another machine may change it.
    """
    p = record.problem
    words: list[Any] = ["attnbench", "run", record.variant, *words_of(p)]
    words += ["--world", record.ranks.world] if record.ranks else []
    words += ["--seed", record.seed] * bool(record.seed) + _settings(p, header)
    return shlex.join(map(str, words))


def _settings(p: Mapping[str, Any], header: Mapping[str, Any]) -> list[Any]:
    """What the run was told besides its grid."""
    words: list[Any] = []
    threads, budget = (header.get("settings") or {}).get("threads"), header.get("budget_s")
    words += ["--threads", threads] if threads else []
    preset = PRESETS["cuda" if str(p["device"]).startswith("cuda") else "cpu"]
    words += ["--budget", budget] if budget and budget != preset.budget else []
    words += ["--energy"] * bool(header.get("energy"))
    for table in header.get("tables") or ():
        words += ["--table", table]
    return words
