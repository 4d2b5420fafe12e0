"""The variants to measure: the plugin table and one file a variant. Nothing here imports attnbench.

``table()`` takes the rows that each family's ``__init__.py`` lists, the entry points of other
distributions in the group ``attnbench.variants``, and the files named on the command line. No
kernel is imported.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from impls.errors import CantBeDone
from impls.loading import file_of
from impls.spec import InvalidRow

if TYPE_CHECKING:
    from impls.spec import Variant

FAMILIES = ("dense", "sparse", "lowrank", "linear", "layers", "parallel", "external")
"""In the order in which the table is shown."""


@dataclass(frozen=True)
class BrokenRow:
    """A row that could not be read: it costs itself, nothing else."""

    name: str
    reason: str
    remedy: str = ""
    origin: str = ""
    """The distribution or the file that it is of."""


class UnknownVariant(CantBeDone, LookupError):
    """No row has this name. The message names the nearest."""


@dataclass
class Table:
    """The rows by name, and what could not be read."""

    rows: dict[str, Variant] = field(default_factory=dict)
    broken: list[BrokenRow] = field(default_factory=list)

    def find(self, text: str) -> Variant:
        """The row that ``name`` or ``name?option=value&…`` asks for.

        A core has its own options in brackets: ``mha?core=lsh(rounds=2&bucket=8)&bias=false``.
        Raises :class:`UnknownVariant`, or :class:`InvalidRow` for options that it doesn't take.
        """
        name, _, options = text.partition("?")
        if name not in self.rows or any(row.name == name for row in self.broken):
            raise UnknownVariant(self._unknown(name))
        texts = {}
        for pair in re.findall(r"(?:\([^()]*\)|[^&])+", options):
            key, _, value = pair.partition("=")
            if key in texts:
                raise InvalidRow(f"{text}: the option {key} is given twice")
            texts[key] = value
        row = self.rows[name].with_options(texts)
        if "core" in row.options:
            row = row.over(self.find(_inner(str(row.chosen["core"]))))
        return row

    def _unknown(self, name: str) -> str:
        import difflib

        for row in self.broken:
            if row.name == name:
                remedy = f"; {row.remedy}" if row.remedy else ""
                return f"the row {name!r} is broken: {row.reason}{remedy}"
        near = difflib.get_close_matches(name.lower(), self.rows, n=3, cutoff=0.5)
        near = near or [n for n in self.rows if name in n][:3]
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        return f"there is no variant {name!r}; {hint}'attnbench list' shows all"

    def add(self, row: Variant) -> None:
        """Take a row in; a name already taken costs the newcomer its place, unless it is the same
        row of the same code, as where a file is both installed and named.
        """
        if (first := self.rows.setdefault(row.name, row)) is row or _plainly(first) == _plainly(
            row
        ):
            return
        reason, remedy = f"the name {row.name} is taken by a row of {first.origin}", ""
        if row.name not in own_rows() and row.origin.endswith(".py"):
            other = first.origin.partition(" ")[0]
            if not first.origin.endswith(".py"):
                remedy = f", leave --table out, or uninstall {other} to try the file's"
        remedy = f"give the row another name{remedy}"
        self.broken.append(BrokenRow(row.name, reason, remedy, row.origin))


def _plainly(row: Variant) -> dict[str, Any]:
    """A row without where it was read, its code by the files that hold it."""
    values = {**msgspec.structs.asdict(row), "origin": ""}
    for name in ("build", "definition", "cost", "shares"):
        if (path := values[name]) and (file := file_of(path)):
            values[name] = f"{file.resolve()}:{path.rpartition(':')[2]}"
    return values


def _inner(core: str) -> str:
    """A core's text: its own options may stand in brackets, ``lsh(rounds=2&bucket=8)``."""
    return core[:-1].replace("(", "?", 1) if core.endswith(")") else core


@cache
def own_rows() -> Mapping[str, Variant]:
    """The rows that are built in, by name; no row of others can have their names."""
    families = (importlib.import_module(f"impls.{family}") for family in FAMILIES)
    return {row.name: row for family in families for row in family.ROWS}


def table(files: Sequence[str | Path] = ()) -> Table:
    """All the rows: built in, of other distributions, and of the files named.

    Raises :class:`impls.outside.BrokenTable` for a file that can't be read at all.
    """
    result = Table()
    for family in FAMILIES:
        for row in importlib.import_module(f"impls.{family}").ROWS:
            result.add(row)
    from impls import outside

    for rows in (outside.entry_point_rows(), outside.file_rows(files)):
        for row in rows:
            if isinstance(row, BrokenRow):
                result.broken.append(row)
            else:
                result.add(row)
    return result
