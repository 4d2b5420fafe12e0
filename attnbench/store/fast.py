"""Records as a table: a row a record, a column for each value by the path to it.

A hundred thousand records are some hundred megabytes of text, so no :class:`Record` is made here:
lines are parsed to structures with a record's fields, and whole columns are taken out of those. A
line that is not plainly a record goes to :mod:`attnbench.record`, which knows what it is or why it
is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from attnbench.parts import Error, Part
from attnbench.record import PARTS, SCHEMA, Record, Status
from attnbench.store.columns import Columns
from attnbench.store.reading import batches, machine_of, parsed

STATUSES = {str(status): status for status in Status}


def columns_of(runs: Iterable[Path]) -> Columns:
    """The records of some runs, a row each."""
    columns = Columns(last="machine")
    for path in runs:
        machine = machine_of(path)
        for first, lines in batches(path):
            columns.add(_rows(path, first, lines), machine)
    return columns


def _rows(path: Path, first: int, lines: Sequence[bytes]) -> list[Any]:
    """The lines as structures; raises what reading them as records raises."""
    decode = _decoder().decode
    try:
        rows = list(map(decode, lines))
        plain = all(map(_plain, rows))
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
        plain = False
    if not plain:
        rows = [decode(record.line()) for record in parsed(path, first, lines)]
    for row in rows:
        row.status = STATUSES[row.status]
    return rows


def _plain(row: Any) -> bool:
    """Whether a structure is a record beyond doubt."""
    measured = row.status == "measured"
    return (
        row.status in STATUSES
        and row.schema <= SCHEMA
        and bool(row.reason) is not measured
        and (measured or row.time is None)
    )


@cache
def _decoder() -> msgspec.json.Decoder[Any]:
    """From a line to a structure with a record's fields; a field that nobody knows is refused."""
    kinds = {name: _structure(part) | None for name, part in PARTS.items()}
    kinds |= {"error": dict[str, _structure(Error)] | None, "schema": int}  # type: ignore[misc]
    return msgspec.json.Decoder(_structure(Record, kinds, must_say="schema"))


def _structure(part: type[Part], kinds: dict[str, Any] | None = None, must_say: str = "") -> Any:
    """A class like a part, made by the parser's library, with what its fields are by default."""
    made = []
    for one in fields(part):  # type: ignore[arg-type]
        default: Any = msgspec.NODEFAULT
        if one.name == must_say:
            pass
        elif one.default is not MISSING:
            default = one.default
        elif one.default_factory is not MISSING:
            default = msgspec.field(default_factory=one.default_factory)
        made.append((one.name, (kinds or {}).get(one.name, Any), default))
    return msgspec.defstruct(
        part.__name__, made, forbid_unknown_fields=True, kw_only=True, gc=False
    )
