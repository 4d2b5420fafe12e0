"""Runs as results of asv's, so that sweeps stand in its pages and in its comparisons.

What asv calls failed is a cell that was run and did not end as measured: it has no value. What it
calls skipped (``n/a``) is one that was not to be had on that machine, or that no run asked for. The
sweeps of a commit on one machine share a file. The times that several of them took of one cell
are values of independent processes, and are put together; a cell that failed in one stays failed,
however fast it was in another.

A graph of asv's has one line for each variant, length and phase. All else that a problem holds
(heads, dtype, mask …) is in the group, which is the first word of a benchmark's name: the suite's
own for what the suite measures on such a machine, and one that spells the problem for the rest. So
times of unlike problems never meet in a graph.
"""

from __future__ import annotations

import hashlib
import math
import re
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import impls
from attnbench.core.checkout import git
from attnbench.core.disk import HEADER, write_whole
from attnbench.core.record import NOT_TRIED, PROTOCOL, Record, Status
from attnbench.core.store import find_runs, read_header, read_records
from attnbench.features.commits import asv, suite
from attnbench.features.commits.asv import entry, save_entry
from attnbench.features.commits.revisions import find_commit
from attnbench.sweep.plan import problems
from impls.asked import CantBeDone
from impls.problem import SHORT, Problem

if TYPE_CHECKING:
    from asv.results import Results


class CantExport(CantBeDone):
    """A run that belongs to no commit, or whose numbers stand for something else; a sentence."""


@dataclass(frozen=True)
class CommitRun:
    """A run of a commit, or a leg of one."""

    path: Path
    commit: str
    committed_ms: int
    """When the commit was made, in the milliseconds that asv counts in."""
    started: datetime
    machine: Mapping[str, Any]
    nodes: Mapping[str, Mapping[str, Any]]
    threads: int
    energy: bool
    leg: int = 1

    def records(self) -> Iterator[tuple[Mapping[str, Any], Record]]:
        """What was measured in this leg of the run, and the machine that measured it."""
        for record in read_records(self.path):
            node = self.nodes.get(record.node, {})
            if node.get("leg", 1) == self.leg:
                yield node.get("machine", self.machine), record

    def own_threads(self, machine: Mapping[str, Any]) -> int | None:
        """How many threads were asked for, where a measurement takes another number by itself."""
        return None if self.threads == max(1, machine["cores"] - 1) else self.threads


def sweeps(paths: Iterable[Path], root: Path, say: Callable[[str], None]) -> list[CommitRun]:
    """The runs that are, or lie below, some paths, oldest first.

    A run that was named is refused by raising a sentence; one that was only found in a folder is
    left out, and the sentence said.
    """
    found: dict[Path, list[CommitRun]] = {}
    left_out = []
    for path in paths:
        runs = list(find_runs([path]))
        if not runs:
            raise CantExport(f"there is no run in {path}; runs lie in results/<machine>/<run>")
        for run in runs:
            try:
                found[run.resolve()] = legs(run, root)
            except CantBeDone as refused:
                if run == path:
                    raise
                left_out.append(str(refused))
    if not found:
        raise CantExport(f"of the {len(left_out)} runs there none can be exported: {left_out[0]}")
    for sentence in left_out:
        say(f"left out: {sentence}")
    return sorted((leg for some in found.values() for leg in some), key=lambda one: one.started)


def legs(path: Path, root: Path) -> list[CommitRun]:
    """The legs of a run, each of a commit of ``root``; raises a sentence where one is of none."""
    header = read_header(path)
    later = enumerate(header.get("legs") or (), 2)
    return [
        _leg(path, root, header, 1),
        *(_leg(path, root, {**header, **more}, number) for number, more in later),
    ]


def _leg(path: Path, root: Path, header: Mapping[str, Any], number: int) -> CommitRun:
    try:
        code, machine, protocol = header["code"], header["machine"], header["protocol"]
        commit, dirty = code["commit"], code["dirty"]
        for needed in ("name", "cpu", "cores", "memory_bytes", "python"):
            machine[needed]
        for node in header.get("nodes", {}).values():
            node["machine"]
        started = datetime.fromisoformat(header["started"]).astimezone(UTC)
        found = CommitRun(
            path,
            str(commit),
            0,
            started,
            machine,
            header.get("nodes", {}),
            int(header["settings"]["threads"]),
            bool(header.get("energy")),
            number,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CantExport(
            f"{path / HEADER} is damaged ({error!r}), so it can't be told what {path} measured; "
            "measure again"
        ) from None
    _check(path, commit, dirty, protocol)
    return replace(found, committed_ms=_committed(found, root))


def _check(path: Path, commit: str | None, dirty: bool | None, protocol: int) -> None:
    if commit is None or dirty is None:
        raise CantExport(
            f"{path} says no commit: it was measured by an attnbench that is in no git checkout, "
            "and has no place in a history; measure again from a clone"
        )
    if dirty:
        raise CantExport(
            f"{path} was measured with changes that no commit holds, so its numbers are not those "
            f"of {commit[:8]}; commit the changes and measure again"
        )
    if protocol != PROTOCOL:
        raise CantExport(
            f"{path} was measured with protocol {protocol} and this attnbench has {PROTOCOL}: "
            "numbers of unlike protocols can't share a graph; measure that commit again"
        )


def _committed(found: CommitRun, root: Path) -> int:
    try:
        sha = find_commit(found.commit, root).sha
    except CantBeDone as unknown:
        raise CantExport(
            f"{found.path} was measured at a commit that can't be looked up: {unknown}"
        ) from None
    return int(git(root, "show", "--no-patch", "--format=%at", sha) or 0) * 1000


FAILED = None
SKIPPED = math.nan
Value = list[float] | float | None
"""A time of each run, or one figure, or how asv says that there is none: :data:`SKIPPED`,
:data:`FAILED`.
"""


class ResultsError(CantBeDone):
    """Something about asv's results folder; a sentence with what to do."""


class ResultsPlace(NamedTuple):
    """What shares a file of asv's results."""

    machine: str
    commit: str
    python: str


@dataclass
class Sheet:
    """What a file is to say: of each benchmark each cell, by asv's text of its parameters."""

    entry: dict[str, str]
    sweep: CommitRun
    """The last of them."""
    values: dict[str, dict[asv.Cell, Value]] = field(default_factory=dict)

    def add(self, name: str, cell: asv.Cell, value: Value) -> None:
        """What a run says of a cell, beside what those before it said."""
        cells = self.values.setdefault(name, {})
        cells[cell] = together(cells[cell], value) if cell in cells else value


def export(
    paths: Sequence[str | Path],
    results: Path,
    *,
    root: Path | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> list[Path]:
    """Write runs into asv's results folder; the files that they are in.

    Nothing is written if a run that was named has no place there. ``root`` is the checkout whose
    history it is, by default the one that holds ``impls``.
    """
    root = root or Path(impls.__file__).resolve().parents[1]
    found = sweeps([Path(p) for p in paths], root, say)
    sheets: dict[ResultsPlace, Sheet] = {}
    for sweep in found:
        for machine, record in sweep.records():
            _enter(sheets, sweep, machine, record)
    if not sheets:
        raise CantExport(f"there is no record in {', '.join(map(str, paths))} yet; finish the run")
    try:
        written = [_save(place, sheet, results) for place, sheet in sheets.items()]
        asv.write(results)
    except OSError as error:
        raise ResultsError(
            f"can't write {error.filename or results}: {error.strerror}; make room "
            "there, or make it writable"
        ) from None
    return written


def together(old: Value, new: Value) -> Value:
    """What two runs say of one cell: both times; of one figure, what the later one says."""
    if old is FAILED or new is FAILED:
        return FAILED
    if isinstance(old, list) and isinstance(new, list):
        return old if _holds(old, new) else [*old, *new]
    return new if _says(new) else old


def _says(value: Value) -> bool:
    """Whether there is a figure, or are times."""
    return value is not None and (isinstance(value, list) or not math.isnan(value))


def _holds(old: Sequence[float], new: Sequence[float]) -> bool:
    """Whether a run's time is there already, since it was exported before."""
    last = len(old) - len(new) + 1
    return any(old[i : i + len(new)] == list(new) for i in range(last))


def _enter(
    sheets: dict[ResultsPlace, Sheet], sweep: CommitRun, machine: Mapping[str, Any], record: Record
) -> None:
    mine = entry(machine)
    python = ".".join(machine["python"].split(".")[:2])  # as asv names an environment's
    sheet = sheets.setdefault(
        ResultsPlace(mine["machine"], sweep.commit, python), Sheet(mine, sweep)
    )
    sheet.sweep = sweep
    group = group_on(machine, record.problem, sweep.own_threads(machine))
    cell = cell_of(record.variant, record.problem)
    for figure in suite.FIGURES.values():
        if figure.name != "energy" or sweep.energy:
            sheet.add(f"{group}.{figure.name}", cell, _value(record, figure))


def _value(record: Record, figure: suite.SuiteFigure) -> Value:
    if record.status in NOT_TRIED:
        return SKIPPED
    if record.status is not Status.MEASURED:
        return FAILED
    value = figure.of(record)
    return SKIPPED if value is None else value


def _save(place: ResultsPlace, sheet: Sheet, results: Path) -> Path:
    """One file, with what it said before."""
    from asv.results import Results
    from asv.util import UserError

    whole = Results(
        {**sheet.entry, "python": place.python},
        {},
        place.commit,
        sheet.sweep.committed_ms,
        place.python,
        f"sweep-protocol{PROTOCOL}-py{place.python}",
        {},
    )
    path = results / whole._filename
    try:
        whole.load_data(str(results))
        before = {name: _before(whole, name) for name in sheet.values}
    except (UserError, ValueError, TypeError, AttributeError) as error:
        raise ResultsError(
            f"{path} is damaged ({error}); move it away and export again all that was in it"
        ) from None
    for name, new in sheet.values.items():
        _add(whole, name, before[name], new, sheet.sweep)
    save_entry(results, sheet.entry)
    with tempfile.TemporaryDirectory() as folder:
        whole.save(folder)
        write_whole(path, (Path(folder) / whole._filename).read_bytes())
    return path


def _add(
    whole: Results,
    name: str,
    cells: dict[asv.Cell, Value],
    new: Mapping[asv.Cell, Value],
    sweep: CommitRun,
) -> None:
    """A benchmark's row, over all cells that it had or has."""
    from asv.runner import BenchmarkResult

    for cell, value in new.items():
        cells[cell] = together(cells[cell], value) if cell in cells else value
    if not any(value is FAILED or _says(value) for value in cells.values()):
        return  # not to be had there at all
    about = asv.described(name)
    assert about is not None
    said = {**about, "params": asv.axes(cells)}
    values = [cells.get(cell, SKIPPED) for cell in product(*said["params"])]
    samples = [value if isinstance(value, list) else None for value in values]
    result = BenchmarkResult(
        result=[0.0 if isinstance(value, list) else value for value in values],
        samples=samples,
        number=[None if each is None else 1 for each in samples],
        errcode=0,
        stderr="",
        profile=None,
    )
    whole.add_result(said, result, sweep.started, record_samples=True)


def _before(whole: Results, name: str) -> dict[asv.Cell, Value]:
    """What the file says of a benchmark; the samples of an earlier version are one value."""
    if name not in whole.get_all_result_keys():
        return {}
    params = whole.get_result_params(name)
    values = zip(
        product(*params),
        whole.get_result_value(name, params),
        whole.get_result_samples(name, params),
        strict=True,
    )
    about = asv.described(name)
    same = about is not None and whole.benchmark_version.get(name) == about["version"]
    return {
        cell: (samples if same else [statistics.median(samples)]) if samples else value
        for cell, value, samples in values
    }


# ---- groups of problems --------------------------------------------------------------------------

FROM_FILES = ("dense:", "bias:", "captured:")


def cell_of(variant: str, problem: Problem) -> tuple[str, ...]:
    """Where in a graph it stands: the suite's parameters as asv writes them.

    The length is that of the keys, which in decoding are the tokens so far.
    """
    return tuple(suite.written((variant, problem.kv_len, problem.phase)))


def group_on(machine: Mapping[str, Any], problem: Problem, threads: int | None = None) -> str:
    """The suite's own group, or another, for what a machine measured."""
    there = "cuda" if "cuda" in machine.get("devices", ()) else "cpu"
    found = group(problem, threads)
    return suite.MODULE if found == _of_suite(there) else found


@cache
def _of_suite(device: str) -> str:
    return group(next(problems(suite.grid(device))))


def group(problem: Problem, threads: int | None = None) -> str:
    """All of a problem but its length and phase, as a word: ``b2-h16-d128-bf16-causal-cuda``.

    ``threads``: how many, where they are not as many as a measurement takes by itself.
    """
    p = problem
    heads, width = f"h{p.heads}", f"d{p.head_dim}"
    if p.kv_heads != p.heads:
        heads += f"of{p.kv_heads}"
    if p.v_head_dim != p.head_dim:
        width += f"v{p.v_head_dim}"
    words = [f"b{p.batch}", heads, width, SHORT[p.dtype], _plain(str(p.mask))]
    if p.q_len != (1 if p.phase == "decode" else p.kv_len):
        words.append(f"q{p.q_len}")
    words += [_plain(p.inputs)] * (p.inputs != "normal")
    words += [p.level] * (p.level != "core")
    kind = p.device.partition(":")[0]  # one GPU of a machine is as good as another
    words += [kind] * (kind != "cpu")
    words += [f"{threads}-threads"] * bool(threads)
    return "-".join(words)


def _plain(text: str) -> str:
    """A mask or a kind of inputs, in letters that a file name and an address may have."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", text)
    if any(kind in text for kind in FROM_FILES):  # of a file's name, letters may be lost
        plain += "_" + hashlib.sha256(text.encode()).hexdigest()[:6]
    return plain
