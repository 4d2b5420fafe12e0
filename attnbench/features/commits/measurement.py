"""All cells of a commit measured for asv, as ``attnbench run`` measures.

A commit is swept once in each command of asv's: gate, meters, memory and error. What passed is then
timed in processes that do nothing else, each of which gives one value a cell. Where the system put
a process's memory moves a call by some hundredths for as long as the process lives, so the samples
of one process are no independent draws, and values of several processes are. Where commits take
turns, each round of asv's has one process; else all processes run here, one after another.

The sweep is made in the folder that asv gives to the set-up and to the benchmarks that use it. A
value that is wanted a second time from there (rounds that do not take turns) is measured again:
values counted twice would pass for independent ones.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnbench
from attnbench.core.protocol import interface, unlike
from attnbench.features.commits import suite
from attnbench.features.commits.suite import AsvRequest, Cache, Key, SuiteRow

if TYPE_CHECKING:
    from attnbench.core.record import Record
    from attnbench.sweep.holding import HoldingWorker
    from attnbench.sweep.plan import Plan
    from attnbench.sweep.presets import Preset
    from impls.problem import Problem


OWN = ("", "existing")
"""Environments that asv did not make: there the checkout's own ``impls`` are measured."""


def checkout() -> Path:
    """The folder that holds the attnbench that measures."""
    return Path(attnbench.__file__).resolve().parents[1]


def impls_of_commit(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the ``impls`` that are measured; None where the commit has none."""
    if environment.get("ASV_ENV_TYPE", "") in OWN:
        return checkout() / "impls"
    found = find_spec("impls")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).resolve().parent
    made = Path(environment["ASV_ENV_DIR"]).resolve()
    return folder if made in folder.parents else None  # another's, that is installed somewhere


def why_not(impls: Path | None, commit: str) -> str:
    """Why a commit can't be measured by this attnbench; a sentence, or nothing."""
    if impls is None:
        return f"commit {commit[:8]} has no folder impls; give a later one"
    return unlike(impls, interface(checkout() / "impls"), commit[:8])


def laid_out(impls: Path, folder: Path) -> Path:
    """A folder in which workers look first, with a copy of the commit's ``impls`` alone.

    A link would not do: attnbench tells its own code from a variant's by the files they lie in.
    """
    if not folder.exists():
        shutil.copytree(impls, folder / "impls", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


QUICK_S = 0.01
"""Seconds of samples a cell where its time is not kept."""
SAMPLES = 4
"""Calls in one place in memory, besides those that warm up."""
PLACES = ((0.005, 4), (0.015, 3), (math.inf, 2))
"""Places of a value, by the seconds that a call takes at most."""


def measure_all(request: AsvRequest, here: Path) -> Cache:
    """Everything in the request, of the commit whose environment this process has."""
    impls, commit = impls_of_commit(), os.environ.get("ASV_COMMIT", "that is checked out")
    if skipped := why_not(impls, commit) or _unlike(commit):
        return Cache({}, skipped)
    assert impls is not None
    first = laid_out(impls, here / "commit")
    kept = _kept(request, commit)
    if kept is not None and kept.exists():
        rows = {_key(key): SuiteRow(**row) for key, row in json.loads(kept.read_text())}
    else:
        rows = _swept_all(request, here, first)
        if kept is not None:
            kept.write_text(json.dumps([[key, asdict(row)] for key, row in rows.items()]))
    if not request.quick:
        processes = 1 if request.interleaved else suite.PROCESSES
        rows |= _timed(rows, suite.keys(request, ["time"]), request.device, first, processes)
    return Cache(rows)


def _kept(request: AsvRequest, commit: str) -> Path | None:
    """The file that keeps the sweep of a commit for the rounds that follow."""
    name = f"{os.environ.get('ASV_ENV_NAME', '')}-{commit}.json"
    return Path(request.kept) / name if request.kept else None


def _key(sent: Sequence[Any]) -> Key:
    variant, length, phase = sent
    return str(variant), int(length), str(phase)


def _swept_all(request: AsvRequest, here: Path, first: Path) -> dict[Key, SuiteRow]:
    wanted = suite.keys(request)
    counted = suite.keys(request, ["energy"])
    rows: dict[Key, SuiteRow] = {}
    for keys, energy in (([k for k in wanted if k not in counted], False), (counted, True)):
        if keys:
            rows |= _swept(keys, request, here, first, energy=energy)
    # a busy machine can look like it once, and asv compares nothing where one benchmark failed
    doubted = [key for key, row in rows.items() if row.status == "implausible"]
    return rows | (_swept(doubted, request, here, first, energy=False) if doubted else {})


def measure_again(key: Key, request: AsvRequest, here: Path) -> SuiteRow:
    """One cell: a sweep of its own and, unless asv is quick, one more value of its time."""
    impls = impls_of_commit()
    assert impls is not None
    first = laid_out(impls, here / "commit")
    rows = _swept([key], request, here, first, energy=False)
    if not request.quick:
        rows |= _timed(rows, [key], request.device, first, 1)
    return rows[key]


def _timed(
    rows: Mapping[Key, SuiteRow], keys: Sequence[Key], device: str, first: Path, processes: int
) -> dict[Key, SuiteRow]:
    """The cells that were measured, with a value of the time from each of some processes."""
    from attnbench.core.lock import lock_for
    from attnbench.core.machine import this_machine
    from attnbench.core.settings import Settings
    from attnbench.sweep.holding import Refused, open_worker
    from attnbench.sweep.start import pinned

    values: dict[Key, list[float]] = {k: [] for k in keys if rows[k].status == "measured"}
    ended: dict[Key, SuiteRow] = {}
    opened = open_worker(Settings(threads=pinned(None, this_machine())), 0, QUICK_S, device=device)
    for _ in range(processes if values else 0):
        with lock_for([device]), opened(first) as worker:
            for key, problem in _in_any_order([k for k in values if k not in ended], device):
                try:
                    values[key].append(_value(worker, key[0], problem))
                except Refused as refused:
                    ended[key] = SuiteRow(refused.status or "failed", str(refused), {})
    taken = {
        key: SuiteRow(rows[key].status, rows[key].reason, {**rows[key].figures, "time": found})
        for key, found in values.items()
    }
    return taken | ended


def _value(worker: HoldingWorker, variant: str, problem: Problem) -> float:
    """Seconds of a call: the median of some, in the place in memory where that is least.

    The place is luck: one where a call's tensors evict each other, or another program at work
    meanwhile, makes the call slower, and nothing makes it faster.
    """
    turns, medians, places = worker.hold(variant, problem), list[float](), 1
    while len(medians) < places:
        turns.fresh()
        medians.append(statistics.median(turns.samples(SAMPLES)))
        places = next(count for most_s, count in PLACES if medians[0] <= most_s)
    return min(medians)


def _in_any_order(keys: Sequence[Key], device: str) -> Iterator[tuple[Key, Problem]]:
    """Cells with their problems. Those of a problem share its oracle, so they stay together."""
    from attnbench.sweep.plan import problems

    by_cell = {(p.kv_len, p.phase): p for p in problems(suite.grid(device))}
    chance = random.SystemRandom()
    groups = [list(g) for _, g in groupby(sorted(keys, key=lambda k: k[1:]), lambda k: k[1:])]
    for group in chance.sample(groups, len(groups)):
        for key in chance.sample(group, len(group)):
            yield key, by_cell[key[1:]]


def is_first(key: Key, figure: str, here: Path) -> bool:
    """Whether this figure is taken from here for the first time; a file records it."""
    name = "taken-" + "-".join(map(str, (figure, *key))).replace("/", "_")
    with suppress(FileExistsError):
        os.close(os.open(here / name, os.O_CREAT | os.O_EXCL))
        return True
    return False


def _unlike(commit: str) -> str:
    """Why this attnbench can't use the commit's table, which loads; a sentence, or nothing."""
    import impls

    impls.table(())  # what is broken in the commit itself is raised here
    try:
        from attnbench.sweep import places, start, sweep  # noqa: F401
    except ImportError as missing:
        return (
            f"commit {commit[:8]} lacks what this attnbench asks of a table ({missing}); give a "
            "later one"
        )
    return ""


def _swept(
    keys: Sequence[Key], request: AsvRequest, here: Path, first: Path, *, energy: bool
) -> dict[Key, SuiteRow]:
    from attnbench.core.store import read_records
    from attnbench.sweep.places import Local
    from attnbench.sweep.start import begin
    from attnbench.sweep.sweep import Interrupt, sweep

    names, rows = _known(keys)
    if not names:
        return rows
    places, grid = Local(first=first), _grid(list(names), keys, request)
    begun = begin(grid.variants, grid, (), here / "results", seed=0, threads=None, energy=energy)
    plan = _only(keys, begun.plan, names)
    try:
        with places.slots(begun.settings, grid.device) as slots:
            sweep(plan, begun.done, begun.folder, slots, PrintedProgress(), Interrupt(print))
    finally:
        begun.folder.close()
    labels = {label: name for name, label in names.items()}
    for record in read_records(begun.folder.path):
        problem = record.problem
        key = (labels[record.variant], problem.kv_len, problem.phase)
        rows[key] = suite.row(record)
    return rows


def _known(keys: Sequence[Key]) -> tuple[dict[str, str], dict[Key, SuiteRow]]:
    """The labels of the variants that the commit's table has; rows for all others."""
    import impls
    from impls.asked import CantBeDone

    table, names, rows = impls.table(()), dict[str, str](), dict[Key, SuiteRow]()
    for key in keys:
        try:
            names[key[0]] = table.find(key[0]).label
        except CantBeDone as unknown:
            rows[key] = SuiteRow("unavailable", f"in the commit's table {unknown}", {})
    return names, rows


def _grid(names: list[str], keys: Sequence[Key], request: AsvRequest) -> Preset:
    grid = suite.grid(request.device)
    return grid.with_(
        variants=tuple(names),
        seq=tuple(dict.fromkeys(str(n) for _, n, _ in keys)),
        phase=tuple(p for p in grid.phase if any(k[2] == p for k in keys)),
        budget=QUICK_S,
    )


def _only(keys: Sequence[Key], plan: Plan, names: dict[str, str]) -> Plan:
    """The cells of a plan that are in the request."""
    wanted = {(names[name], length, phase) for name, length, phase in keys if name in names}
    return type(plan)(
        [c for c in plan.cells if (c.variant.label, c.problem.kv_len, c.problem.phase) in wanted]
    )


class PrintedProgress:
    """Prints a line for each cell, which asv shows where the set-up fails."""

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """A cell has ended."""
        print(f"{done}/{total} {record.variant} {record.status}")

    def tell(self, sentence: str) -> None:
        """Something that is not about one cell."""
        print(sentence)
