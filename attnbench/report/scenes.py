"""What a report shows: runs as they were read, and their regimes as the pages number them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from attnbench.answer.crossings import Crossing, crossings
from attnbench.answer.regimes import Regime, regimes
from attnbench.answer.standing import Standing, Stretch, standings, stretches
from attnbench.answer.verdict import margin_of
from attnbench.record import Record


@dataclass(frozen=True)
class Ran:
    """One run."""

    number: int
    path: Path
    header: Mapping[str, Any]
    records: Sequence[Record]
    lines: Sequence[int]
    """Of each record, its line in the run's file, counted from 1."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What is amiss with the run as a whole: cut off, numbers that are not finite."""

    @cached_property
    def margin(self) -> float:
        """What counts as no lead in this run."""
        return margin_of(self.records)

    @property
    def machine(self) -> str:
        """The name of the machine that it was on."""
        return str((self.header.get("machine") or {}).get("name") or self.path.parent.name)

    @property
    def name(self) -> str:
        """``20261122-015809 on amd-epyc-2c``, with its folder's name where that is another."""
        run, folder = str(self.header.get("run") or ""), self.path.name
        called = run if run == folder else f"{folder} ({run})" if run else folder
        return f"{called} on {self.machine}"


@dataclass(frozen=True)
class Scene:
    """A regime of a run."""

    number: int
    """Among all regimes of all runs of the report; ``r3`` on its page."""
    run: Ran
    regime: Regime

    @cached_property
    def standings(self) -> list[Standing]:
        """How the variants stand at each length."""
        return standings(self.regime, self.run.margin)

    @cached_property
    def stretches(self) -> list[Stretch]:
        """The same, lengths together at which the same ones lead."""
        return stretches(self.standings)

    @cached_property
    def crossings(self) -> list[Crossing]:
        """Where one overtakes another."""
        return crossings(self.regime, self.standings, self.run.margin)

    @property
    def name(self) -> str:
        """``r3``"""
        return f"r{self.number}"

    @property
    def timed(self) -> bool:
        """Whether anything at all has a time."""
        return any(standing.timed for standing in self.standings)


def scenes(runs: Sequence[Ran]) -> list[Scene]:
    """Every regime of every run, numbered through."""
    found = [(run, regime) for run in runs for regime in regimes(run.records)]
    return [Scene(number, run, regime) for number, (run, regime) in enumerate(found)]
