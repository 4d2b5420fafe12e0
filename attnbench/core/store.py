"""Runs read from disk: which there are, their headers, and their records, checked line by line.

A header that can't be read is refused in a sentence, and so is a record of a newer form. Records
are not taken on trust: :class:`Checked` gives those that count, and says what is wrong with others.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf, isfinite, nan
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import warn

import msgspec

from attnbench.core.disk import HEADER, RECORDS, StoreError, from_json, is_no_file
from attnbench.core.format import counted, duration, first_few
from attnbench.core.lock import collector_off
from attnbench.core.record import (
    SCHEMA,
    TOO_FAST,
    DamagedRun,
    InvalidRecord,
    Record,
    Status,
    cell_key,
    least_time,
    recorded_problem,
)
from attnbench.core.stats import summary
from impls.problem import Problem

if TYPE_CHECKING:
    import pandas as pd


FIELDS = {
    "run": str, "command": str, "started": str, "folder": str, "seed": int, "protocol": int,
    "budget_s": int | float, "machine": dict, "settings": dict, "code": dict, "grid": dict,
    "variants": list, "problems": list, "tables": list, "ceilings": dict, "nodes": dict,
    "selfcheck": dict, "legs": list, "noise": list,
}  # fmt: skip
"""What a header's values are, where there are any."""
LONGEST_BUDGET_S = 86400
SHORTEST_S = 1e-7
"""No call, and no replay of a graph, takes less."""
UNTRUE = f"its samples are no times of {SHORTEST_S:.0e} s or more, so that there is none to believe"
BAD_TIME = "its time is no finite number above zero, within its own interval"
LEAST_S, LONGEST_S = 1e-12, 1e9
"""What a figure lies between that is one at all."""
AGAIN = 2.0
"""By so much the ceilings may be off where the ruler measured them again."""
ROUNDING = 1e-9
FIGURES = ("median_s", "low_s", "high_s", "q25_s", "q75_s", "min_s")
"""Of a time, in the order of a summary; null is a number that was not finite."""
NAMED = 5
"""So many lines are named."""
BATCH_BYTES = 1 << 19
"""Lines are read so many at a time: what comes of them then stays near the processor."""
FAULTS = {
    "damaged": "can't be read, left out{again}",
    "foreign": "of another run, left out",
    "unlike": "say different things of the same measurement, and none of them counts{again}",
    "repeated": "said before, and counts once",
    "corrected": "the median or its interval was not that of the samples, and is computed from "
    "them anew",
    "untrue": "the time can't be true, and is taken back",
}
"""What may be wrong with lines, and what is said of them."""


def find_runs(paths: Iterable[Path]) -> Iterator[Path]:
    """The run folders at or below the paths given; raises StoreError where one is not there."""
    for path in paths:
        if not path.exists():
            raise StoreError(f"there is no folder {path}; runs lie in results/<machine>/<run>")
        alone = (path / HEADER).exists()
        yield from [path] if alone else sorted(p.parent for p in path.rglob(HEADER))


NEWEST = ("latest", "previous")
"""Names of the newest run below a folder, and of the one before."""


def named_run(name: str, below: Path = Path("results")) -> Path:
    """The folder of a run: a path, or one of :data:`NEWEST` of those below a folder; raises
    StoreError where there are too few.
    """
    if name not in NEWEST or Path(name).exists():
        return Path(name)

    def begun(file: Path) -> tuple[str, str]:  # a copy may have any name
        with suppress(OSError, ValueError, AttributeError):
            return str(from_json(file.read_text()).get("started") or ""), file.parent.name
        return "", file.parent.name

    found = sorted(below.glob(f"*/*/{HEADER}"), key=begun)
    nth = NEWEST.index(name) + 1
    if len(found) < nth:
        raise StoreError(
            f"there is no {name} run: {below} holds {counted(len(found), 'run')}; 'attnbench run' "
            "makes one"
        )
    return found[-nth].parent


def each_run(paths: Iterable[Path]) -> list[Path]:
    """The run folders at or below the paths given, each once, the first given first; raises
    StoreError where a path is not there.
    """
    return list({path.resolve(): path for path in find_runs(paths)}.values())


def some_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders at or below the paths given; raises StoreError where there is none."""
    if found := each_run(paths):
        return found
    raise StoreError(
        f"there is no run in {', '.join(map(str, paths))}: no {HEADER} lies there; runs lie in "
        "results/<machine>/<run>, and 'attnbench run' makes one"
    )


def read_header(path: Path) -> dict[str, Any]:
    """A run's header; raises StoreError for what is no run, is damaged, or is of a newer form."""
    if not path.is_dir():
        raise StoreError(f"there is no run folder {path}; runs lie in results/<machine>/<run>")
    for name in (HEADER, RECORDS):
        if is_no_file(path / name):
            raise StoreError(f"can't read {path / name}: it is no file")
    damaged = f"{path / HEADER} is damaged"
    try:
        header: dict[str, Any] = from_json((path / HEADER).read_text())
        schema = header["schema"]
    except FileNotFoundError:
        raise StoreError(
            f"{path} holds no {HEADER}: it is not a run; runs lie in results/<machine>/<run>"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise StoreError(f"{damaged}; start a new run") from None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise StoreError(
            f"{path} was written with schema {schema}, newer than the {SCHEMA} this attnbench "
            "reads: update attnbench, or start a new run"
        )
    if wrong := _wrong_field(header):
        raise StoreError(f"{damaged}: {wrong}; start a new run")
    return header


def _wrong_field(header: Mapping[str, Any]) -> str:
    """The first value of a header that can't be, in words."""
    for name, kind in FIELDS.items():
        if not isinstance(header.get(name), kind | None):
            return f"{name} is {str(header[name])[:50]!r}"
    if not all(isinstance(node, dict) for node in (header.get("nodes") or {}).values()):
        return "its nodes are no machines"
    if not 0 < (header.get("budget_s") or 1.0) <= LONGEST_BUDGET_S:
        return f"budget_s is {header['budget_s']!r}"
    return ""


def read_records(path: Path, wanted: Callable[[Problem], bool] | None = None) -> Iterator[Record]:
    """A run's records in the order in which they were measured, of the problems that are wanted.

    Warns where something is wrong with some. A last line without an end is left out: it is being
    written now, or its writer died. Raises StoreError as :meth:`Checked.records` does.
    """
    checked = Checked(path)
    for _, record in checked.records(wanted):
        yield record
    for sentence in checked.sentences():
        warn(sentence, DamagedRun, stacklevel=1)


class _Cell(msgspec.Struct):
    """Of a record, which cell it is of."""

    variant: str
    problem: dict[str, Any]


_record = msgspec.json.Decoder(Record).decode
_cell = msgspec.json.Decoder(_Cell).decode
_figures = attrgetter(*FIGURES)


class Checked:
    """A run's records, each checked as it is read.

    A line that can't be read is left out, and so is what several lines say of one cell. The figures
    of a time are those of its samples, and a time that can't be true is removed. Once the records
    were read, ``faults`` holds the numbers of the lines that something was wrong with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: dict[str, list[int]] = {kind: [] for kind in FAULTS}
        self._lines = 0
        self._header: Any = {}
        with suppress(OSError, ValueError):  # without it the samples alone are looked at
            self._header = from_json((path / HEADER).read_text())

    def records(
        self, wanted: Callable[[Problem], bool] | None = None
    ) -> Iterator[tuple[int, Record]]:
        """Every record that counts, with the number of its line.

        ``wanted``: lines with other problems are not looked into. Raises StoreError for a record
        that isn't one, for one of a newer form, and where the file can't be read.
        """
        cells: dict[tuple[str, Problem], dict[int, int]] = defaultdict(dict)
        for number, line in numbered_lines(self.path):
            if (cell := _cell_of(line)) is not None:
                cells[cell][number] = hash(line)
        for hashes in cells.values():
            if len(set(hashes.values())) > 1:
                self.faults["unlike"] += hashes
            else:
                self.faults["repeated"] += list(hashes)[1:]
        left_out = {*self.faults["repeated"], *self.faults["unlike"]}
        for number, line in numbered_lines(self.path):
            self._lines = number
            if number in left_out or (wanted and (cell := _cell_of(line)) and not wanted(cell[1])):
                continue
            try:
                record = _read(line)
                if record.run not in ("", self._header.get("run", record.run), self.path.name):
                    self.faults["foreign"].append(number)
                    continue
                yield number, self._believed(number, record)
            except InvalidRecord as error:
                raise StoreError(
                    f"{self.path / RECORDS}, line {number}: {error}; take the line out, and "
                    f"attnbench run --resume {self.path} measures it again"
                ) from None
            except (ValueError, RecursionError):
                self.faults["damaged"].append(number)

    def _believed(self, number: int, record: Record) -> Record:
        """The record, with the figures of its samples, and without a time that can't be true."""
        time = record.time
        if time is None:
            return record
        samples = [s for s in time.samples_s if isfinite(s)]
        if not LEAST_S < time.low_s <= time.median_s <= time.high_s < LONGEST_S or not (
            LEAST_S < time.min_s < LONGEST_S
        ):
            why = BAD_TIME
        elif not samples or min(samples) < SHORTEST_S:
            why = UNTRUE
        else:
            figures, near = summary(samples), ROUNDING * time.median_s
            pairs = zip(_figures(time), figures, strict=True)
            if time.n != len(samples) or not all(a == b or abs(a - b) <= near for a, b in pairs):
                self.faults["corrected"].append(number)
                time = time.with_(n=len(samples), **dict(zip(FIGURES, figures, strict=True)))
                record = record.with_(time=time, share_of_ceiling=None)
            why = self._too_fast(record, time.median_s)
        if why:
            self.faults["untrue"].append(number)
            return record.with_(status=Status.IMPLAUSIBLE, reason=why, time=None)
        return record

    def _too_fast(self, record: Record, median_s: float) -> str:
        """Why the work can't have been done in that time; empty where it can, or no ceiling is
        known.

        Where the ceilings were measured again before a time was believed, the share of them in the
        record is more than one. It has to be that time's share then, and not far off.
        """
        if record.cost is None:
            return ""
        try:
            about = (self._header.get("nodes") or {}).get(record.node) or self._header
            least = least_time(record.cost, record.problem.dtype, about.get("ceilings") or {})
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError):
            return ""  # a damaged header
        if least is None or least == inf:
            return ""
        least /= record.ranks.world if record.ranks is not None else 1
        share, most = least / median_s, 1 / TOO_FAST
        if share <= most or share <= AGAIN * min(most, record.share_of_ceiling or 0.0):
            return ""
        return (
            f"it took {duration(median_s)} for what this device can't do in less than "
            f"{duration(least)}, by the product and the copy measured on it"
        )

    def cut_off(self) -> bool:
        """Whether a death left a tail, whose lines are then not counted among the damaged ones.

        That is a last line without an end, and, after a loss of power, lines at the end that are
        no JSON: zero bytes, or blocks of something else. To be asked for once all was read.
        """
        with suppress(FileNotFoundError), (self.path / RECORDS).open("rb") as data:
            data.seek(max(data.seek(0, os.SEEK_END) - 1, 0))
            found, damaged = data.read() not in (b"", b"\n"), self.faults["damaged"]
            while damaged and damaged[-1] == self._lines:
                found, self._lines = True, self._lines - 1
                damaged.pop()
            return found
        return False

    def sentences(self) -> Iterator[str]:
        """What is wrong, where it is, and what helps; to be asked for once all was read."""
        again = f"; attnbench run --resume {self.path} measures that again"
        for kind, words in FAULTS.items():
            if lines := self.faults[kind]:
                where = f"{numbered(lines)} of {self.path / RECORDS}"
                yield f"{where}: {words.format(again=again)}"


def numbered(numbers: Collection[int]) -> str:
    """Lines by their numbers, in words; of many, the first."""
    if len(numbers) == 1:
        return f"line {min(numbers)}"
    return f"lines {first_few([*map(str, sorted(numbers))], NAMED)}"


def _cell_of(line: bytes) -> tuple[str, Problem] | None:
    """The variant and the problem of a line; None where it holds no record."""
    try:
        try:
            found = _cell(line)
        except (ValueError, RecursionError):
            found = msgspec.convert(from_json(line), _Cell)
        return found.variant, recorded_problem(found.problem)
    except ValueError:
        return None


def _read(line: bytes) -> Record:
    """The record that a line holds.

    Raises InvalidRecord where its values are none of a record, ValueError where it is no JSON.
    """
    if b'"schema":' in line:
        with suppress(ValueError, RecursionError):
            record = _record(line)
            if record.schema <= SCHEMA:
                return record
    values = from_json(line)
    if isinstance(values, dict) and isinstance(time := values.get("time"), dict):
        values["time"] = {**time, **{name: nan for name in FIGURES if time.get(name, 0) is None}}
    return Record.from_dict(values)


def lines_of(path: Path, keys: Collection[str]) -> list[int]:
    """The numbers of the lines of some cells; raises as :func:`numbered_lines`."""
    cells = ((number, _cell_of(line)) for number, line in numbered_lines(path))
    return [number for number, cell in cells if cell is not None and cell_key(*cell) in keys]


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """A run's whole lines with their numbers; raises StoreError where they can't be read."""
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
            yield from enumerate(lines, number)
            number += len(lines)


ROWS = "rows"


def load(paths: Iterable[str | Path] = ("results",)) -> pd.DataFrame:
    """Records as a DataFrame, a row each: ``time.median_s``, ``problem.q_len`` …, ``machine``.

    Its ``attrs`` say how many rows each run has, in the order of the runs. Raises
    StoreError where one is not there or can't be read.
    """
    import pandas as pd

    records: list[Record] = []
    machines: list[str] = []
    counts: list[int] = []
    columns: dict[str, Any] = {}
    with collector_off():
        for run in find_runs(Path(p) for p in paths):
            before = len(records)
            records += read_records(run)
            counts.append(len(records) - before)
            name = read_header(run).get("machine", {}).get("name", run.parent.name)
            machines += [name] * counts[-1]
        for name, rows, values in _columns("", range(len(records)), records):
            if isinstance(rows, range):
                columns[name] = values
                continue
            column = columns.setdefault(name, [nan] * len(records))
            for row, value in zip(rows, values, strict=True):
                column[row] = value
        if records:
            columns["machine"] = machines
        frame = pd.DataFrame({name: pd.Series(column) for name, column in columns.items()})
    frame.attrs[ROWS] = counts
    return frame


NESTED = (msgspec.Struct, Problem, Mapping)
PROBLEM = tuple(Problem.__dataclass_fields__)


def _columns(
    path: str, rows: Sequence[int], values: Sequence[Any]
) -> Iterator[tuple[str, Sequence[int], Sequence[Any]]]:
    """The columns of what lies at a path: the rows that have a value, and these values.

    A value with parts gives columns of theirs, one that other rows have too in several pieces.
    By whole columns, and not value by value, in a tenth of the time of pandas' json_normalize.
    """
    kinds = {kind: kind if issubclass(kind, NESTED) else None for kind in set(map(type, values))}
    for kind in set(kinds.values()):
        there, some = rows, values
        if len(set(kinds.values())) > 1:
            pairs = [(r, v) for r, v in zip(rows, values, strict=True) if kinds[type(v)] is kind]
            there, some = [row for row, _ in pairs], [value for _, value in pairs]
        if kind is None:
            yield path, there, some
            continue
        parts: dict[str, tuple[Any, Any]] = {}
        if issubclass(kind, Mapping):
            for row, value in zip(there, some, strict=True):
                for name, part in value.items():
                    where, what = parts.setdefault(name, ([], []))
                    where.append(row)
                    what.append(part)
        else:
            for name in kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else PROBLEM:
                found = list(map(attrgetter(name), some))
                if name == "mask":  # few, shared by many
                    texts = {k: str(mask) for k, mask in {id(m): m for m in found}.items()}
                    found = [texts[id(mask)] for mask in found]
                parts[name] = there, found
        for name, (where, what) in parts.items():
            yield from _columns(f"{path}.{name}" if path else name, where, what)
