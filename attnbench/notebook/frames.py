"""``attnbench.load(…)``: measurements as a DataFrame, and the records behind the rows of one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from attnbench.command.arguments import BadWord
from attnbench.core.store import each_run
from attnbench.report import tidy
from attnbench.report.scenes import ReportRun, gather, read_run
from impls.operators import PARAMETERS
from impls.problem import Problem

PARTS = ("time", "memory", "error", "distance", "cost", "energy", "determinism", "ranks")
"""Parts of a record that get an empty column of their own where a record lacks them."""
SAMPLES = "time.samples_s"
PROBLEM = tuple(f"problem.{name}" for name in Problem().to_dict())
CELL = ("variant", *PROBLEM)
"""The columns that identify a measurement of a run."""
VARYING = (
    "batch", "heads", "kv_heads", "q_len", "head_dim", "v_head_dim", "dtype", "inputs", "level",
    "device", *PARAMETERS,
)  # fmt: skip
"""Parts of a problem that have a column of their own only where not all rows agree."""


class Measurements(pd.DataFrame):  # type: ignore[misc]
    """A row for each measurement, with what one asks of it first; ``raw`` has all the rest.

    ``ms`` is the median time, ``low_ms`` and ``high_ms`` its 95 % interval, ``mib`` the peak of
    memory above the inputs, ``error`` the largest relative error, ``fidelity`` how much of what
    softmax does is kept, ``vs_best`` the time over that of the fastest exact variant on the same
    problem. ``verdict`` is ``use``, ``same kernel`` as that one, ``tied`` or ``slower`` of exact
    variants, ``not exact`` of others, ``wrong on other inputs`` of what is wrong on some, and of
    what has no time its status; the ``reason`` says why. ``attnbench run --csv`` has the same
    columns, and those of a problem that all rows agree in.
    """

    _metadata = ("_raw",)
    _raw: pd.DataFrame

    @property
    def _constructor(self) -> type[Measurements]:
        return Measurements

    @property
    def raw(self) -> pd.DataFrame:
        """All that was recorded of these rows: ``time.median_s``; raises BadWord for any others."""
        if (raw := getattr(self, "_raw", None)) is None or not self.index.isin(raw.index).all():
            raise BadWord("these are not rows of attnbench.load or attnbench.run any more")
        return raw.loc[self.index]


def load(*runs: str | Path, samples: bool = False) -> Measurements:
    """The measurements of run folders, and of all folders below them, as a DataFrame: a row each.

    What was not measured has a row with its ``verdict`` and ``reason``. ``df.raw`` has every field
    of the records, with units at the end of their names (``time.median_s``), and the ``folder`` of
    the run; with one run that is ``df.attrs["run"]`` too. ``samples``: every single time as well,
    as lists in ``df.raw["time.samples_s"]``. Raises ``CantBeDone`` where one can't be read.

    >>> df = attnbench.load("results")                                    # doctest: +SKIP
    >>> df[df.verdict == "use"].pivot_table("ms", "seq", "variant")       # doctest: +SKIP
    """
    folders = each_run(map(Path, runs or ("results",)))
    gathered = [read_run(folder, number) for number, folder in enumerate(folders)]
    raw = pd.json_normalize(
        [
            {**record.to_dict(), "machine": run.machine, "folder": str(run.path)}
            for run in gathered
            for record in run.records
        ]
    )
    raw = raw.drop(columns=[*PARTS, *([] if samples else [SAMPLES])], errors="ignore")
    problems = [record.problem for run in gathered for record in run.records]
    several = [name for name in VARYING if len({getattr(p, name) for p in problems}) > 1]
    if "q_len" in several and all(p.q_len in (1, p.kv_len) for p in problems):
        several.remove("q_len")  # the phase says which
    rows = [row for run in gathered for row in tidy.measurements(run)]
    table = Measurements(tidy.frame(rows))
    table = table.drop(columns=[name for name in VARYING if name not in several], errors="ignore")
    if len(folders) > 1:
        table.insert(0, "run", [str(run.path) for run in gathered for _ in run.records])
    table._raw = raw
    table.attrs["runs"] = [str(path) for path in folders]
    if len(folders) == 1:
        table.attrs["run"] = str(folders[0])
    return table


def behind(what: Any) -> list[ReportRun]:
    """The runs that a table's rows belong to, with the records of these rows; of folders, all.

    Raises CantBeDone, as BadWord is, where there are none.
    """
    if not isinstance(what, pd.DataFrame):
        folders = [what] if isinstance(what, str | Path) else list(what)
        return gather([Path(folder) for folder in folders])
    what = what.raw if isinstance(what, Measurements) else what
    if missing := [name for name in ("folder", *CELL) if name not in what]:
        raise BadWord(
            f"the table has no column {', '.join(missing[:3])}, so that it can't be told which "
            "records its rows are: give rows of attnbench.load or attnbench.run, or a run's folder"
        )
    if not len(what):
        raise BadWord("the table has no rows, so there is nothing to show")
    names = [*Problem().to_dict(), *(name for name in PARAMETERS if f"problem.{name}" in what)]
    columns = ["folder", "variant", *(f"problem.{name}" for name in names)]
    cells = defaultdict[str, set[tuple[Any, ...]]](set)
    for folder, *cell in what[columns].itertuples(index=False, name=None):
        cells[str(folder)].add(tuple(None if pd.isna(value) else value for value in cell))
    runs = []
    for run in gather([Path(folder) for folder in cells]):
        wanted_cells = cells[str(run.path)]
        pairs = [
            (record, line)
            for record, line in zip(run.records, run.lines, strict=True)
            if (record.variant, *map(record.problem.to_dict().get, names)) in wanted_cells
        ]
        runs.append(replace(run, records=[r for r, _ in pairs], lines=[n for _, n in pairs]))
    return runs
