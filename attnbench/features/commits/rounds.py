"""Two commits in several processes, both in each, since each process has a luck that lasts.

Where the system put a process's memory makes the same code some hundredths faster or slower than in
another, for as long as the process lives, and no number of pairs between two processes shows it. In
one process that luck is the same for both. So each round starts one, in which the two commits lie
beside each other, and what is said rests on the rounds: each gives one median of log(head/base),
and the interval is Student's of these. Looks after 4, 8 and 16 rounds share the confidence; a cell
that is decided is not measured again. What can't be had in one process (both register an operator
of the same name, say) is measured in two, and the rounds average over their luck.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from attnbench.core.checkout import Commit, changed, laid_out
from attnbench.core.machine import Machine
from attnbench.core.stats import (
    VERDICT_CONFIDENCE,
    Comparison,
    Pairs,
    StopRule,
    Verdict,
    corrected,
    student,
    student_quantile,
)
from attnbench.features.commits.pairs import (
    CommitCell,
    CommitsComparison,
    Open,
    PullRequest,
    compare_cell,
)
from attnbench.sweep.plan import Cell, make_plan
from attnbench.sweep.presets import Preset
from impls import Table, UnknownVariant
from impls.asked import CantBeDone
from impls.spec import InvalidRow, Variant

LOOKS = (4, 8, 16)
"""Rounds in all at each look."""
BUDGET_S = 240.0
"""Seconds a cell, its checks included; after that no round begins."""
PAIRS = 80
"""Of a cell in a round: four places in memory."""


@dataclass
class Taken:
    """A cell, and what the rounds have given of it."""

    cell: Cell
    a_s: list[float] = field(default_factory=list)
    b_s: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    """Of log(b/a), one a round."""
    seconds: float = 0.0
    apart: bool = False
    """It can't be had in one process, and isn't tried there again."""
    ended: CommitCell | None = None


def compare_in_rounds(
    a: Commit,
    b: Commit,
    cells: Sequence[Cell],
    opened: Open,
    *,
    margin: float,
    root: Path,
    budget_s: float = BUDGET_S,
    whole: bool = False,
    watch: Callable[[CommitCell], None] = lambda cell: None,
) -> CommitsComparison:
    """Commit b against commit a; ``budget_s`` of pairs a cell, after which no round begins."""
    taken, commits = [Taken(cell) for cell in cells], (a, b)
    with ExitStack() as stack:
        folders = [stack.enter_context(laid_out(commit, root, whole)) for commit in commits]
        for number in range(1, LOOKS[-1] + 1):
            left = [one for one in taken if one.ended is None]
            if not left:
                break
            _round(left, commits, folders, opened, margin, host=1 - number % 2)
            for one in left:
                _look(one, number, margin, budget_s)
                if one.ended is not None:
                    watch(one.ended)
    found = [one.ended for one in taken if one.ended is not None]
    pairs = list(corrected([cell.pairs for cell in found]))
    for each in filter(None, pairs):
        each.names = (a.name, b.name)
    together = tuple(replace(c, pairs=each) for c, each in zip(found, pairs, strict=True))
    return CommitsComparison(a, b, tuple(changed(a, b, root, whole)), together, margin)


def _round(
    left: Sequence[Taken],
    commits: Sequence[Commit],
    folders: Sequence[Path],
    opened: Open,
    margin: float,
    host: int,
) -> None:
    """All cells that are left, in a new process; whose own it is changes each time."""
    rule = StopRule(margin, first=PAIRS, cap=PAIRS)
    with opened(folders[host]) as own:
        other = own.beside(folders[1 - host])
        together = [other, own] if host else [own, other]
        for one in left:
            start = perf_counter()
            seen = None if one.apart else compare_cell(one.cell, commits, together, rule)
            if seen is None or (seen.pairs is None and one.cell.left_out is None):
                one.apart = True
                seen = _apart(one.cell, commits, folders, opened, rule, host)
            one.seconds += perf_counter() - start
            if seen.pairs is None:
                one.ended = seen
                continue
            one.a_s += seen.pairs.a_s
            one.b_s += seen.pairs.b_s
            ratios = [math.log(y / x) for x, y in zip(seen.pairs.a_s, seen.pairs.b_s, strict=True)]
            one.medians.append(statistics.median(ratios))


def _apart(
    cell: Cell,
    commits: Sequence[Commit],
    folders: Sequence[Path],
    opened: Open,
    rule: StopRule,
    first: int,
) -> CommitCell:
    """A cell that could not be had in one process, in two: whose fault it was, if any's."""
    with ExitStack() as stack:
        order = (first, 1 - first)
        workers = {side: stack.enter_context(opened(folders[side])) for side in order}
        return compare_cell(cell, commits, [workers[0], workers[1]], rule)


def _look(one: Taken, rounds: int, margin: float, budget_s: float) -> None:
    spent = one.seconds >= budget_s and rounds >= LOOKS[0]
    if one.ended is not None or not (rounds in LOOKS or spent):
        return
    said = judged(one.medians, margin, pairs=len(one.a_s))
    stop = "decided"
    if said.verdict is Verdict.INCONCLUSIVE:
        stop = "cap" if rounds == LOOKS[-1] else "budget" if spent else ""
    if stop:
        pairs = Pairs(said, one.a_s, one.b_s, stop)
        one.ended = CommitCell(one.cell.variant.label, one.cell.problem, pairs)


def judged(medians: Sequence[float], margin: float, pairs: int) -> Comparison:
    """What some rounds say together, at a look's share of the confidence."""
    n, middle = len(medians), statistics.mean(medians)
    error = max(statistics.stdev(medians) / math.sqrt(n), 1e-9)
    tail, edge = (1 - VERDICT_CONFIDENCE) / len(LOOKS) / 2, math.log1p(margin)
    half = student_quantile(1 - tail, n - 1) * error
    low, high = middle - half, middle + half
    verdict = Verdict.INCONCLUSIVE
    if low > edge:
        verdict = Verdict.SLOWER
    elif high < -edge:
        verdict = Verdict.FASTER
    elif -edge < low and high < edge:
        verdict = Verdict.EQUIVALENT
    p = 2 * len(LOOKS) * (1 - student((abs(middle) - edge) / error, n - 1))
    return Comparison(
        verdict,
        math.exp(middle),
        math.exp(low),
        math.exp(high),
        margin,
        math.expm1(edge + half),
        pairs,
        min(1.0, p),
    )


READ_LIMIT_S = 120
READ = """
import json, sys
from pathlib import Path
from impls import table
rows = table(sys.argv[2:]).rows.values()
with open(sys.argv[1], "w") as file:
    json.dump([row.to_dict() for row in rows], file)
"""
"""Run where a commit lies: its rows, as data."""


class NoCommonCells(CantBeDone):
    """Two commits have nothing in common that was asked for; a sentence."""


class Unreadable(Exception):
    """The table of a commit can't be read: why."""


@dataclass(frozen=True)
class CellPlan:
    """The cells that two commits are compared on, and what the tables of both tell."""

    cells: list[Cell]
    changed: tuple[str, ...]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unreadable: tuple[str, str] = ("", "")
    """Why the table of base, or of head, can't be read."""


def plan_cells(
    base: Commit,
    head: Commit,
    variants: Sequence[str],
    grid: Preset,
    machine: Machine,
    root: Path,
    tables: Sequence[str] = (),
) -> CellPlan:
    """The cells of some variants; of the grid's and all that were touched, if none is given.

    ``tables``: row files of a repository of one's own, by their path in it: each commit's own are
    read. Raises NoCommonCells where neither table can be read.
    """
    rows: list[dict[str, Variant]] = []
    why = []
    for commit in (base, head):
        try:
            rows.append(rows_of(commit, root, tables))
            why.append("")
        except Unreadable as error:
            rows.append({})
            why.append(f"commit {commit}: {error}")
    if all(why):
        raise NoCommonCells(f"{why[0]}; {why[1]}; give commits whose table can be read")
    files = changed(base, head, root, bool(tables))
    new = [] if any(why) else [name for name in rows[1] if name not in rows[0]]
    lost = [] if any(why) else sorted(set(rows[0]) - set(rows[1]))
    names = list(variants) or _touched(rows, grid, files, new, tables)
    cells = _cells(rows, names, grid, machine)
    return CellPlan(cells, tuple(files), tuple(new), tuple(lost), (why[0], why[1]))


def compare(
    base: Commit,
    head: Commit,
    variants: Sequence[str],
    grid: Preset,
    machine: Machine,
    opened: Open,
    *,
    margin: float,
    budget_s: float,
    root: Path,
    tables: Sequence[str] = (),
    plan: Callable[[Sequence[Cell]], None] = lambda cells: None,
    watch: Callable[[CommitCell], None] = lambda cell: None,
) -> PullRequest:
    """What head does to the variants of base; see :func:`plan_cells`."""
    planned = plan_cells(base, head, variants, grid, machine, root, tables)
    plan(planned.cells)
    if any(planned.unreadable):  # none of its rows can be measured
        why_a, why_b = planned.unreadable
        status_a, status_b = ("failed" if why else "" for why in planned.unreadable)
        cells = tuple(
            CommitCell(c.variant.label, c.problem, None, why_a, why_b, status_a, status_b)
            for c in planned.cells
        )
    else:
        cells = compare_in_rounds(
            base,
            head,
            planned.cells,
            opened,
            margin=margin,
            budget_s=budget_s,
            watch=watch,
            root=root,
            whole=bool(tables),
        ).cells
    return PullRequest(base, head, planned.changed, cells, margin, planned.added, planned.removed)


def rows_of(commit: Commit, root: Path, tables: Sequence[str] = ()) -> dict[str, Variant]:
    """The rows of a commit by name, as it lists them itself; raises :class:`Unreadable`."""
    with laid_out(commit, root, bool(tables)) as folder, tempfile.TemporaryDirectory() as name:
        answer = Path(name) / "rows.json"
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
        files = [str(folder / table) for table in tables]
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", READ, str(answer), *files],
                capture_output=True,
                env={**os.environ, "PYTHONPATH": path},
                timeout=READ_LIMIT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise Unreadable(f"its table was still importing after {READ_LIMIT_S} s") from None
        if done.returncode or not answer.exists():
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            said = (last or [f"it ended with status {done.returncode}"])[0]
            raise Unreadable(f"its table can't be read: {said.replace(f'{folder}{os.sep}', '')}")
        sent = json.loads(answer.read_text())
    # where the files lie is another folder each time
    rows = {}
    for row in sent:
        for key, value in row.items():
            if isinstance(value, str):
                row[key] = value.replace(f"{folder}{os.sep}", "")
        rows[row["name"]] = Variant.from_dict(row)
    return rows


def _touched(
    rows: Sequence[Mapping[str, Variant]],
    grid: Preset,
    files: Sequence[str],
    new: Iterable[str],
    tables: Sequence[str],
) -> list[str]:
    """The grid's variants, those that are new, and those whose own file changed."""
    either = {**rows[0], **rows[1]}
    if tables:
        return [name for name, row in either.items() if row.origin in tables]
    own = [
        name
        for name, row in either.items()
        if row.build.split(":")[0].replace(".", "/") + ".py" in files
    ]
    names = [name for name in grid.variants if name.split("?")[0] in either]
    return list(dict.fromkeys([*names, *own, *new]))


def _cells(
    rows: Sequence[Mapping[str, Variant]], names: Sequence[str], grid: Preset, machine: Machine
) -> list[Cell]:
    """The cells of some variants, as either commit would plan them.

    Only what neither would measure is left out: what one of them can't do any more must be seen.
    """
    found: dict[str, Cell] = {}
    for name in names:
        why: Exception | None = None
        planned = 0
        for table in (Table(dict(each)) for each in rows):
            try:
                cells = make_plan(table, [name], grid, machine).cells
            except (UnknownVariant, InvalidRow) as error:
                why = error
                continue
            planned += len(cells)
            for cell in cells:
                before = found.get(cell.key)
                if before is None or cell.left_out is None or before.left_out is not None:
                    found[cell.key] = cell
        if why is not None and not planned:
            raise why
    return list(found.values())
