"""``attnbench.load(…)``: records as a DataFrame, and the records behind the rows of one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.notebook.asked import BadWord
from attnbench.report.page.gather import gather
from attnbench.report.scenes import Ran
from attnbench.store import each_run
from attnbench.store import load as read
from impls.problem import Problem

if TYPE_CHECKING:
    import pandas as pd

FIRST = (
    "variant", "problem.phase", "problem.mask", "problem.q_len", "problem.kv_len", "status",
    "time.median_s", "time.low_s", "time.high_s", "memory.peak_bytes", "error.forward.relative",
    "reason", "remedy", "computes", "family", "folder",
)  # fmt: skip
"""Columns that are there whatever was measured, and come first."""
PARTS = ("time", "memory", "error", "distance", "cost", "energy", "determinism", "ranks")
"""Of records without one there is an empty column of that name, besides those of its values."""
SAMPLES = "time.samples_s"
PROBLEM = tuple(f"problem.{name}" for name in Problem.__dataclass_fields__)
CELL = ("variant", *PROBLEM)
"""What tells one cell of a run from the others."""


def load(*runs: str | Path, samples: bool = False) -> pd.DataFrame:
    """The records of run folders, and of all that lie below these, as a DataFrame: a row each.

    Columns are named by their way in the record, units at the end: ``time.median_s``,
    ``memory.peak_bytes``, ``problem.q_len``. What was not measured has a row with its ``status``
    and ``reason``. ``folder`` is the run's; with one run it is ``df.attrs["run"]`` too.
    ``samples``: every single time as well, as lists in ``time.samples_s``.

    >>> df = attnbench.load("results")                                    # doctest: +SKIP
    >>> df[df.status == "measured"].groupby("variant")["time.median_s"].median()  # doctest: +SKIP
    """
    folders = each_run(map(Path, runs or ("results",)))
    found = read(folders)
    counts = found.attrs.pop("rows")
    names = [str(path) for path, count in zip(folders, counts, strict=True) for _ in range(count)]
    found = found.assign(folder=names)
    found = found.drop(columns=[name for name in PARTS if name in found])
    if not samples:
        found = found.drop(columns=SAMPLES, errors="ignore")
    rest = [name for name in found if name not in FIRST]
    found = found.reindex(columns=[*FIRST, *rest])
    found.attrs["runs"] = [str(path) for path in folders]
    if len(folders) == 1:
        found.attrs["run"] = str(folders[0])
    return found


def behind(what: Any) -> list[Ran]:
    """The runs that a table's rows are of, with the records of these rows; or all of the folders.

    ``what``: a DataFrame of :func:`load`'s, whole or a part of it, a folder, or several folders.
    """
    import pandas as pd

    if not isinstance(what, pd.DataFrame):
        several = [what] if isinstance(what, str | Path) else list(what)
        return gather([Path(each) for each in several])
    if missing := [name for name in ("folder", *CELL) if name not in what]:
        raise BadWord(
            f"the table has no column {', '.join(missing[:3])}, so that it can't be told which "
            "records its rows are: give rows of attnbench.load or attnbench.run, or a run's folder"
        )
    if not len(what):
        raise BadWord("the table has no rows, so there is nothing to show")
    cells = defaultdict[str, set[tuple[Any, ...]]](set)
    for folder, *cell in what[["folder", *CELL]].itertuples(index=False, name=None):
        cells[str(folder)].add(tuple(cell))
    return _only(gather([Path(folder) for folder in cells]), cells)


def _only(runs: Sequence[Ran], cells: dict[str, set[tuple[Any, ...]]]) -> list[Ran]:
    found = []
    for run in runs:
        asked = cells[str(run.path)]
        kept = [
            (record, line) for record, line in zip(run.records, run.lines, strict=True)
            if (record.variant, *(record.problem[name[8:]] for name in PROBLEM)) in asked
        ]  # fmt: skip
        found.append(replace(run, records=[r for r, _ in kept], lines=[n for _, n in kept]))
    return found
