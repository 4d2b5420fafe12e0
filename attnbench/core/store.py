"""Runs on disk: their folders, their headers, and their records, checked line by line.

A header that can't be read is refused in a sentence, and so is a record of a newer form. Records
are not taken on trust: :class:`Checked` gives those that count, and says what is wrong with others.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf, isfinite, nan
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnbench.core.disk import HEADER, RECORDS, StoreError, from_json, is_no_file, write_whole
from attnbench.core.lock import collector_off
from attnbench.core.record import (
    SCHEMA,
    TOO_FAST,
    DamagedRun,
    InvalidRecord,
    NewerRecord,
    Record,
    Status,
    Time,
    cell_key,
    least_time,
    recorded_problem,
)
from attnbench.core.stats import CONFIDENCE, interval_rank, summary
from impls.problem import Problem

if TYPE_CHECKING:
    import pandas as pd


FIELDS = {
    "run": str, "command": str, "started": str, "folder": str, "seed": int, "protocol": int,
    "budget_s": int | float, "machine": dict, "settings": dict, "code": dict, "grid": dict,
    "variants": list, "problems": list, "tables": list,
}  # fmt: skip
"""What a header's values are, where there are any."""
LONGEST_BUDGET_S = 86400
SHORTEST_S = 1e-7
"""No call, and no replay of a graph, takes less."""
UNTRUE = f"its samples are no times of {SHORTEST_S:.0e} s or more, so that there is none to believe"
BAD_TIME = "its time is no finite number above nought, within its own interval"
LEAST_S, LONGEST_S = 1e-12, 1e9
"""What a figure lies between that is one at all."""
AGAIN = 2.0
"""By so much the ceilings may be off where the ruler measured them again."""
ROUNDING = 1e-9
FIGURES = ("median_s", "low_s", "high_s", "q25_s", "q75_s", "min_s")
"""Of a time; null is a number that was not finite."""
NAMED = 5
"""So many lines are named."""
VARIANT, PROBLEM = b'"variant":"', b'"problem":{"'
"""How a record's own text begins to say its cell."""
BATCH_BYTES = 1 << 19
"""Lines are read so many at a time: what comes of them then stays near the processor."""


def find_runs(paths: Iterable[Path]) -> Iterator[Path]:
    """The run folders that are, or lie below, the paths given."""
    for path in paths:
        if not path.exists():
            raise StoreError(f"there is no {path}; runs lie in results/<machine>/<run>")
        if (path / HEADER).exists():
            yield path
        else:
            yield from sorted(p.parent for p in path.rglob(HEADER))


def each_run(paths: Iterable[Path]) -> list[Path]:
    """The same, each once, the first given first."""
    return list({path.resolve(): path for path in find_runs(paths)}.values())


def read_header(path: Path) -> dict[str, Any]:
    """A run's header; refuses what is no run, or of a newer form."""
    if not path.is_dir():
        raise StoreError(f"there is no run folder {path}; runs lie in results/<machine>/<run>")
    for name in (HEADER, RECORDS):
        if is_no_file(path / name):
            raise StoreError(f"can't read {path / name}: it is no file")
    try:
        header: dict[str, Any] = from_json((path / HEADER).read_text())
        schema = header["schema"]
    except FileNotFoundError:
        raise StoreError(f"{path} holds no {HEADER}: it is not a run; start a new one") from None
    except (ValueError, KeyError, TypeError):
        raise StoreError(f"{path / HEADER} is damaged; start a new run") from None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise StoreError(
            f"{path} was written with schema {schema}, newer than the {SCHEMA} this attnbench "
            "reads: update attnbench, or start a new run"
        )
    for name, kind in FIELDS.items():
        if not isinstance(header.get(name), kind | None):
            raise StoreError(
                f"{path / HEADER} is damaged: {name} is {str(header[name])[:50]!r}; start a new run"
            )
    if not 0 < (header.get("budget_s") or 1.0) <= LONGEST_BUDGET_S:
        raise StoreError(f"{path / HEADER} is damaged: budget_s is {header['budget_s']!r}")
    return header


def machine_of(path: Path) -> str:
    """The machine that a run was on."""
    name: str = read_header(path).get("machine", {}).get("name", path.parent.name)
    return name


def read_records(path: Path, wanted: Callable[[Problem], bool] | None = None) -> Iterator[Record]:
    """A run's records in the order in which they were measured, of the problems that are wanted.

    Warns where something is wrong with some.

    A last line without an end is left out: it is being written now, or its writer died.
    """
    checked = Checked(path)
    for _, record in checked.records(wanted):
        yield record
    warn(checked.sentences())


def warn(sentences: Iterable[str]) -> None:
    """Issue what is amiss with a run as warnings, each sentence once."""
    for sentence in sentences:
        warnings.warn(sentence, DamagedRun, stacklevel=1)


class _Cell(msgspec.Struct):
    """Of a record, which cell it is of."""

    variant: str
    problem: msgspec.Raw


_parse = msgspec.json.Decoder().decode
_record = msgspec.json.Decoder(Record).decode
_cell = msgspec.json.Decoder(_Cell).decode


class Checked:
    """A run's records, each checked as it is read.

    A line that can't be read is left out, and so is what several lines say of one cell. The figures
    of a time are those of its samples, and a time that can't be true is removed. Once the records
    were read, the attributes hold the numbers of the lines that something was wrong with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged: list[int] = []
        """Lines that hold no record."""
        self.again: list[int] = []
        """Lines that repeat a record, word for word."""
        self.unlike: list[int] = []
        """Lines of cells that several lines say different things of."""
        self.corrected: list[int] = []
        """Lines whose figures were not those of their samples."""
        self.untrue: list[int] = []
        """Lines whose time can't be true."""
        self._ceilings = _Ceilings(path)

    def records(
        self, wanted: Callable[[Problem], bool] | None = None
    ) -> Iterator[tuple[int, Record]]:
        """Every record that counts, with the number of its line.

        ``wanted``: lines with other problems are not looked into. Raises StoreError for a record
        that isn't one, and for one of a newer form.
        """
        self.again, self.unlike = _said_twice(self.path)
        left_out = {*self.again, *self.unlike}
        for first, lines in batches(self.path):
            for number, line in enumerate(lines, first):
                if number in left_out or (wanted and not _is_wanted(line, wanted)):
                    continue
                try:
                    yield number, self._believed(number, _read(line))
                except InvalidRecord as error:
                    remedy = (
                        ""
                        if isinstance(error, NewerRecord)
                        else (
                            f"; take the line out, and attnbench run --resume {self.path} measures "
                            "its cell"
                        )
                    )
                    raise StoreError(
                        f"{self.path / RECORDS}, line {number}: {error}{remedy}"
                    ) from None
                except (ValueError, RecursionError):
                    self.damaged.append(number)

    def _believed(self, number: int, record: Record) -> Record:
        """The record, with the figures of its samples, and without a time that can't be true."""
        time = record.time
        if time is None:
            return record
        why, changes = "", {}
        ordered = sorted(s for s in time.samples_s if abs(s) < inf)
        if not LEAST_S < time.low_s <= time.median_s <= time.high_s < LONGEST_S or not (
            LEAST_S < time.min_s < LONGEST_S
        ):
            why = BAD_TIME
        elif not ordered or ordered[0] < SHORTEST_S:
            why = UNTRUE
        else:
            if not _given_by(ordered, time):
                s = summary(ordered)
                time = time.with_(
                    median_s=s.median,
                    low_s=s.low,
                    high_s=s.high,
                    q25_s=s.q25,
                    q75_s=s.q75,
                    min_s=s.least,
                    n=len(ordered),
                )
                changes = {"time": time, "share_of_ceiling": None}
                self.corrected.append(number)
            why = self._too_fast(record, time.median_s)
        if why:
            self.untrue.append(number)
            return record.with_(status=Status.IMPLAUSIBLE, reason=why, time=None)
        return record.with_(**changes) if changes else record

    def _too_fast(self, record: Record, median_s: float) -> str:
        """Why the work can't have been done in that time; empty where it can.

        Where the ceilings were measured again before a time was believed, the share of them in the
        record is more than one. It has to be that time's share then, and not far off.
        """
        if record.cost is None:
            return ""
        least = self._ceilings.least(record.cost, record.problem.dtype, record.node)
        if least is None:
            return ""
        if record.ranks is not None:
            least /= record.ranks.world
        share = least / median_s
        if share <= 1 / TOO_FAST:
            return ""
        if record.share_of_ceiling and share <= AGAIN * min(1 / TOO_FAST, record.share_of_ceiling):
            return ""
        return (
            f"it took {median_s * 1e3:.3g} ms for what this device can't do in less than "
            f"{least * 1e3:.3g} ms, by the product and the copy measured on it"
        )

    def sentences(self) -> Iterator[str]:
        """What is amiss, where it is, and what helps; to be asked for once all was read."""
        where = self.path / RECORDS
        again = f"; attnbench run --resume {self.path} measures that again"
        if lines := self.damaged:
            left = "is" if len(lines) == 1 else "are"
            yield f"{numbered(lines)} of {where} can't be read and {left} left out{again}"
        if lines := self.unlike:
            said = "say different things of the same cell, and none of them counts"
            yield f"{numbered(lines)} of {where} {said}{again}"
        if lines := self.again:
            yield f"{numbered(lines)} of {where}: said before, and counts once"
        if lines := self.corrected:
            yield (
                f"{numbered(lines)} of {where}: the median or its interval was not that of the "
                "samples, and is computed from them anew"
            )
        if lines := self.untrue:
            yield f"{numbered(lines)} of {where}: the time can't be true, and is taken back"


class _Ceilings:
    """The ceilings that a run's header holds, of each kind of machine."""

    def __init__(self, path: Path) -> None:
        try:
            found = from_json((path / HEADER).read_text())
        except (OSError, ValueError, RecursionError):
            found = {}  # then the samples alone are looked at
        self._header: dict[str, Any] = found if isinstance(found, dict) else {}
        self._known: dict[str, Mapping[str, Any]] = {}

    def least(self, cost: Any, dtype: str, node: str) -> float | None:
        """The least time for some work; None where the header holds no sound ceilings."""
        try:
            if node not in self._known:
                about = (self._header.get("nodes") or {}).get(node) or self._header
                self._known[node] = about.get("ceilings") or {}
            least = least_time(cost, dtype, self._known[node])
            return least if least is not None and least < inf else None
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError):
            return None


def numbered(numbers: Sequence[int]) -> str:
    """Lines by their numbers, in words; of many, the first."""
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    named = sorted(numbers)[:NAMED]
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"lines {', '.join(map(str, named))}{more}"


def _given_by(ordered: Sequence[float], time: Time) -> bool:
    """Whether the figures of a time are those of its samples."""
    n = len(ordered)
    rank = interval_rank(n, CONFIDENCE)
    near = ROUNDING * time.median_s
    return (
        time.n == n
        and ordered[0] == time.min_s
        and ordered[rank - 1] == time.low_s
        and ordered[-rank] == time.high_s
        and abs(_quantile(ordered, 2) - time.median_s) <= near
        and abs(_quantile(ordered, 1) - time.q25_s) <= near
        and abs(_quantile(ordered, 3) - time.q75_s) <= near
    )


def _quantile(ordered: Sequence[float], quarters: int) -> float:
    """The quantile as NumPy has it: between the two samples next to it."""
    place, rest = divmod(quarters * (len(ordered) - 1), 4)
    if not rest:
        return ordered[place]
    return ordered[place] + (ordered[place + 1] - ordered[place]) * rest / 4


def _said_twice(path: Path) -> tuple[list[int], list[int]]:
    """The lines that repeat a record, and those that say different things of one cell."""
    first_line: dict[tuple[str, Problem], int] = {}
    several: dict[tuple[str, Problem], list[int]] = {}
    for number, line in _numbered(path):
        if (cell := _cell_of(line)) is None:
            continue
        before = first_line.setdefault(cell, number)
        if before != number:
            several.setdefault(cell, [before]).append(number)
    numbers = {number for some in several.values() for number in some}
    if not numbers:
        return [], []
    values = {number: _values(line) for number, line in _numbered(path) if number in numbers}
    again: list[int] = []
    unlike: list[int] = []
    for some in several.values():
        if all(values[number] == values[some[0]] for number in some):
            again += some[1:]
        else:
            unlike += some
    return sorted(again), sorted(unlike)


def _cell_of(line: bytes) -> tuple[str, Problem] | None:
    """The variant and the problem of a line; None where it holds no record."""
    try:
        found = _cell(line)
        return found.variant, recorded_problem(_parse(found.problem))
    except (ValueError, RecursionError):
        pass
    try:
        values = from_json(line)
        return values["variant"], recorded_problem(values["problem"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_wanted(line: bytes, wanted: Callable[[Problem], bool]) -> bool:
    """Whether a line's problem is; so is a line that holds none."""
    cell = _cell_of(line)
    return cell is None or wanted(cell[1])


def _read(line: bytes) -> Record:
    """The record that a line holds.

    Raises InvalidRecord where its values are none of a record, ValueError where it is no JSON.
    """
    if b'"schema":' in line:
        with suppress(ValueError, RecursionError):
            record = _record(line)
            if record.schema <= SCHEMA:
                return record
    values = _values(line)
    if isinstance(values, dict) and isinstance(time := values.get("time"), dict):
        values["time"] = {**time, **{name: nan for name in FIGURES if time.get(name, 0) is None}}
    return Record.from_dict(values)


def lines_of(path: Path, keys: Collection[str]) -> Iterator[tuple[int, bytes]]:
    """The lines of some cells, each with the byte that it starts at."""
    start = 0
    for _, line in _numbered(path):
        cell = _cell_of(line)
        if cell is not None and cell_key(*cell) in keys:
            yield start, line
        start += len(line)


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    for first, lines in batches(path):
        yield from enumerate(lines, first)


def batches(path: Path) -> Iterator[tuple[int, Sequence[bytes]]]:
    """A run's whole lines, some at a time, each time with the number of the first."""
    file, number = path / RECORDS, 1
    try:
        data = file.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"can't read {file}: {error.strerror}; make it readable") from None
    with data:
        while lines := data.readlines(BATCH_BYTES):
            if not lines[-1].endswith(b"\n"):
                del lines[-1]
            yield number, lines
            number += len(lines)


def _values(line: bytes) -> Any:
    """The JSON in a line; raises ValueError where there is none.

    NaN and Infinity are null, but in a time, which is held against its own samples.
    """
    try:
        return _parse(line)
    except (ValueError, RecursionError):
        return _finite(from_json(line))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: each if name == "time" else _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def whole_length(data: bytes) -> int:
    """How many bytes there are before the tail that a death left behind, if it left one.

    That is a last line without an end, and, after a loss of power, lines at the end that are no
    JSON: nought bytes, or blocks of something else.
    """
    end = data.rfind(b"\n") + 1
    while end:
        start = data.rfind(b"\n", 0, end - 1) + 1
        try:
            from_json(data[start:end])
        except ValueError:
            end = start
        else:
            break
    return end


ROWS = "rows"


def load(paths: Iterable[str | Path] = ("results",)) -> pd.DataFrame:
    """Records as a DataFrame, a row each: ``time.median_s``, ``problem.q_len`` …, ``machine``.

    Its ``attrs`` say how many rows each run has, in the order of the runs.
    """
    import pandas as pd

    records: list[Record] = []
    machines: list[str] = []
    rows: list[int] = []
    with collector_off():
        for run in find_runs(Path(p) for p in paths):
            found = list(read_records(run))
            records += found
            machines += [machine_of(run)] * len(found)
            rows.append(len(found))
        columns = {
            name: _series(column, len(records))
            for name, column in _columns("", records, range(len(records)))
        }
        if records:
            columns["machine"] = pd.Series(machines)
        frame = pd.DataFrame(columns, copy=False)
    frame.attrs[ROWS] = rows
    return frame


Column = tuple[Sequence[int], Sequence[Any]]
"""The rows that have a value, and the values."""


def _columns(path: str, values: Sequence[Any], rows: Sequence[int]) -> Iterator[tuple[str, Column]]:
    """The columns of what lies at a path: one of its plain values, and those of its parts."""
    kinds = dict.fromkeys(map(type, values))
    plain = {kind for kind in kinds if not issubclass(kind, NESTED)}
    if plain and path:
        yield path, _of_kinds(plain, kinds, values, rows)
    parts: dict[str, tuple[Sequence[int], Sequence[Any]]] = {}
    for kind in kinds:
        if kind not in plain:
            for name, column in _parts(kind, *_of_kinds({kind}, kinds, values, rows)):
                if (before := parts.get(name)) is not None:
                    column = ([*before[0], *column[0]], [*before[1], *column[1]])
                parts[name] = column
    for name, (there, some) in parts.items():
        yield from _columns(f"{path}.{name}" if path else name, some, there)


NESTED = (msgspec.Struct, Problem, Mapping)


def _of_kinds(
    wanted: Collection[type], kinds: Collection[type], values: Sequence[Any], rows: Sequence[int]
) -> Column:
    """The values of some kinds, with their rows."""
    if len(wanted) == len(kinds):
        return rows, values
    chosen = [(row, v) for row, v in zip(rows, values, strict=True) if type(v) in wanted]
    return [row for row, _ in chosen], [value for _, value in chosen]


def _parts(kind: type, rows: Sequence[int], values: Sequence[Any]) -> Iterator[tuple[str, Column]]:
    """What values of one kind hold, by name."""
    if issubclass(kind, msgspec.Struct):
        for name in kind.__struct_fields__:
            yield name, (rows, list(map(attrgetter(name), values)))
    elif issubclass(kind, Problem):
        dicts = {id(problem): problem.to_dict() for problem in {id(v): v for v in values}.values()}
        for name in Problem.__dataclass_fields__:
            yield name, (rows, [dicts[id(problem)][name] for problem in values])
    else:
        columns: dict[str, tuple[list[int], list[Any]]] = {}
        for row, value in zip(rows, values, strict=True):
            for name, part in value.items():
                there, some = columns.setdefault(name, ([], []))
                there.append(row)
                some.append(part)
        yield from columns.items()


def _series(column: Column, length: int) -> pd.Series:
    """A column, with NaN in the rows that have no value."""
    import pandas as pd

    rows, values = column
    if isinstance(rows, range):  # all of them, in their order
        return pd.Series(values)
    found: list[Any] = [nan] * length
    for row, value in zip(rows, values, strict=True):
        found[row] = value
    return pd.Series(found)


def export(paths: Iterable[str | Path], file: str | Path) -> int:
    """Write the runs' records as one flat table, a row each; how many there are.

    Samples and other lists stay lists. A column whose values are of several types, as an option's
    may be in several variants, becomes text.
    """
    arrow, parquet = _arrow()
    frame, file = load(paths), Path(file)
    if frame.empty:
        raise StoreError(f"there is no record under {', '.join(map(str, paths))} to export")
    table = arrow.table({name: _column(arrow, frame[name]) for name in frame.columns})
    packed = arrow.BufferOutputStream()
    parquet.write_table(table, packed, compression="zstd")
    try:
        write_whole(file, packed.getvalue().to_pybytes())
    except OSError as error:
        why = error.strerror or str(error)
        raise StoreError(
            f"can't write {file}: {why}; give a file in a folder that is there"
        ) from None
    return len(frame)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise StoreError(
            "Parquet needs pyarrow, which is not installed: pip install 'attnbench[parquet]'"
        ) from None
    return pyarrow, pyarrow.parquet


def _column(arrow: Any, values: pd.Series) -> Any:
    """A column as Arrow has it; what fits no one type, as text."""
    try:
        return arrow.array(values, from_pandas=True)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        return arrow.array([_text(x) for x in values], arrow.string())


def _text(value: Any) -> str | None:
    if value is None or value != value:
        return None
    return value if isinstance(value, str) else json.dumps(value)
