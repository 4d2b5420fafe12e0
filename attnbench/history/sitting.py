"""All cells of a commit in one sitting: the sweep that ``attnbench run`` makes, with its ruler.

It is made in the folder that asv gives to the set-up and to the benchmarks that use it. A figure
that is wanted a second time from there (rounds that do not take turns) is measured anew: samples
that were counted twice would pass for independent ones.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.history import ruler, suite
from attnbench.history.command import Asked
from attnbench.history.suite import Cache, Key, Row

if TYPE_CHECKING:
    from attnbench.record import Record
    from attnbench.sweep.plan import Plan
    from attnbench.sweep.presets import Preset

QUICK_S = 0.01
"""Seconds of samples a cell where only a look is wanted."""


def measured(asked: Asked, here: Path) -> Cache:
    """Everything that was asked for, of the commit whose environment this process is of."""
    impls, commit = ruler.impls_of_commit(), os.environ.get("ASV_COMMIT", "that is checked out")
    if skipped := ruler.why_not(impls, commit) or _unlike(commit):
        return Cache({}, skipped)
    assert impls is not None
    first = ruler.laid_out(impls, here / "commit")
    wanted = suite.keys(asked)
    counted = suite.keys(asked, ["energy"])
    rows: dict[Key, Row] = {}
    for keys, energy in (([k for k in wanted if k not in counted], False), (counted, True)):
        if keys:
            rows |= _swept(keys, asked, here, first, energy=energy)
    return Cache(rows)


def anew(key: Key, asked: Asked, here: Path) -> Row:
    """One cell, in a sweep of its own."""
    impls = ruler.impls_of_commit()
    assert impls is not None
    return _swept([key], asked, here, ruler.laid_out(impls, here / "commit"), energy=False)[key]


def is_first(key: Key, figure: str, here: Path) -> bool:
    """Whether nobody has taken this figure from here before; from now on somebody has."""
    name = "taken-" + "-".join(map(str, (figure, *key))).replace("/", "_")
    with suppress(FileExistsError):
        os.close(os.open(here / name, os.O_CREAT | os.O_EXCL))
        return True
    return False


def _unlike(commit: str) -> str:
    """Why the ruler can't ask the commit's table, which loads by itself; a sentence, or nothing."""
    import impls

    impls.table(())  # what is broken in the commit itself is raised here
    try:
        from attnbench.sweep import local, run, start  # noqa: F401
    except ImportError as missing:
        return (
            f"commit {commit[:8]} lacks what this attnbench asks of a table ({missing}); give a "
            "later one"
        )
    return ""


def _swept(keys: Sequence[Key], asked: Asked, here: Path, first: Path, *,
           energy: bool) -> dict[Key, Row]:  # fmt: skip
    from attnbench.store import read_records
    from attnbench.sweep.local import Local
    from attnbench.sweep.run import Interrupt, sweep
    from attnbench.sweep.start import begin

    names, rows = _known(keys)
    if not names:
        return rows
    places, grid = Local(first=first), _grid(list(names), keys, asked)
    begun = begin(grid.variants, grid, (), here / "results", seed=0, threads=None, energy=energy)
    plan = _only(keys, begun.plan, names)
    try:
        with places.slots(begun.settings, grid.device) as slots:
            sweep(plan, begun.done, begun.folder, slots, Quiet(), Interrupt(print))
    finally:
        begun.folder.close()
    labels = {label: name for name, label in names.items()}
    for record in read_records(begun.folder.path):
        problem = record.problem
        key = (labels[record.variant], int(problem["kv_len"]), str(problem["phase"]))
        rows[key] = suite.row(record)
    return rows


def _known(keys: Sequence[Key]) -> tuple[dict[str, str], dict[Key, Row]]:
    """The variants that the commit's table has, with their labels; rows for all others."""
    import impls
    from impls.asked import CantBeDone

    table, names, rows = impls.table(()), dict[str, str](), dict[Key, Row]()
    for key in keys:
        try:
            names[key[0]] = table.find(key[0]).label
        except CantBeDone as unknown:
            rows[key] = Row("unavailable", f"in the commit's table {unknown}", {})
    return names, rows


def _grid(names: list[str], keys: Sequence[Key], asked: Asked) -> Preset:
    grid = suite.grid(asked.device)
    return grid.with_(
        variants=tuple(names), seq=tuple(dict.fromkeys(str(n) for _, n, _ in keys)),
        phase=tuple(p for p in grid.phase if any(k[2] == p for k in keys)),
        budget=QUICK_S if asked.quick else None,
    )  # fmt: skip


def _only(keys: Sequence[Key], plan: Plan, names: dict[str, str]) -> Plan:
    """The cells of a plan that were asked for."""
    wanted = {(names[name], length, phase) for name, length, phase in keys if name in names}
    return type(plan)([
        c for c in plan.cells
        if (c.variant.label, c.problem.kv_len, c.problem.phase) in wanted
    ])  # fmt: skip


class Quiet:
    """Says a line of each cell, which asv shows where the set-up fails."""

    def cell(self, record: Record, done: int, total: int, left_s: float) -> None:
        """A cell has ended."""
        print(f"{done}/{total} {record.variant} {record.status}")

    def tell(self, sentence: str) -> None:
        """Something that is not about one cell."""
        print(sentence)
