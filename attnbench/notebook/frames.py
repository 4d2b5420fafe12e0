"""``attnbench.load(…)``: measurements as a DataFrame, and the records behind the rows of one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from attnbench.core.store import each_run
from attnbench.core.wire import plain
from attnbench.report import tidy
from attnbench.report.scenes import ReportRun, gather, read_run
from impls.errors import CantBeDone
from impls.operators import PARAMETERS

VARYING = (
    "batch",
    "heads",
    "kv_heads",
    "q_len",
    "head_dim",
    "v_head_dim",
    "dtype",
    "inputs",
    "level",
    "device",
    *PARAMETERS,
)
"""Parts of a problem that have a column of their own only where not all rows agree."""
CELL = ("run", "variant", "phase", "mask", "seq", *VARYING)
"""The columns that identify a measurement."""


def load(*runs: str | Path, raw: bool = False) -> pd.DataFrame:
    """The measurements of run folders, and of all folders below them, as a DataFrame: a row each.

    ``ms`` is the median time, ``low_ms`` and ``high_ms`` its 95 % interval, ``mib`` the peak of
    memory above the inputs, ``error`` the largest relative error, ``fidelity`` how much of what
    softmax does is kept, ``vs_best`` the time over that of the fastest exact variant on the same
    problem. Of variants that select keys, ``kept`` is the share of softmax's weight on these, and
    ``selector_ms`` and ``attention_ms`` are the parts of their time. ``verdict`` is ``use``,
    ``same kernel`` as that one, ``tied`` or ``slower`` of exact variants, ``not exact`` of others,
    ``wrong on other inputs`` of what is wrong on some, and of what has no time its status; the
    ``reason`` says why. ``attnbench run --csv`` has the same columns, and those of a problem that
    all rows agree in.

    ``raw``: every field of the records instead, with units at the end of their names
    (``time.median_s``). The folders are ``df.attrs["runs"]``; one is ``df.attrs["run"]`` too.
    Raises ``CantBeDone`` where one can't be read.

    >>> df = attnbench.load("results")                                    # doctest: +SKIP
    >>> df[df.verdict == "use"].pivot_table("ms", "seq", "variant")       # doctest: +SKIP
    """
    folders = each_run(map(Path, runs or ("results",)))
    if raw:
        runs_read = (read_run(folder, number) for number, folder in enumerate(folders))
        return pd.json_normalize(
            [
                {**plain(record), "machine": run.machine, "folder": str(run.path)}
                for run in runs_read
                for record in run.records
            ]
        )
    table = _rows_of(gather(folders))
    alike = [name for name in VARYING if name in table and table[name].nunique(dropna=False) < 2]
    if ((table["q_len"] == 1) | (table["q_len"] == table["seq"])).all():
        alike.append("q_len")  # the phase says which
    table = table.drop(columns=alike if len(folders) > 1 else ["run", *alike])
    table.attrs["runs"] = [str(path) for path in folders]
    if len(folders) == 1:
        table.attrs["run"] = str(folders[0])
    return table


def _rows_of(runs: list[ReportRun]) -> pd.DataFrame:
    """The rows of some runs, in the order of their records."""
    return tidy.frame(
        {"run": str(run.path), **row} for run in runs for row in tidy.measurements(run)
    )


def _cells_of(table: pd.DataFrame, names: list[str]) -> list[tuple[Any, ...]]:
    """The values of some columns row by row; None where there is none, for it equals itself."""
    some = table[names].astype(object)
    return [*some.where(some.notna(), None).itertuples(index=False, name=None)]


def behind(what: Any) -> list[ReportRun]:
    """The runs that a table's rows belong to, with the records of these rows; of folders, all.

    Raises CantBeDone where there are none.
    """
    if not isinstance(what, pd.DataFrame):
        folders = [what] if isinstance(what, str | Path) else list(what)
        return gather([Path(folder) for folder in folders])
    if not (folders := what.attrs.get("runs")) or "variant" not in what:
        raise CantBeDone(
            "these are not rows of attnbench.load or attnbench.run, so that it can't be told which "
            "records they are: give such rows, or a run's folder"
        )
    if what.empty:
        raise CantBeDone("the table has no rows, so there is nothing to show")
    gathered = gather([Path(folder) for folder in folders])
    table = _rows_of(gathered)
    same = [name for name in CELL if name in what and name in table]
    rows, cells = {*_cells_of(what, same)}, iter(_cells_of(table, same))
    runs = []
    for run in gathered:
        pairs = [pair for pair in zip(run.records, run.lines, strict=True) if next(cells) in rows]
        runs.append(replace(run, records=[r for r, _ in pairs], lines=[n for _, n in pairs]))
    return [run for run in runs if run.records]
