"""The kinds of benchmark that asv is given: each looks its figure up in what was measured.

asv's rank test takes the values of a time for independent draws, so each is from a process of its
own. The other figures are one number a cell, which asv compares by its factor alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
from asv_runner.benchmarks import benchmark_types
from asv_runner.benchmarks._base import Benchmark, _get_first_attr
from asv_runner.benchmarks.mark import SkipNotImplemented

from attnbench.core.protocol import NOT_TRIED
from attnbench.features.commits import measurement, suite
from attnbench.features.commits.suite import Cache, Key, SuiteRow


class NoFigure(Exception):
    """A cell that should have a figure has none; a sentence."""


class FigureBenchmark(Benchmark):  # type: ignore[misc]
    """A benchmark whose parameters name the row to look up; one number."""

    figure = ""

    def __init_subclass__(cls) -> None:
        cls.name_regex = re.compile(f"^{cls.figure}$")

    def __init__(self, name: str, func: Any, attr_sources: list[Any]) -> None:
        super().__init__(name, func, attr_sources)
        about = suite.FIGURES[self.figure]
        self.type, self.unit, self.pretty_name = self.figure, about.unit, about.title
        self.rounds = 1

    def run(self, cache: Cache, variant: str, seq: int, phase: str) -> Any:
        """The figure, as asv takes it."""
        if cache.skipped:
            _skip(cache.skipped)
        key = (variant, seq, phase)
        return self.look_up(cache.rows.get(key), key)

    def look_up(self, row: SuiteRow | None, key: Key) -> Any:
        """The figure of a row; skips what can't be measured, raises NoFigure for a failure."""
        row = row or self.measure(key)
        if row.status in NOT_TRIED:
            _skip(row.reason)
        if row.status != "measured":
            variant, length, phase = key
            raise NoFigure(f"{variant} at {length}, {phase}, is {row.status}: {row.reason}")
        if (value := row.figures.get(self.figure)) is None:
            meter = row.reason if self.figure == "energy" else ""
            _skip(meter or f"the record has no {self.figure}")
        return value

    def measure(self, key: Key) -> SuiteRow:
        """The cell measured again."""
        request = suite.current_request()
        once = int(_get_first_attr(self._attr_sources, "repeat", 0)) == 1
        request = msgspec.structs.replace(request, quick=request.quick or once)
        return measurement.measure_again(key, request, Path.cwd())


class TimeBenchmark(FigureBenchmark):
    """One value for each process that timed the cell."""

    figure = "time"

    def __init__(self, name: str, func: Any, attr_sources: list[Any]) -> None:
        super().__init__(name, func, attr_sources)
        self.rounds = suite.PROCESSES if suite.current_request().interleaved else 1

    def look_up(self, row: SuiteRow | None, key: Key) -> Any:
        """Values that asv has not had before."""
        measured = row is not None and row.status == "measured"
        if measured and not measurement.is_first(key, Path.cwd()):
            row = None
        return {"samples": super().look_up(row, key), "number": 1}


MemoryBenchmark, ErrorBenchmark, EnergyBenchmark = (
    type(f"{figure.title()}Benchmark", (FigureBenchmark,), {"figure": figure})
    for figure in ("memory", "error", "energy")
)
KINDS = (TimeBenchmark, MemoryBenchmark, ErrorBenchmark, EnergyBenchmark)


def register() -> None:
    """Make the kinds known to asv in this process."""
    benchmark_types.extend(kind for kind in KINDS if kind not in benchmark_types)


def _skip(why: str) -> None:
    """Skip the benchmark in asv, and print why."""
    print(f"asv: skipped: {why}")
    raise SkipNotImplemented(why)
