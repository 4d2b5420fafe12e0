"""``attnbench.load(…)``: records as a DataFrame, and the records behind the rows of one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.core.store import each_run
from attnbench.core.store import load as read_frames
from attnbench.notebook.arguments import BadWord
from attnbench.report.scenes import ReportRun, gather
from impls.problem import Problem

if TYPE_CHECKING:
    import pandas as pd

FIRST = (
    "variant", "problem.phase", "problem.mask", "problem.q_len", "problem.kv_len", "status",
    "time.median_s", "time.low_s", "time.high_s", "memory.peak_bytes", "error.forward.relative",
    "reason", "remedy", "computes", "family", "folder",
)  # fmt: skip
"""Columns that are always there, and come first."""
PARTS = ("time", "memory", "error", "distance", "cost", "energy", "determinism", "ranks")
"""Parts of a record that get an empty column of their own where a record lacks them."""
SAMPLES = "time.samples_s"
PROBLEM = tuple(f"problem.{name}" for name in Problem.__dataclass_fields__)
CELL = ("variant", *PROBLEM)
"""The columns that identify a cell of a run."""


def load(*runs: str | Path, samples: bool = False) -> pd.DataFrame:
    """The records of run folders, and of all folders below them, as a DataFrame: a row each.

    Columns are named by their path in the record, units at the end: ``time.median_s``,
    ``memory.peak_bytes``, ``problem.q_len``. A cell that was not measured has a row with its
    ``status`` and ``reason``. ``folder`` is the run's; with one run it is ``df.attrs["run"]`` too.
    ``samples``: every single time as well, as lists in ``time.samples_s``.

    >>> df = attnbench.load("results")                                    # doctest: +SKIP
    >>> df[df.status == "measured"].groupby("variant")["time.median_s"].median()  # doctest: +SKIP
    """
    folders = each_run(map(Path, runs or ("results",)))
    frame = read_frames(folders)
    counts = frame.attrs.pop("rows")
    names = [str(path) for path, count in zip(folders, counts, strict=True) for _ in range(count)]
    frame = frame.assign(folder=names)
    frame = frame.drop(columns=[*PARTS, *([] if samples else [SAMPLES])], errors="ignore")
    frame = frame.reindex(columns=[*FIRST, *(name for name in frame if name not in FIRST)])
    frame.attrs["runs"] = [str(path) for path in folders]
    if len(folders) == 1:
        frame.attrs["run"] = str(folders[0])
    return frame


def behind(what: Any) -> list[ReportRun]:
    """The runs that a table's rows belong to, with the records of these rows.

    ``what``: a DataFrame of :func:`load`'s, whole or a part of it, a folder, or several folders;
    of folders, all records.
    """
    import pandas as pd

    if not isinstance(what, pd.DataFrame):
        folders = [what] if isinstance(what, str | Path) else list(what)
        return gather([Path(folder) for folder in folders])
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
    runs = []
    for run in gather([Path(folder) for folder in cells]):
        wanted = cells[str(run.path)]
        kept = [
            (record, line)
            for record, line in zip(run.records, run.lines, strict=True)
            if (record.variant, *record.problem.to_dict().values()) in wanted
        ]
        runs.append(replace(run, records=[r for r, _ in kept], lines=[n for _, n in kept]))
    return runs
