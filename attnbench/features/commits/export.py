"""Runs as results of asv's, so that sweeps stand in its pages and in its comparisons.

The sweeps of a commit on one machine share a file: times of one cell are put together; a cell that
failed in one stays failed. A graph has a line for each variant, length and phase; all else of a
problem is in the group, the first word of a benchmark's name.
"""

from __future__ import annotations

import hashlib
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.core.checkout import Repository, find_commit, git
from attnbench.core.disk import HEADER, write_whole
from attnbench.core.format import counted
from attnbench.core.record import NOT_TRIED, PROTOCOL, Record, Status
from attnbench.core.settings import KEPT, allocator_of
from attnbench.core.store import read_header, read_records, some_runs
from attnbench.features.commits import asv_interface, suite
from attnbench.features.commits.rows import words_of
from attnbench.sweep.plan import problems
from impls.errors import CantBeDone
from impls.problem import SHORT, Problem

if TYPE_CHECKING:
    from asv.results import Results

FAILED, SKIPPED = None, math.nan
Value = list[float] | float | None
"""A time of each run, or one figure, or why there is none: SKIPPED or FAILED, as asv has it."""
Values = dict[str, dict[asv_interface.Cell, Value]]
"""Of each benchmark each cell, by asv's text of its parameters."""


@dataclass(frozen=True)
class CommitRun:
    """A run of a commit, or a leg of one."""

    path: Path
    leg: int
    header: Mapping[str, Any]
    commit: str
    committed_ms: int
    started: datetime
    outside: frozenset[str]
    """The rows that are not attnbench's: all of them, or those of a repository of its own."""
    own: bool
    """Whether these are what is filed, and not all others."""

    def takes(self, record: Record) -> bool:
        """Whether a record is of the code whose commit this is."""
        return bool(words_of(record.variant) & self.outside) == self.own

    def add_to(self, sheets: dict[tuple[str, str, str], tuple[CommitRun, Any, Values]]) -> int:
        """Add what it says of each cell, by machine, commit and Python, with asv's entry; how many
        are not of this code.
        """
        threads, others = self.header["settings"]["threads"], 0
        for record in read_records(self.path):
            node = self.header.get("nodes", {}).get(record.node, {})
            if node.get("leg", 1) != self.leg:
                continue
            if not self.takes(record):
                others += 1
                continue
            machine, problem = node.get("machine", self.header["machine"]), record.problem
            entry = asv_interface.entry(machine)
            python = ".".join(machine["python"].split(".")[:2])  # as asv names an environment's
            place = (entry["machine"], self.commit, python)
            values = sheets[place][-1] if place in sheets else {}
            sheets[place] = self, entry, values
            own = max(1, machine["cores"] - 1)  # threads that a measurement takes by itself
            name = group_on(machine, problem, None if threads == own else threads)
            name += "-kept" * (allocator_of(self.header) == KEPT)
            cell = tuple(suite.written((record.variant, problem.kv_len, problem.phase)))
            for figure, found in suite.row(record).figures.items():
                if figure == "energy" and not self.header.get("energy"):
                    continue
                value: Value = SKIPPED if found is None or record.status in NOT_TRIED else found
                if record.status is not Status.MEASURED and record.status not in NOT_TRIED:
                    value = FAILED
                put(values.setdefault(f"{name}.{figure}", {}), cell, value)
        return others


def put(cells: dict[asv_interface.Cell, Value], cell: asv_interface.Cell, new: Value) -> None:
    """What another run says of a cell: times are put together, of one figure the later stands."""
    old = cells.get(cell, SKIPPED)
    if old is FAILED or new is FAILED:
        cells[cell] = FAILED
    elif isinstance(old, list) and isinstance(new, list):
        again = any(old[i : i + len(new)] == new for i in range(len(old)))  # exported before
        cells[cell] = old if again else [*old, *new]
    else:
        cells[cell] = new if _says(new) else old


def _says(value: Value) -> bool:
    """Whether there is a figure, or are times."""
    return isinstance(value, list) or (value is not None and not math.isnan(value))


def export(
    paths: Sequence[str | Path],
    results: Path,
    repository: Repository,
    say: Callable[[str], object] = print,
) -> list[Path]:
    """Write runs into asv's results folder; the files that they are in.

    A run that was only found in a folder is left out where it has no place there, and why is said.
    ``repository``: the one whose history it is, and whose rows are filed. Raises CantBeDone where
    none can be exported, or one that was named can't, or the files can't be written.
    """
    found: dict[Path, list[CommitRun]] = {}
    left_out = []
    for path in map(Path, paths):
        for run in some_runs([path]):
            try:
                found[run.resolve()] = _legs(run, repository)
            except CantBeDone as refused:
                if run == path:
                    raise
                left_out.append(str(refused))
                say(f"left out: {refused}")
    if not found:
        raise CantBeDone(f"of the {len(left_out)} runs there none can be exported: {left_out[0]}")
    sheets: dict[tuple[str, str, str], tuple[CommitRun, Any, Values]] = {}
    for one in sorted((leg for some in found.values() for leg in some), key=lambda x: x.started):
        if others := one.add_to(sheets):
            say(
                f"left out of {one.path}: {counted(others, 'measurement')} of rows that are not "
                f"those of {repository.root}; export them where these are"
            )
    if not sheets:
        raise CantBeDone(f"there is no record in {', '.join(map(str, paths))} yet; finish the run")
    try:
        written = [_save(*sheet, python, results) for (*_, python), sheet in sheets.items()]
        asv_interface.write(results)
    except OSError as error:
        raise CantBeDone(
            f"can't write {error.filename or results}: {error.strerror}; make room "
            "there, or make it writable"
        ) from None
    return written


def _legs(run: Path, repository: Repository) -> list[CommitRun]:
    header = read_header(run)
    headers = [header, *({**header, **leg} for leg in header.get("legs") or ())]
    return [_leg(run, repository, each, number) for number, each in enumerate(headers, 1)]


def _code(
    path: Path, header: Mapping[str, Any], repository: Repository
) -> tuple[Mapping[str, Any], frozenset[str]]:
    """The commit of what is filed of a run, and the rows that :class:`CommitRun` tells apart."""
    outside = header.get("outside", {})
    if repository.own:
        here = [one for one in outside.values() if _is_commit(one["commit"], repository.root)]
        if not here:
            of = "; ".join(f"{name}, commit {one['commit']}" for name, one in outside.items())
            raise CantBeDone(
                f"{path} holds no rows of a commit of {repository.root} (from outside attnbench it "
                f"has {of or 'none'}); measure them installed by 'pip install -e .', or with "
                "--table, so that the run says their commit"
            )
        alike = [one for one in here if one["commit"] == here[0]["commit"]]
        return here[0], frozenset(name for one in alike for name in one["rows"])
    return header["code"], frozenset(name for each in outside.values() for name in each["rows"])


def _is_commit(commit: str | None, root: Path) -> bool:
    return commit is not None and git(root, "cat-file", "-e", f"{commit}^{{commit}}") is not None


def _leg(path: Path, repository: Repository, header: Mapping[str, Any], number: int) -> CommitRun:
    """One leg of a run; raises a sentence where it is of no commit of the repository."""
    root = repository.root
    try:
        code, outside = _code(path, header, repository)
        commit, dirty, protocol = *map(code.get, ("commit", "dirty")), header["protocol"]
        nodes = header.get("nodes", {}).values()
        for machine in (header["machine"], *(node["machine"] for node in nodes)):
            asv_interface.entry(machine)
            machine["python"]
        started = datetime.fromisoformat(header["started"]).astimezone(UTC)
        header["settings"]["threads"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CantBeDone(f"{path / HEADER} is damaged ({error!r}); measure again") from None
    why = ""
    if commit is None or dirty is None:
        why = "says no commit: its attnbench is in no git checkout; measure again from a clone"
    elif dirty:
        why = "was measured with changes that no commit holds; commit the changes and measure again"
    elif protocol != PROTOCOL:
        why = (
            f"was measured with protocol {protocol} and this attnbench has {PROTOCOL}, so the "
            "numbers can't share a graph; measure that commit again"
        )
    if why:
        raise CantBeDone(f"{path} of commit {str(commit)[:8]} {why}")
    try:
        sha = find_commit(str(commit), root).sha
    except CantBeDone as unknown:
        raise CantBeDone(f"{path} is of a commit that can't be looked up: {unknown}") from None
    committed_ms = int(git(root, "show", "--no-patch", "--format=%at", sha) or 0) * 1000
    more = outside, repository.own
    return CommitRun(path, number, header, sha, committed_ms, started, *more)


def _save(
    run: CommitRun, entry: dict[str, str], values: Values, python: str, results: Path
) -> Path:
    """One file of asv's, of a commit on a machine, with what it said before."""
    from asv.results import Results
    from asv.runner import BenchmarkResult
    from asv.util import UserError

    about: dict[str, Any] = {**entry, "python": python}
    ruler = f"sweep-protocol{PROTOCOL}-py{python}"
    whole = Results(about, {}, run.commit, run.committed_ms, python, ruler, {})
    path = results / whole._filename
    try:
        whole.load_data(str(results))
        before = {name: _before(whole, name) for name in values}
    except (UserError, ValueError, TypeError, AttributeError) as error:
        raise CantBeDone(
            f"{path} is damaged ({error}); move it away and export again all that was in it"
        ) from None
    for name, new in values.items():
        cells = before[name]
        for cell, value in new.items():
            put(cells, cell, value)
        if not any(value is FAILED or _says(value) for value in cells.values()):
            continue
        params = [asv_interface.in_order(each) for each in zip(*cells, strict=True)]
        every = [cells.get(cell, SKIPPED) for cell in product(*params)]
        samples = [value if isinstance(value, list) else None for value in every]
        values_of = [0.0 if isinstance(value, list) else value for value in every]
        numbers = [None if each is None else 1 for each in samples]
        result = BenchmarkResult(values_of, samples, numbers, 0, "", None)
        listed = {**(asv_interface.described(name) or {}), "params": params}
        whole.add_result(listed, result, run.started, record_samples=True)
    asv_interface.save_entry(results, entry)
    with tempfile.TemporaryDirectory() as folder:
        whole.save(folder)
        write_whole(path, (Path(folder) / whole._filename).read_bytes())
    return path


def _before(whole: Results, name: str) -> dict[asv_interface.Cell, Value]:
    """What the file says of a benchmark; nothing where that is by another ruler."""
    version = (asv_interface.described(name) or {}).get("version")
    if name not in whole.get_all_result_keys() or whole.benchmark_version.get(name) != version:
        return {}
    params = whole.get_result_params(name)
    values = whole.get_result_value(name, params), whole.get_result_samples(name, params)
    return {
        cell: samples or value
        for cell, value, samples in zip(product(*params), *values, strict=True)
    }


FROM_FILES = ("dense:", "bias:", "captured:")


def group_on(machine: Mapping[str, Any], problem: Problem, threads: int | None = None) -> str:
    """The suite's own group, or another, for what a machine measured."""
    found = group(problem, threads)
    own = _of_suite("cuda" if "cuda" in machine.get("devices", ()) else "cpu")
    return suite.MODULE if found == own else found


@cache
def _of_suite(device: str) -> str:
    return group(next(problems(suite.grid(device))))


def group(problem: Problem, threads: int | None = None) -> str:
    """All of a problem but its length and phase, as a word: ``b2-h16-d128-bf16-causal-cuda``."""

    def plain(text: str) -> str:  # in letters that a file name and an address may have
        found = re.sub(r"[^A-Za-z0-9]+", "_", text)
        if any(kind in text for kind in FROM_FILES):  # of a file's name, letters may be lost
            found += "_" + hashlib.sha256(text.encode()).hexdigest()[:6]
        return found

    p = problem
    kind = p.device.partition(":")[0]  # one GPU of a machine is as good as another
    words = (
        (f"b{p.batch}", True),
        (f"h{p.heads}" + f"of{p.kv_heads}" * (p.kv_heads != p.heads), True),
        (f"d{p.head_dim}" + f"v{p.v_head_dim}" * (p.v_head_dim != p.head_dim), True),
        (SHORT[p.dtype], True),
        (plain(str(p.mask)), True),
        (f"q{p.q_len}", p.q_len != (1 if p.phase == "decode" else p.kv_len)),
        (plain(p.inputs), p.inputs != "normal"),
        (p.level, p.level != "core"),
        (kind, kind != "cpu"),
        (f"{threads}-threads", threads is not None),
    )
    return "-".join(word for word, said in words if said)
