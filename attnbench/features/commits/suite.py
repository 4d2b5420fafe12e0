"""The asv suite: its benchmarks, and a commit measured for them by the attnbench that is installed.

asv starts a process for each benchmark with its parameters, which looks its figure up in what the
set-up of the commit measured: a record of each cell, then its time in processes that do nothing
else. Each of these gives one value, as the samples of one process are not independent draws. Where
commits take turns, each of asv's rounds has one process. This loads no torch.
"""

from __future__ import annotations

import math
import os
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from asv_runner.benchmarks.mark import SkipNotImplemented
from asv_runner.benchmarks.track import TrackBenchmark

from attnbench.core.checkout import BadCommit, Repository, find_commit
from attnbench.core.lock import lock_for
from attnbench.core.machine import this_machine
from attnbench.core.process import START_LIMIT_S
from attnbench.core.record import NOT_TRIED, PROTOCOL, Record, Status
from attnbench.core.settings import Settings
from attnbench.features.commits.rows import rows_in
from attnbench.sweep.engine import HoldingWorker, LocalEngine, Refused, measure, open_worker
from attnbench.sweep.plan import Cell, make_plan
from attnbench.sweep.presets import PRESETS, Preset
from attnbench.sweep.start import pinned
from attnbench.sweep.sweep import check_times
from impls import Table, UnknownVariant
from impls.errors import CantBeDone
from impls.problem import Problem
from impls.spec import InvalidRow

VARIABLE = "ATTNBENCH_HISTORY"
PRESET = {"cpu": "history", "cuda": "history-cuda"}
MODULE = "attention"
"""The file of the benchmarks, which begins their names."""
VERSION = f"protocol {PROTOCOL}"
"""asv doesn't compare results of unlike versions."""
TIME_VERSION = f"{VERSION}, a value a process"
LEAST_ERROR = 1e-12
"""Errors are never zero: asv draws means of their logarithms."""
PROCESSES = 7
"""Values of a time, a process each. asv's rank test calls a difference real below p = 0.002:
six values against six reach 2/924 = 0.0022 at best, seven against seven 2/3432 = 0.0006.
"""
LIMIT_S = 1800.0
QUICK_S = 0.01
"""Seconds of samples for a record, whose time is not kept."""
SAMPLES = 4
"""Calls in one place in memory, besides those that warm up."""
PLACES = ((0.005, 4), (0.015, 3), (math.inf, 2))
"""Places of a value, by the most seconds that a call takes."""

Key = tuple[str, int, str]
"""Variant, length and phase: the parameters of a benchmark."""
Figure = list[float] | float | int | None


class AsvRequest(msgspec.Struct, frozen=True):
    """One of asv's commands, as its processes need to know it."""

    root: str = ""
    """The repository whose commits are measured."""
    device: str = "cpu"
    bench: tuple[str, ...] = ()
    """Expressions, one of which a benchmark with its parameters has to match; any, if none."""
    interleaved: bool = False
    """Commits take turns, with a process of each in a round."""
    scratch: str = ""
    """A folder that lives as long as asv's command, where records wait for the later rounds."""

    @property
    def grid(self) -> Preset:
        """The cells that are measured of each commit."""
        return PRESETS[PRESET[self.device]].with_(budget=QUICK_S)

    @property
    def parameters(self) -> list[list[Any]]:
        """The values of each parameter of the benchmarks."""
        grid = self.grid
        return [list(grid.variants), [int(length) for length in grid.seq], list(grid.phase)]

    def keys(self, figures: Sequence[str] = ("time", "memory", "error")) -> list[Key]:
        """The cells of which one of these figures is to be measured."""
        return [
            key
            for key in product(*self.parameters)
            if not self.bench
            or any(re.search(x, f"{MODULE}.{y}{key!r}") for x in self.bench for y in figures)
        ]


def current_request(environment: Mapping[str, str] = os.environ) -> AsvRequest:
    """The request of asv's command; the defaults in a process that asv did not start."""
    return msgspec.json.decode(environment.get(VARIABLE, "{}"), type=AsvRequest)


class SuiteRow(msgspec.Struct, frozen=True):
    """The result of a cell, as the benchmarks look it up."""

    status: str
    reason: str
    """The reason, if it was not measured."""
    figures: dict[str, Figure]


class Cache(msgspec.Struct, frozen=True):
    """The results of a commit's set-up; or, in a sentence, why it can't be measured."""

    rows: dict[Key, SuiteRow]
    skipped: str = ""


# ---- benchmarks ----------------------------------------------------------------------------------


class FigureBenchmark(TrackBenchmark):  # type: ignore[misc]
    """A function called like a figure of a record, which looks that figure up."""

    name_regex = re.compile("^(time|memory|error)$")

    def __init__(self, name: str, func: Any, attr_sources: list[Any]) -> None:
        super().__init__(name, func, attr_sources)
        self.rounds = getattr(func, "rounds", 1)


class NoFigure(Exception):
    """A cell that should have a figure has none; a sentence."""


def figure(cache: Cache, key: Key, name: str) -> Any:
    """A figure for asv: skips what can't be measured, raises NoFigure for what failed."""
    if cache.skipped:
        _skip(cache.skipped)
    row = cache.rows[key]
    if row.status in NOT_TRIED:
        _skip(row.reason)
    if row.status != Status.MEASURED:
        raise NoFigure(f"{key[0]} at {key[1]}, {key[2]}, is {row.status}: {row.reason}")
    if (value := row.figures.get(name)) is None:
        _skip(f"the record has no {name}")
    return {"samples": value, "number": 1} if name == "time" else value


def _skip(why: str) -> None:
    print(f"asv: skipped: {why}")
    raise SkipNotImplemented(why)


def suite_row(record: Record) -> SuiteRow:
    """A record's figures, as asv shows them."""
    error = record.worst_error
    figures: dict[str, Figure] = {
        "time": [record.time.median_s] if record.time else None,
        "memory": max(1, record.memory.peak_bytes) if record.memory else None,
        "error": None if error is None else max(LEAST_ERROR, float(f"{error:.4g}")),
    }
    return SuiteRow(str(record.status), record.reason, figures)


# ---- a commit ------------------------------------------------------------------------------------


def measure_commit(request: AsvRequest) -> Cache:
    """Measure the commit that asv names; without one, the repository as it lies there."""
    repository = Repository(Path(request.root))
    sha = os.environ.get("ASV_COMMIT", "")
    with ExitStack() as stack:
        folder, name = repository.root, "that is checked out"
        try:
            if sha:
                commit = find_commit(sha, repository.root)
                folder, name = stack.enter_context(repository.laid_out(commit)), str(commit)
            commit_rows = rows_in(folder, name, repository)
        except BadCommit as why:
            return Cache({}, str(why))
        if commit_rows.unreadable:
            raise CantBeDone(f"commit {name}: {commit_rows.unreadable}")
        cells, rows = _cells(Table(dict(commit_rows.rows)), request)
        settings = Settings(threads=pinned(None, this_machine()))
        # the rounds that follow find the records of the first
        file = Path(request.scratch, f"{os.environ.get('ASV_ENV_NAME', '')}-{sha}.json")
        if request.scratch and file.exists():
            rows = dict(msgspec.json.decode(file.read_bytes(), type=list[tuple[Key, SuiteRow]]))
        else:
            rows |= _measured(cells, request.device, settings, folder)
            if request.scratch:
                file.write_bytes(msgspec.json.encode(list(rows.items())))
        opened = open_worker(settings, 0, QUICK_S, device=request.device)
        _add_times(rows, cells, request, lambda: opened(folder))
    return Cache(rows)


def _cells(table: Table, request: AsvRequest) -> tuple[dict[Key, Cell], dict[Key, SuiteRow]]:
    """The cells of a request, and rows for those whose variant the commit doesn't have."""
    cells, missing, keys = dict[Key, Cell](), dict[Key, SuiteRow](), request.keys()
    for name in dict.fromkeys(key[0] for key in keys):
        mine = [key for key in keys if key[0] == name]
        try:
            plan = make_plan(table, [name], request.grid, this_machine())
        except (UnknownVariant, InvalidRow) as why:
            missing |= dict.fromkeys(mine, SuiteRow("unavailable", f"in this commit {why}", {}))
        else:
            of_variant = {(name, c.problem.kv_len, c.problem.phase): c for c in plan.cells}
            cells |= {key: of_variant[key] for key in mine}
    return cells, missing


def _measured(
    cells: Mapping[Key, Cell], device: str, settings: Settings, folder: Path
) -> dict[Key, SuiteRow]:
    """The cells' records, by one worker; a line each, which asv shows where the set-up fails."""
    rows, earlier = dict[Key, SuiteRow](), list[Record]()
    limited = device == "cpu"  # of a GPU's memory the address space is no measure
    with lock_for([device]), LocalEngine(settings, path=folder, limited=limited) as engine:
        dtypes = sorted({cell.problem.dtype for cell in cells.values()})
        question = {"ceilings": dtypes, "device": device}
        header = {"seed": 0, "budget_s": QUICK_S, **engine.ask(question, START_LIMIT_S)}
        for key, cell in cells.items():
            record = cell.left_out or check_times(measure(cell, header, engine), earlier)
            if record.status is Status.IMPLAUSIBLE:  # a busy machine can look like it, once
                record = check_times(measure(cell, header, engine), earlier)
            earlier.append(record)
            print(f"{key[0]} at {key[1]}, {key[2]}: {record.status}", flush=True)
            rows[key] = suite_row(record)
    return rows


def _add_times(
    rows: dict[Key, SuiteRow],
    cells: Mapping[Key, Cell],
    request: AsvRequest,
    start: Callable[[], AbstractContextManager[HoldingWorker]],
) -> None:
    """Put into the rows of measured cells the values of their times, one from each process."""
    chance = random.SystemRandom()
    values: dict[Key, list[float]] = {
        key: [] for key in request.keys(["time"]) if rows[key].status == Status.MEASURED
    }
    for _ in range(1 if request.interleaved else PROCESSES):
        turn = {key[1:]: chance.random() for key in values}  # those of a problem share an oracle
        order = sorted(values, key=lambda key: (turn[key[1:]], chance.random()))
        with lock_for([request.device]), start() as worker:
            for key in order:
                try:
                    values[key].append(_value(worker, key[0], cells[key].problem))
                except Refused as why:
                    rows[key] = SuiteRow(why.status or "failed", str(why), {})
                    del values[key]
    for key, times in values.items():
        rows[key].figures["time"] = list(times)


def _value(worker: HoldingWorker, variant: str, problem: Problem) -> float:
    """Seconds of a call: the median of some, in the place in memory where that is least.

    The place is luck that makes a call slower, and nothing makes it faster.
    """
    medians, places = list[float](), 1
    worker.hold(variant, problem)
    while len(medians) < places:
        worker.fresh()
        medians.append(statistics.median(worker.samples(SAMPLES)))
        places = next(count for most_s, count in PLACES if medians[0] <= most_s)
    return min(medians)
