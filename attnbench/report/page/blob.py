"""What a page holds but shows only when asked, packed: raw records, figures' numbers, other units.

Deflated as zlib does it, which a browser undoes by itself, and in letters, so that one file is all.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

from attnbench.report import numbers
from attnbench.report.figures.sheet import Drawn
from attnbench.report.page.contents import Contents
from attnbench.report.page.headlines import figures
from attnbench.report.page.table import Cell, repeats

LEVEL = 6
FIGURES = 7
"""So many of a number's are kept: the file that the page names has them all."""


def packed(contents: Contents, cells: Sequence[Cell]) -> str:
    """All of it as one word."""
    text = json.dumps(held(contents, cells), allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), LEVEL)).decode()


def later(figure: Drawn) -> bool:
    """Whether it is on the page only once its unit is asked for: the first one is there at once."""
    return figure.unit not in ("", "ms")


def held(contents: Contents, cells: Sequence[Cell]) -> dict[str, Any]:
    """By kind: ``cells`` by their numbers; ``csv`` and ``svg`` by the names of figures."""
    return {
        "cells": {cell.number: _cell(contents, cell) for cell in cells},
        "csv": {figure.name: figure.csv for figure in contents.figures},
        "svg": {figure.name: figure.inline for figure in contents.figures if later(figure)},
    }


def _cell(contents: Contents, cell: Cell) -> dict[str, Any]:
    record = _short(cell.record.to_dict())
    where = cell.scene.regime if cell.scene else cell.record.problem["phase"]
    return {
        "title": f"{cell.record.variant} at {cell.length:,} tokens: {where}",
        "file": f"{contents.to_run[cell.run.number]}/records.jsonl", "line": cell.line,
        "told": told(cell), "repeat": repeats(cell.record, cell.run.header), "record": record,
    }  # fmt: skip


STOPS = {
    "budget": "stopped by its budget", "plateau": "stopped when its interval narrowed no more",
    "converged": "stopped when its interval was within 1\N{NO-BREAK SPACE}%",
}  # fmt: skip


def told(cell: Cell) -> str:
    """A record in a line for people: ``550 ms [466, 568] · 9 samples, stopped by …``"""
    record, time = cell.record, cell.record.time
    if time is None:
        said = [f"{cell.status}: {record.reason}" if record.reason else cell.status]
    else:
        stop = STOPS.get(time.stop, f"stopped: {time.stop}")
        said = [figures(time), f"{time.n:,} sample{'s' * (time.n != 1)}, {stop}"]
    said += [f"peak {numbers.nbytes(record.memory.peak_bytes)}"] if record.memory else []
    if cell.error is not None:
        error = numbers.three(cell.error).replace("-", "\N{NON-BREAKING HYPHEN}")  # 4e-7 is a word
        said.append(f"worst error {error}")
    said += [f"in doubt: {'; '.join(time.flags)}"] if time and time.flags else []
    return " · ".join(said)


def _short(value: Any) -> Any:
    """The same with shorter numbers, and without the samples of a time."""
    if isinstance(value, float):
        return float(f"{value:.{FIGURES}g}")
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items() if key != "samples_s"}
    return [_short(inner) for inner in value] if isinstance(value, list) else value
