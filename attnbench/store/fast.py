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
from typing import Any, NamedTuple

import msgspec

from attnbench.parts import Error, Part
from attnbench.record import PARTS, SCHEMA, Record, Status
from attnbench.store.columns import Columns
from attnbench.store.reading import Checked, machine_of

STATUSES = {str(status): status for status in Status}


class Found(NamedTuple):
    """What some runs hold."""

    columns: Columns
    """A row each record."""
    rows: list[int]
    """How many each run has."""
    amiss: list[str]
    """What is amiss with some of their lines, in sentences."""


def columns_of(runs: Iterable[Path]) -> Found:
    """The records of some runs."""
    found = Found(Columns(last="machine"), [], [])
    for path in runs:
        machine, checked, count = machine_of(path), Checked(path), 0
        for first, lines in checked.batches():
            rows = _rows(checked, first, lines)
            found.columns.add(rows, machine)
            count += len(rows)
        found.rows.append(count)
        found.amiss.extend(checked.sentences())
    return found


def _rows(checked: Checked, first: int, lines: Sequence[bytes]) -> list[Any]:
    """The lines as structures; raises what reading them as records raises."""
    decode = _decoder().decode
    try:
        rows = list(map(decode, lines))
        plain = all(map(_plain, rows))
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
        plain = False
    if plain:
        for number, row in enumerate(rows, first):
            if row.time is not None:
                _judge(checked, number, row)
    else:
        rows = [decode(record.line()) for _, _, record in checked.of(first, lines)]
    for row in rows:
        row.status = STATUSES[row.status]
    return rows


def _judge(checked: Checked, number: int, row: Any) -> None:
    """Take a time back that can't be true; give another the figures of its samples."""
    figures, why = checked.judge(number, row)
    if why:
        row.status, row.reason, row.time = str(Status.IMPLAUSIBLE), why, None
    elif figures:
        row.share_of_ceiling = None
        for name, value in figures.items():
            setattr(row.time, name, value)


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
