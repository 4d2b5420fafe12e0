"""``attnbench.load(…)``: records as a DataFrame, and the records behind the rows of one."""

from __future__ import annotations

import argparse
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.command import arguments
from attnbench.core.store import each_run
from attnbench.core.store import load as read_frames
from attnbench.report.scenes import ReportRun, gather
from impls.asked import CantBeDone
from impls.problem import Problem

if TYPE_CHECKING:
    import pandas as pd


AXES: dict[str, Callable[[str], Any]] = {
    "seq": arguments.words,
    "batch": arguments.numbers,
    "heads": arguments.numbers,
    "kv_heads": arguments.numbers,
    "head_dim": arguments.numbers,
    "v_head_dim": arguments.numbers,
    "dtype": arguments.words,
    "phase": arguments.words,
    "inputs": arguments.words,
    "level": arguments.words,
}
"""Values of a grid that may be several; masks too, but these hold commas of their own."""
SINGLE: dict[str, Callable[[str], Any]] = {
    "device": str,
    "world": arguments.count,
    "budget": arguments.seconds,
}
"""Values of a grid that are one."""
NOT_PLAIN = (str, bytes, Mapping)


class BadWord(CantBeDone, ValueError):
    """What was given is nothing that can be asked; a sentence."""


def held(value: Any) -> Any:
    """What can be read as often as one likes: a generator, or an array, is a list from here on."""
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()  # NumPy's, pandas' or torch's; of nought dimensions it is a number
    plain = not isinstance(value, Iterable) or isinstance(value, (*NOT_PLAIN, Sequence))
    return value if plain else list(value)


def changes(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of a preset, what the words change; what is None is not asked."""
    found = {
        name: read(name, parse, value)
        for name, parse in (AXES | SINGLE).items()
        if (value := asked.get(name)) is not None
    }
    if asked.get("mask") is not None:
        found["mask"] = several("mask", asked["mask"])
    return found


def read(name: str, parse: Callable[[str], Any], value: Any) -> Any:
    """One word's value; raises a sentence that names the word."""
    try:
        return parse(text(value))
    except argparse.ArgumentTypeError as error:
        raise BadWord(f"{name}: {error}") from None


def several(name: str, value: Any) -> tuple[str, ...]:
    """One text, or several of them, as they are."""
    found = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not found:
        raise BadWord(f"{name} holds nothing: give one at the least, or leave it out")
    return tuple(map(str, found))


def text(value: Any) -> str:
    """As the command line has it: ``[256, 512]`` is ``256,512``, ``torch.float32`` is float32."""
    if isinstance(value, Iterable) and not isinstance(value, NOT_PLAIN):
        return ",".join(map(text, value))
    return str(value).removeprefix("torch.")


def command(variants: Sequence[str], asked: Mapping[str, Any], tables: Sequence[str]) -> str:
    """The command that measures the same."""
    words = ["attnbench", "run", *variants]
    for name, value in asked.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif name == "mask" and value is not None:
            words += [word for mask in several("mask", value) for word in (option, mask)]
        elif name == "problems" and not isinstance(value, str | Path | None):
            words += [option, "CALLS.json"]  # they were captured in the same program
        elif value not in (None, False, ()):
            words += [option, text(value)]
    return shlex.join([*words, *(word for table in tables for word in ("--table", table))])


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
    found = read_frames(folders)
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


def behind(what: Any) -> list[ReportRun]:
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


def _only(runs: Sequence[ReportRun], cells: dict[str, set[tuple[Any, ...]]]) -> list[ReportRun]:
    found = []
    for run in runs:
        asked = cells[str(run.path)]
        kept = [
            (record, line)
            for record, line in zip(run.records, run.lines, strict=True)
            if (record.variant, *record.problem.to_dict().values()) in asked
        ]
        found.append(replace(run, records=[r for r, _ in kept], lines=[n for _, n in kept]))
    return found
