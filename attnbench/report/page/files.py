"""A report on disk: the page, the summary, the data, the table for a paper, a file for each figure.

Each file is whole or not there. Figures of an earlier report go; what is not ours stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnbench.outside_text import for_sheet
from attnbench.record import Record
from attnbench.report.page import html
from attnbench.report.page.contents import Contents
from attnbench.report.page.filled import contents_of
from attnbench.report.page.gather import gather
from attnbench.report.page.latex import tables
from attnbench.report.page.summary import summary
from attnbench.report.scenes import Ran
from attnbench.store import StoreError
from attnbench.store.disk import from_json, writable_folder, write_whole
from impls.asked import CantBeDone

INDEX, SUMMARY, DATA, TABLE, FIGURES = (
    "index.html", "summary.md", "data.csv", "table.tex", "figures",
)  # fmt: skip
OURS = "figures.json"
"""Among the figures: the names of those that a report wrote there, so that the next may go on."""


@dataclass(frozen=True)
class Made:
    """A report as it lies there."""

    index: Path
    files: Sequence[Path]
    contents: Contents


def make(runs: Sequence[Path], out: Path) -> Made:
    """A report of these runs in a folder; raises a sentence where there is nothing to report."""
    read = gather(runs)
    _make_folder(out)  # before the work: where nothing can be written, it need not be done
    try:
        contents = contents_of(read, out)
        files = write(contents, out)
    except CantBeDone:
        raise
    except Exception as error:  # a file may say what no run of ours ever wrote
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StoreError(
            f"no report can be made of {', '.join(str(path) for path in runs)}: something in it is "
            f"not what it should be ({said}); if attnbench wrote it, that is a fault of attnbench"
        ) from error
    return Made(out / INDEX, files, contents)


def write(contents: Contents, out: Path) -> list[Path]:
    """The files, the page first; what has the same name is replaced."""
    _make_folder(out / FIGURES)
    texts = {
        INDEX: html.render(contents), SUMMARY: summary(contents), DATA: data(contents.runs),
        TABLE: tables(contents.scenes),
    }  # fmt: skip
    written = dict(_figures(contents))
    _forget(out / FIGURES, keep=written)
    listed = json.dumps(sorted(written), indent=1) + "\n"
    _write(out / FIGURES / OURS, listed.encode())
    for name, content in written.items():
        _write(out / FIGURES / name, content)
    for name, text in reversed(texts.items()):  # the page last: what it leads to is there by then
        _write(out / name, text.encode())
    return [out / name for name in texts] + [out / FIGURES / name for name in written]


def _figures(contents: Contents) -> Iterator[tuple[str, bytes]]:
    for figure in contents.figures:
        yield f"{figure.name}.svg", figure.svg.encode()
        if figure.png:
            yield f"{figure.name}.png", figure.png
        if figure.csv:
            yield f"{figure.name}.csv", figure.csv.encode()


def data(runs: Sequence[Ran]) -> str:
    """All records, a row each; nested values by their path, samples left to the records."""
    import pandas as pd

    rows = [
        {"run": run.header.get("run") or run.path.name, "machine": run.machine, "line": line,
         **_flat(_told(record))}
        for run in runs for line, record in zip(run.lines, run.records, strict=True)
    ]  # fmt: skip
    rows = [{for_sheet(name): for_sheet(value) for name, value in row.items()} for row in rows]
    frame = pd.DataFrame(rows).convert_dtypes()
    text: str = frame.to_csv(index=False, lineterminator="\n")  # whole numbers stay whole
    return text


LEFT_OUT = ("run", "detail", "spent_s", "schema")
"""Of a record: said once for the run, or about its making and not about attention."""


def _told(record: Record) -> dict[str, Any]:
    if record.time is not None:
        record = replace(record, time=replace(record.time, samples_s=[]))
    told = record.to_dict()
    if told["time"] is not None:
        del told["time"]["samples_s"]
    return {name: value for name, value in told.items() if name not in LEFT_OUT}


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{path}{name}.")
        elif isinstance(value, list):
            found[path + name] = "; ".join(map(str, value))
        elif value is not None:
            found[path + name] = value
    return found


def _forget(folder: Path, keep: Mapping[str, bytes]) -> None:
    """Figures that an earlier report wrote and this one does not have."""
    try:
        before = from_json((folder / OURS).read_text())
    except (OSError, ValueError):
        return
    names = before if isinstance(before, list) else []
    for name in names:
        if isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) and name not in keep:
            with suppress(OSError):  # a folder of that name, say, is not ours
                (folder / name).unlink()


def _make_folder(path: Path) -> None:
    try:
        writable_folder(path)
    except OSError as error:
        raise _cant_write(path, error) from None


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all; a report can be made again, so the disk need not be waited for."""
    try:
        write_whole(path, content, sync=False)
    except OSError as error:
        raise _cant_write(path, error) from None


def _cant_write(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"can't write the report to {path}: {error.strerror}; give another folder with --out"
    )
