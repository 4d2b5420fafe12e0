"""Columns out of nested values, many rows at a time: names by path, pieces by kind.

The result is that of ``pandas.json_normalize``, in a small part of its time and memory: rows with
the same names are turned into columns together, numbers become arrays at once, and a text that
comes again is kept once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import astuple

if TYPE_CHECKING:
    import pandas as pd

Place = tuple[int, bool, tuple[int, ...]]
"""Where a column first appears: the row, whether it lies below another name, its way in the row."""
NOTHING = type(None)
NUMBERS = {int, float, NOTHING}
LARGE = 1 << 63
"""No integer of an array is as large."""


class Columns:
    """Columns that grow some rows at a time, in the order in which a row first has them."""

    def __init__(self, last: str) -> None:
        self._last = last
        self._length = 0
        self._columns: dict[str, _Column] = {}

    def add(self, rows: Sequence[msgspec.Struct], last: str) -> None:
        """Rows of one class, and what all of them have in the last column of their own."""
        if not rows:
            return
        where = np.arange(self._length, self._length + len(rows))
        self._length += len(rows)
        self._spread("", rows, where, ())
        self._put(self._last, [last] * len(rows), {str}, where, (len(rows[0].__struct_fields__),))

    def extend(self, more: Columns) -> None:
        """The rows of another after those there are; the other is not used any more."""
        for name, column in more._columns.items():
            column.move(self._length)
            if name in self._columns:
                self._columns[name].extend(column)
            else:
                self._columns[name] = column
        self._length += more._length

    def pack(self) -> None:
        """In few pieces, for who has to carry them."""
        for column in self._columns.values():
            column.pack()

    def whole(self) -> Iterator[tuple[str, pd.Series]]:
        """Each column by its name, NaN where a row has nothing of it. Takes them out."""
        for name in sorted(self._columns, key=lambda name: self._columns[name].place):
            yield name, self._columns.pop(name).whole(self._length)

    def _spread(self, name: str, values: Sequence[Any], where: np.ndarray,
                way: tuple[int, ...]) -> None:  # fmt: skip
        """What lies at a path: a value is put there, what holds several is spread below."""
        kinds = set(map(type, values))
        if not any(map(_holds_several, kinds)):
            self._put(name, values, kinds, where, way)
            return
        for names, some, there in _alike(values, kinds, where):
            if names is None:
                self._put(name, some, set(map(type, some)), there, way)
                continue
            held = map(dict.values if isinstance(some[0], dict) else astuple, some)
            for number, (below, column) in enumerate(
                zip(names, zip(*held, strict=True), strict=True)
            ):
                self._spread(f"{name}.{below}" if name else below, column, there, (*way, number))

    def _put(self, name: str, values: Sequence[Any], kinds: set[type], where: np.ndarray,
             way: tuple[int, ...]) -> None:  # fmt: skip
        """Part of a column; of a row, what is one value stands before what holds several."""
        place = (int(where[0]), len(way) > 1, way)
        if name not in self._columns:
            self._columns[name] = _Column(place)
        self._columns[name].put(values, kinds, where, place)


@cache
def _holds_several(kind: type) -> bool:
    return kind is dict or issubclass(kind, msgspec.Struct)


Group = tuple[Sequence[str] | None, Sequence[Any], np.ndarray]


def _alike(values: Sequence[Any], kinds: set[type], where: np.ndarray) -> Iterator[Group]:
    """Values and their rows by the names that they hold; None: they are one value each."""
    marks: Iterable[Any] = kinds
    if len(kinds) > 1 or dict in kinds:
        marks = [tuple(value) if type(value) is dict else type(value) for value in values]
    different = dict.fromkeys(marks)
    groups: dict[Any, list[int]] = {mark: [] for mark in different}
    if len(different) > 1:
        for number, mark in enumerate(marks):
            groups[mark].append(number)
    for mark, numbers in groups.items():
        some, there = values, where
        if len(different) > 1:
            some, there = [values[n] for n in numbers], where[numbers]
        names = mark if isinstance(mark, tuple) else getattr(mark, "__struct_fields__", None)
        yield names, some, there


class _Column:
    """One column, in pieces."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._kinds: set[type] = set()
        self._pieces: list[tuple[np.ndarray, Sequence[Any] | np.ndarray]] = []
        self._texts: dict[str, str] = {}

    def put(self, values: Sequence[Any], kinds: set[type], where: np.ndarray,
            place: Place) -> None:  # fmt: skip
        """One more piece: values of these kinds in these rows."""
        self.place = min(self.place, place)
        piece: Sequence[Any] | np.ndarray = values
        if kinds == {str}:
            piece = list(map(self._texts.setdefault, values, values))
        elif int in kinds and kinds <= NUMBERS and _any_large(values):
            kinds = {object}  # what holds it is for pandas to find
        elif kinds in ({float}, {int}):
            piece = np.array(values)
        self._kinds |= kinds
        self._pieces.append((where, piece))

    def move(self, rows: int) -> None:
        """So many rows further down."""
        first, below, way = self.place
        self.place = (first + rows, below, way)
        self._pieces = [(where + rows, piece) for where, piece in self._pieces]

    def extend(self, more: _Column) -> None:
        """The pieces of another too, whose rows come later."""
        self._kinds |= more._kinds
        self._pieces += more._pieces

    def pack(self) -> None:
        """A piece for each kind of array, and one for what is in none."""
        alike: dict[Any, list[tuple[np.ndarray, Any]]] = {}
        for where, piece in self._pieces:
            alike.setdefault(getattr(piece, "dtype", None), []).append((where, piece))
        self._pieces = []
        for kind, some in alike.items():
            where = np.concatenate([each[0] for each in some])
            pieces = [each[1] for each in some]
            whole = list(chain.from_iterable(pieces)) if kind is None else np.concatenate(pieces)
            self._pieces.append((where, whole))

    def whole(self, length: int) -> pd.Series:
        """So many rows; of the type that pandas finds for such values."""
        import pandas as pd

        full = sum(len(where) for where, _ in self._pieces) == length
        kind = self._kind(full=full)
        column: np.ndarray = np.empty(length, kind) if full else np.full(length, np.nan, kind)
        for where, piece in self._pieces:
            if kind is object:
                column[where] = np.fromiter(piece, object, len(piece))
            else:
                column[where] = np.asarray(piece, kind)
        guess = kind is object and self._kinds <= NUMBERS | {bool, object}
        return pd.Series(column.tolist() if guess else column)

    def _kind(self, *, full: bool) -> type:
        """What all values fit in. Nothing but None stays None if every row has it."""
        if self._kinds == {int} and full:
            return np.int64
        if self._kinds <= NUMBERS and not (self._kinds == {NOTHING} and full):
            return np.float64
        return object


def _any_large(numbers: Sequence[float | None]) -> bool:
    """Whether an integer among them is too large for an array of integers."""
    try:
        if not (np.abs(np.array(numbers, np.float64)) >= LARGE).any():
            return False
    except OverflowError:
        return True
    return any(type(n) is int and not -LARGE <= n < LARGE for n in numbers)
