"""All cells of a commit measured for asv, and the kinds of benchmark that look their figures up.

A commit is swept once in each command of asv's. What passed is then timed in processes that do
nothing else, each of which gives one value a cell: the samples of one process are no independent
draws. Where commits take turns, each round of asv's has one process. A value that is wanted a
second time is measured again, or it would pass for an independent one.
"""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import statistics
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from asv_runner.benchmarks import benchmark_types
from asv_runner.benchmarks._base import Benchmark, _get_first_attr
from asv_runner.benchmarks.mark import SkipNotImplemented

import attnbench
from attnbench.core.protocol import NOT_TRIED, interface, unlike
from attnbench.features.commits import suite
from attnbench.features.commits.suite import AsvRequest, Cache, Key, SuiteRow

if TYPE_CHECKING:
    from attnbench.sweep.engine import HoldingWorker
    from impls.problem import Problem


OWN = ("", "existing")
"""Environments that asv did not make: there the checkout's own ``impls`` are measured."""
CHECKOUT = Path(attnbench.__file__).resolve().parents[1]
QUICK_S = 0.01
"""Seconds of samples a cell where its time is not kept."""
SAMPLES = 4
"""Calls in one place in memory, besides those that warm up."""
PLACES = ((0.005, 4), (0.015, 3), (math.inf, 2))
"""Places of a value, by the seconds that a call takes at most."""
Rows = dict[Key, SuiteRow]


def impls_of_commit() -> Path | None:
    """The folder of the ``impls`` that are measured; None where the commit has none."""
    if os.environ.get("ASV_ENV_TYPE", "") in OWN:
        return CHECKOUT / "impls"
    found = find_spec("impls")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).resolve().parent
    made = Path(os.environ["ASV_ENV_DIR"]).resolve()
    return folder if made in folder.parents else None  # another's, that is installed somewhere


def measure_all(request: AsvRequest, here: Path) -> Cache:
    """Everything in the request, of the commit whose environment this process has."""
    commit = os.environ.get("ASV_COMMIT", "that is checked out")
    if not request.root:
        if (folder := impls_of_commit()) is None:
            return Cache({}, f"commit {commit[:8]} has no folder impls; give a later one")
        if skipped := unlike(folder, interface(CHECKOUT / "impls"), commit[:8]):
            return Cache({}, skipped)
    first = _laid_out(request, here / "commit")
    import impls

    impls.table(_tables(request, first))  # what is broken in the commit itself is raised here
    try:
        from attnbench.sweep import places, start, sweep  # noqa: F401
    except ImportError as missing:
        lacks = f"commit {commit[:8]} lacks what this attnbench asks of a table ({missing})"
        return Cache({}, f"{lacks}; give a later one")
    # the rounds that follow find the sweep of the first
    kept = Path(request.kept, f"{os.environ.get('ASV_ENV_NAME', '')}-{commit}.json")
    if request.kept and kept.exists():
        rows = dict(msgspec.json.decode(kept.read_bytes(), type=list[tuple[Key, SuiteRow]]))
    else:
        counted, rows = suite.keys(request, ["energy"]), Rows()
        others = [key for key in suite.keys(request) if key not in counted]
        for keys, energy in ((others, False), (counted, True)):
            rows |= _swept(keys, request, here, first, energy=energy) if keys else {}
        # a busy machine can look like it once, and asv compares nothing where one benchmark failed
        if doubted := [key for key, row in rows.items() if row.status == "implausible"]:
            rows |= _swept(doubted, request, here, first, energy=False)
        if request.kept:
            kept.write_bytes(msgspec.json.encode(list(rows.items())))
    if not request.quick:
        processes = 1 if request.interleaved else suite.PROCESSES
        rows |= _timed(rows, suite.keys(request, ["time"]), request, first, processes)
    return Cache(rows)


def measure_again(key: Key, request: AsvRequest, here: Path) -> SuiteRow:
    """One cell: a sweep of its own and, unless asv is quick, one more value of its time."""
    first = _laid_out(request, here / "commit")
    rows = _swept([key], request, here, first, energy=False)
    if not request.quick:
        rows |= _timed(rows, [key], request, first, 1)
    return rows[key]


def _laid_out(request: AsvRequest, folder: Path) -> Path:
    """A folder with a copy of the commit's ``impls``, as a link would pass for attnbench's own; or
    with all of a commit of a repository of somebody's own, whose rows this process then sees.
    """
    if not request.root:
        impls = impls_of_commit()
        assert impls is not None
        if not folder.exists():
            shutil.copytree(impls, folder / "impls", ignore=shutil.ignore_patterns("__pycache__"))
        return folder
    from attnbench.core.checkout import Repository, find_commit
    from attnbench.core.process import variables_of
    from impls.loading import import_roots

    if not folder.exists():
        folder.mkdir()
        repository = Repository(Path(request.root), request.tables)
        repository.lay_out(find_commit(os.environ["ASV_COMMIT"], repository.root), folder)
    sys.path[:0] = map(str, import_roots(folder))
    os.environ["PYTHONPATH"] = variables_of(1, folder)["PYTHONPATH"]
    return folder


def _tables(request: AsvRequest, first: Path) -> list[str]:
    return [str(first / table) for table in request.tables]


def _timed(
    rows: Rows, keys: Sequence[Key], request: AsvRequest, first: Path, processes: int
) -> dict[Key, SuiteRow]:
    """The cells that were measured, with a value of the time from each of some processes."""
    from attnbench.core.lock import lock_for
    from attnbench.core.machine import this_machine
    from attnbench.core.settings import Settings
    from attnbench.sweep.engine import Refused, open_worker
    from attnbench.sweep.plan import problems
    from attnbench.sweep.start import pinned

    device = request.device
    by_cell = {(p.kv_len, p.phase): p for p in problems(suite.grid(device))}
    values: dict[Key, list[float]] = {k: [] for k in keys if rows[k].status == "measured"}
    ended: Rows = {}
    chance = random.SystemRandom()
    settings = Settings(threads=pinned(None, this_machine()))
    opened = open_worker(settings, 0, QUICK_S, request.tables, device=device)
    for _ in range(processes if values else 0):
        left = [k for k in values if k not in ended]
        turn = {cell: chance.random() for cell in {key[1:] for key in left}}  # they share an oracle
        left.sort(key=lambda key: (turn[key[1:]], chance.random()))
        with lock_for([device]), opened(first) as worker:
            for key in left:
                try:
                    values[key].append(_value(worker, key[0], by_cell[key[1:]]))
                except Refused as refused:
                    ended[key] = SuiteRow(refused.status or "failed", str(refused), {})
    taken = {
        key: msgspec.structs.replace(rows[key], figures={**rows[key].figures, "time": found})
        for key, found in values.items()
    }
    return taken | ended


def _value(worker: HoldingWorker, variant: str, problem: Problem) -> float:
    """Seconds of a call: the median of some, in the place in memory where that is least.

    The place is luck that makes a call slower, and nothing makes it faster.
    """
    turns, medians, places = worker.hold(variant, problem), list[float](), 1
    while len(medians) < places:
        turns.fresh()
        medians.append(statistics.median(turns.samples(SAMPLES)))
        places = next(count for most_s, count in PLACES if medians[0] <= most_s)
    return min(medians)


def _swept(
    keys: Sequence[Key], request: AsvRequest, here: Path, first: Path, *, energy: bool
) -> Rows:
    """A row for each of some cells, by a sweep of those whose variants the commit's table has."""
    import impls
    from attnbench.command.progress import Progress
    from attnbench.core.store import read_records
    from attnbench.sweep.places import Local
    from attnbench.sweep.plan import Plan
    from attnbench.sweep.start import begin
    from attnbench.sweep.sweep import Interrupt, sweep
    from impls.errors import CantBeDone

    tables = _tables(request, first)
    table, wanted, rows = impls.table(tables), dict[Key, Key](), Rows()
    for key in keys:
        try:
            wanted[(table.find(key[0]).label, *key[1:])] = key
        except CantBeDone as unknown:
            rows[key] = SuiteRow("unavailable", f"in the commit's table {unknown}", {})
    if not wanted:
        return rows
    grid = suite.grid(request.device).with_(
        variants=tuple(dict.fromkeys(key[0] for key in wanted.values())),
        seq=tuple(dict.fromkeys(str(length) for _, length, _ in keys)),
        phase=tuple(p for p in suite.grid(request.device).phase if any(p in key for key in keys)),
        budget=QUICK_S,
    )
    places = Local(first=first)
    begun = begin(
        grid.variants, grid, tables, here / "results", seed=0, threads=None, energy=energy
    )

    def cell_of(variant: str, problem: Problem) -> Key:
        return variant, problem.kv_len, problem.phase

    some = [c for c in begun.plan.cells if cell_of(c.variant.label, c.problem) in wanted]
    try:
        with places.slots(begun.settings, grid.device) as slots:
            # a line a cell, which asv shows where the set-up fails
            progress = Progress(len(some), every=True)
            sweep(Plan(some), begun.done, begun.folder, slots, progress, Interrupt(print))
    finally:
        begun.folder.close()
    for record in read_records(begun.folder.path):
        rows[wanted[cell_of(record.variant, record.problem)]] = suite.row(record)
    return rows


class NoFigure(Exception):
    """A cell that should have a figure has none; a sentence."""


class FigureBenchmark(Benchmark):  # type: ignore[misc]
    """A benchmark whose parameters name the row to look up.

    A time is one value for each process that timed the cell, which asv takes for independent draws;
    the other figures are one number a cell.
    """

    figure = ""

    def __init_subclass__(cls) -> None:
        cls.name_regex = re.compile(f"^{cls.figure}$")

    def __init__(self, name: str, func: Any, attr_sources: list[Any]) -> None:
        super().__init__(name, func, attr_sources)
        about = suite.FIGURES[self.figure]
        self.type, self.unit, self.pretty_name = self.figure, about.unit, about.title
        in_turns = self.figure == "time" and suite.current_request().interleaved
        self.rounds = suite.PROCESSES if in_turns else 1

    def run(self, cache: Cache, variant: str, seq: int, phase: str) -> Any:
        """The figure, measured now if need be; skips what can't be; raises NoFigure."""
        if cache.skipped:
            _skip(cache.skipped)
        key = (variant, seq, phase)
        row = cache.rows.get(key)
        if row is None or (self.figure == "time" and row.status == "measured" and _taken(key)):
            request = suite.current_request()
            once = int(_get_first_attr(self._attr_sources, "repeat", 0)) == 1
            request = msgspec.structs.replace(request, quick=request.quick or once)
            row = measure_again(key, request, Path.cwd())
        if row.status in NOT_TRIED:
            _skip(row.reason)
        if row.status != "measured":
            raise NoFigure(f"{variant} at {seq}, {phase}, is {row.status}: {row.reason}")
        if (value := row.figures.get(self.figure)) is None:
            meter = row.reason if self.figure == "energy" else ""
            _skip(meter or f"the record has no {self.figure}")
        return {"samples": value, "number": 1} if self.figure == "time" else value


def _taken(key: Key) -> bool:
    """Whether asv has had this time before, as an empty file records."""
    try:
        name = "taken-" + "-".join(map(str, key)).replace("/", "_")
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return True
    return False


KINDS = tuple(
    type(f"{figure.title()}Benchmark", (FigureBenchmark,), {"figure": figure})
    for figure in suite.FIGURES
)


def register() -> None:
    """Make the kinds known to asv in this process."""
    benchmark_types.extend(kind for kind in KINDS if kind not in benchmark_types)


def _skip(why: str) -> None:
    """Skip the benchmark in asv, and print why."""
    print(f"asv: skipped: {why}")
    raise SkipNotImplemented(why)
