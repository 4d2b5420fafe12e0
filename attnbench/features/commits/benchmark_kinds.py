"""The kinds of benchmark that asv is taught: each looks its figure up in what was measured.

asv's rank test takes the values of a time for independent draws, so each is from a process of its
own. The other figures are one number a cell, which asv compares by its factor alone.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from asv_runner.benchmarks import benchmark_types
from asv_runner.benchmarks._base import Benchmark, _get_first_attr
from asv_runner.benchmarks.mark import SkipNotImplemented

from attnbench.core.protocol import NOT_TRIED
from attnbench.features.commits import measurement, suite
from attnbench.features.commits.suite import Cache, Key, SuiteRow


class Fell(Exception):
    """A cell that has no figure to show, and ought to; a sentence."""


class Looked(Benchmark):  # type: ignore[misc]
    """A benchmark whose function says which row to look up."""

    figure = ""

    def __init__(self, name: str, func: Any, attr_sources: list[Any]) -> None:
        super().__init__(name, func, attr_sources)
        about = suite.FIGURES[self.figure]
        self.type, self.unit, self.pretty_name = about.name, about.unit, about.title
        self.rounds = 1

    def run(self, cache: Cache, variant: str, seq: int, phase: str) -> Any:
        """The figure, as asv takes it."""
        if cache.skipped:
            _skip(cache.skipped)
        return self.taken(cache, (variant, seq, phase))

    def taken(self, cache: Cache, key: Key) -> Any:
        """One number."""
        return self.value(cache.rows.get(key) or self.anew(key), key)

    def value(self, row: SuiteRow, key: Key) -> Any:
        """The figure of a row; skips what can't be asked, raises for what went wrong."""
        if row.status in NOT_TRIED:
            _skip(row.reason)
        if row.status != "measured":
            variant, length, phase = key
            raise Fell(f"{variant} at {length}, {phase}, is {row.status}: {row.reason}")
        value = row.figures.get(self.figure)
        if value is None:
            _skip(self.missing(row))
        return value

    def missing(self, row: SuiteRow) -> str:
        """Why a row that was measured has no such figure."""
        return f"the record has no {self.figure}"

    def anew(self, key: Key) -> SuiteRow:
        """The cell measured again."""
        asked = suite.current_request()
        once = int(_get_first_attr(self._attr_sources, "repeat", 0)) == 1
        if once and not asked.quick:
            asked = replace(asked, quick=True)
        return measurement.measure_again(key, asked, Path.cwd())


class TimeBenchmark(Looked):
    """One value for each process that timed the cell."""

    name_regex = re.compile("^time$")
    figure = "time"

    def __init__(self, name: str, func: Any, attr_sources: list[Any]) -> None:
        super().__init__(name, func, attr_sources)
        self.rounds = suite.PROCESSES if suite.current_request().interleaved else 1

    def taken(self, cache: Cache, key: Key) -> Any:
        """Values that asv has not had before."""
        row = cache.rows.get(key)
        measured = row is not None and row.status == "measured"
        if row is None or (measured and not measurement.is_first(key, self.figure, Path.cwd())):
            row = self.anew(key)
        return {"samples": self.value(row, key), "number": 1}


class MemoryBenchmark(Looked):
    """Bytes above the inputs at the worst instant."""

    name_regex = re.compile("^memory$")
    figure = "memory"


class ErrorBenchmark(Looked):
    """The largest relative error of outputs and gradients."""

    name_regex = re.compile("^error$")
    figure = "error"


class EnergyBenchmark(Looked):
    """Joules a call."""

    name_regex = re.compile("^energy$")
    figure = "energy"

    def missing(self, row: SuiteRow) -> str:
        """In the meter's words."""
        return row.reason or super().missing(row)


KINDS = (TimeBenchmark, MemoryBenchmark, ErrorBenchmark, EnergyBenchmark)


def register() -> None:
    """Make the kinds known to asv in this process."""
    benchmark_types.extend(kind for kind in KINDS if kind not in benchmark_types)


def _skip(why: str) -> None:
    """Tell asv that there is nothing to be had, and whoever reads its output why."""
    print(f"asv: skipped: {why}")
    raise SkipNotImplemented(why)
