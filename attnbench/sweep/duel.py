"""Two variants over a range of lengths: what can be asked of a worker, and the asking.

What the rows refuse is known before anything runs, so those lengths are never looked at.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnbench.machine import Machine, why_not
from attnbench.record import Status
from attnbench.sweep.compare import START_AND_GATE_S, Compared, compare_cell
from attnbench.sweep.crossover import GRACE_S, Look, ladder
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.limits import sized
from attnbench.sweep.plan import Cell, here, problems
from attnbench.sweep.presets import Preset
from impls.asked import CantBeDone
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

PAIRS_S = 8.0
"""Seconds of pairs a length: beyond them, what can't be told apart stays so."""
PAIRS_SHARE = 1 / 4
"""Of what is left, pairs get no more than this."""
LONGEST = 1 << 24
"""A longer one is a mistake at the keyboard."""


@dataclass
class Duel:
    """Two variants, the problem at its shortest length, and the lengths that both take."""

    a: Variant
    b: Variant
    problem: Problem
    asked: tuple[int, int]
    rungs: list[int]
    refused: dict[str, list[int]] = field(default_factory=dict)
    """Reason to lengths that were left out for it."""

    def at(self, length: int) -> Problem:
        """The problem at a length."""
        return sized(self.problem, "seq", length)

    def notes(self) -> list[str]:
        """What was left out, a sentence a reason."""
        return [f"{_lengths(some)} left out: {why}" for why, some in self.refused.items()]


def _lengths(some: Sequence[int]) -> str:
    if len(some) == 1:
        return f"{some[0]:,} is"
    return f"{len(some)} lengths from {some[0]:,} to {some[-1]:,} are"


def plan(a: Variant, b: Variant, grid: Preset, machine: Machine) -> Duel:
    """The two and their lengths; raises a sentence where there is nothing to search."""
    if a.label == b.label:
        raise CantBeDone(f"{a.label} can't overtake itself; name two variants")
    asked = _range(grid.seq)
    _refuse(grid)
    here(grid.device, machine)
    for row in (a, b):
        _refuse_row(row, machine)
    return _allowed(Duel(a, b, _shortest(grid, a, asked), asked, []))


def _range(seq: Sequence[str]) -> tuple[int, int]:
    """``128,16384``"""
    said = f"--seq {','.join(seq)}"
    if len(seq) != 2 or not all(n.isascii() and n.isdigit() for n in seq):
        raise InvalidProblem(
            f"{said} is no range: crossover looks between two lengths, as in --seq 128,16384"
        )
    low, high = map(int, seq)
    if low < 1 or low >= high:
        why = "a length is 1 or more" if low < 1 and low < high else "the shorter comes first"
        raise InvalidProblem(f"{said} holds no lengths: {why}, as in --seq 128,16384")
    if high > LONGEST:
        raise InvalidProblem(f"{said} is too far: give {LONGEST:,} at the most")
    return low, high


def _refuse(grid: Preset) -> None:
    """More than one problem but for its length."""
    axes = ("batch", "heads", "kv_heads", "head_dim", "v_head_dim", "dtype", "mask", "phase",
            "inputs", "level")  # fmt: skip
    wide = ["--" + name.replace("_", "-") for name in axes if len(getattr(grid, name)) > 1]
    if wide:
        raise InvalidProblem(
            f"crossover takes one value of {', '.join(wide)}: what is searched is the length alone"
        )
    if grid.inputs[0].startswith("captured:"):
        raise InvalidProblem(
            "captured inputs have one length; crossover needs many: leave them out"
        )


def _refuse_row(row: Variant, machine: Machine) -> None:
    if row.ranks:
        raise CantBeDone(
            f"{row.label} runs over several processes, and crossover looks at one: compare takes it"
        )
    if (missing := why_not(row, machine)) is not None:
        raise CantBeDone("; ".join(filter(None, [missing.reason, missing.remedy])))


def _shortest(grid: Preset, row: Variant, asked: tuple[int, int]) -> Problem:
    """The problem at its shortest; if the mask fits no length there, at its longest."""
    levels, wrong = grid.level or (row.level,), ""
    for length in asked:
        try:
            return next(problems(grid.with_(seq=(str(length),)), levels))
        except InvalidProblem as error:
            wrong = wrong or f"at {length:,}, {error}"
    raise InvalidProblem(f"no range of lengths can be searched: {wrong}")


def _allowed(duel: Duel) -> Duel:
    """With the lengths that exist and that both take."""
    for length in ladder(*duel.asked):
        if (why := _refusal(duel, length)) is None:
            duel.rungs.append(length)
        else:
            duel.refused.setdefault(why, []).append(length)
    if len(duel.rungs) < 2:
        raise CantBeDone(
            f"there is no range to search: of the lengths from {duel.asked[0]:,} to "
            f"{duel.asked[1]:,}, {'; '.join(duel.notes())}"
        )
    return duel


def _refusal(duel: Duel, length: int) -> str | None:
    try:
        problem = duel.at(length)
    except InvalidProblem:
        return f"the mask {duel.problem.mask} does not fit them"
    said = ((row.label, row.supports(problem)) for row in (duel.a, duel.b))
    return next((f"{label}: {why}" for label, why in said if why is not None), None)


@dataclass
class Asking:
    """Pairs of the two at a length, by one worker."""

    duel: Duel
    engine: LocalEngine
    seed: int
    margin: float | None
    """None: the noise floor's. Where none is stored, the first look's, which measures it."""
    floors: Sequence[Mapping[str, Any]] = ()

    def __call__(self, length: int, left_s: float) -> Look | None:
        """A look; None where only the wall clock ended it."""
        pairs_s = min(PAIRS_S, PAIRS_SHARE * left_s)
        found = self._compared(length, left_s, pairs_s)
        if found.status is Status.OUT_OF_MEMORY:
            self.engine.close()  # what others left in its heap may have been in the way
            found = self._compared(length, left_s, pairs_s)
        if found.status is Status.TIMED_OUT and left_s + GRACE_S < START_AND_GATE_S + 4 * pairs_s:
            return None
        if found.pairs is None:
            return Look(length, None, found.status, found.why)
        pairs = found.pairs
        if self.margin is None and not self.floors:
            self.margin = pairs.comparison.margin
        a_s, b_s = (statistics.median(some) for some in (pairs.a_s, pairs.b_s))
        return Look(length, pairs.comparison, a_s=a_s, b_s=b_s)

    def _compared(self, length: int, left_s: float, pairs_s: float) -> Compared:
        problem = self.duel.at(length)
        judged, against = (Cell(row, problem, None, 0.0) for row in (self.duel.b, self.duel.a))
        return compare_cell(
            judged, against, self.engine, self.seed, self.margin, self.floors, pairs_s,
            limit_s=left_s + GRACE_S,
        )  # fmt: skip
