"""Runs read from disk: which there are, their headers, and their records, checked line by line.

A header that can't be read is refused in a sentence, and so is a record of a newer form.
:class:`Checked` gives the records that count, and says what is wrong with other lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import warn

import msgspec

from attnbench.core.disk import HEADER, RECORDS, StoreError, from_json
from attnbench.core.format import counted, first_few
from attnbench.core.record import (
    SCHEMA,
    DamagedRun,
    InvalidRecord,
    Record,
    Status,
)
from impls.problem import Problem

if TYPE_CHECKING:
    import pandas as pd


BAD_TIME = "its time is no finite number above zero, within its own interval"
LEAST_S, LONGEST_S = 1e-12, 1e9
"""What a figure lies between that is one at all."""
FIGURES = ("median_s", "low_s", "high_s", "q25_s", "q75_s", "min_s")
"""Of a time; null is a number that was not finite."""
NAMED = 5
"""So many lines are named."""
BATCH_BYTES = 1 << 19
"""Lines are read so many at a time: what comes of them then stays near the processor."""
FAULTS = {
    "damaged": "can't be read, left out; attnbench run --resume {run} measures that again",
    "foreign": "of another run, left out",
    "repeated": "of a measurement that has a record already, left out",
    "untrue": "the time is no finite number above zero, left out",
}
"""The faults that lines may have, in words."""


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

    def start_of(file: Path) -> tuple[str, str]:  # a copy may have any name
        with suppress(OSError, ValueError, AttributeError):
            return str(from_json(file.read_text()).get("started") or ""), file.parent.name
        return "", file.parent.name

    runs = sorted(below.glob(f"*/*/{HEADER}"), key=start_of)
    nth = NEWEST.index(name) + 1
    if len(runs) < nth:
        raise StoreError(
            f"there is no {name} run: {below} holds {counted(len(runs), 'run')}; 'attnbench run' "
            "makes one"
        )
    return runs[-nth].parent


def each_run(paths: Iterable[Path]) -> list[Path]:
    """The run folders at or below the paths given, each once, the first given first; raises
    StoreError where a path is not there.
    """
    return list({path.resolve(): path for path in find_runs(paths)}.values())


def some_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders at or below the paths given; raises StoreError where there is none."""
    if runs := each_run(paths):
        return runs
    raise StoreError(
        f"there is no run in {', '.join(map(str, paths))}: no {HEADER} lies there; runs lie in "
        "results/<machine>/<run>, and 'attnbench run' makes one"
    )


def read_header(path: Path) -> dict[str, Any]:
    """A run's header; raises StoreError for what is no run, is damaged, or is of a newer form."""
    if not path.is_dir():
        raise StoreError(f"there is no run folder {path}; runs lie in results/<machine>/<run>")
    damaged = f"{path / HEADER} is damaged"
    try:
        header: dict[str, Any] = from_json((path / HEADER).read_text())
        schema = header["schema"]
    except FileNotFoundError:
        raise StoreError(
            f"{path} holds no {HEADER}: it is not a run; runs lie in results/<machine>/<run>"
        ) from None
    except OSError as error:
        raise StoreError(f"can't read {path / HEADER}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise StoreError(f"{damaged}; start a new run") from None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise StoreError(
            f"{path} was written with schema {schema}, newer than the {SCHEMA} this attnbench "
            "reads: update attnbench, or start a new run"
        )
    return header


def read_records(path: Path, keep: Callable[[Problem], bool] | None = None) -> Iterator[Record]:
    """A run's records in the order in which they were measured, of the problems that are wanted.

    Warns where something is wrong with some. A last line without an end is left out: it is being
    written now, or its writer died. Raises StoreError as :meth:`Checked.records` does.
    """
    checked = Checked(path)
    for _, record in checked.records(keep):
        yield record
    for sentence in checked.sentences():
        warn(sentence, DamagedRun, stacklevel=1)


_record = msgspec.json.Decoder(Record).decode


class Checked:
    """A run's records, each checked as it is read.

    A line that can't be read is left out, and so are lines of other runs and a second record of one
    measurement. Once all was read, ``faults`` holds the numbers of the lines with each fault.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: dict[str, list[int]] = {kind: [] for kind in FAULTS}
        self._lines = 0
        self._header: Any = {}
        with suppress(OSError, ValueError):  # any name of a run counts without it
            self._header = from_json((path / HEADER).read_text())

    def records(
        self, keep: Callable[[Problem], bool] | None = None
    ) -> Iterator[tuple[int, Record]]:
        """Every record that counts, of the problems that are wanted, with the number of its line.

        Raises StoreError for a record that isn't one, for one of a newer form, and where the file
        can't be read.
        """
        cells: set[tuple[str, Problem]] = set()
        for number, line in numbered_lines(self.path):
            self._lines = number
            try:
                record = _read(line)
            except InvalidRecord as error:
                raise StoreError(
                    f"{self.path / RECORDS}, line {number}: {error}; take the line out, and "
                    f"attnbench run --resume {self.path} measures it again"
                ) from None
            except (ValueError, RecursionError):
                self.faults["damaged"].append(number)
                continue
            if keep is not None and not keep(record.problem):
                continue
            if record.run not in ("", self._header.get("run", record.run), self.path.name):
                self.faults["foreign"].append(number)
            elif (record.variant, record.problem) in cells:
                self.faults["repeated"].append(number)
            else:
                cells.add((record.variant, record.problem))
                if _has_bad_time(record):
                    self.faults["untrue"].append(number)
                    record = record.with_(status=Status.IMPLAUSIBLE, reason=BAD_TIME, time=None)
                yield number, record

    def cut_off(self) -> bool:
        """Whether a death left a tail, whose lines are then not counted among the damaged ones.

        That is a last line without an end, and, after a loss of power, lines at the end that are
        no JSON: zero bytes, or blocks of something else. To be asked for once all was read.
        """
        with suppress(FileNotFoundError), (self.path / RECORDS).open("rb") as data:
            data.seek(max(data.seek(0, os.SEEK_END) - 1, 0))
            torn, damaged = data.read() not in (b"", b"\n"), self.faults["damaged"]
            while damaged and damaged[-1] == self._lines:
                torn, self._lines = True, self._lines - 1
                damaged.pop()
            return torn
        return False

    def sentences(self) -> Iterator[str]:
        """What is wrong, where it is, and what helps; to be asked for once all was read."""
        for kind, words in FAULTS.items():
            if lines := self.faults[kind]:
                where = f"{numbered(lines)} of {self.path / RECORDS}"
                yield f"{where}: {words.format(run=self.path)}"


def _has_bad_time(record: Record) -> bool:
    """Whether a record has a time that no clock can have shown."""
    time = record.time
    return time is not None and not (
        LEAST_S < time.low_s <= time.median_s <= time.high_s < LONGEST_S
        and LEAST_S < time.min_s < LONGEST_S
    )


def numbered(numbers: Collection[int]) -> str:
    """Lines by their numbers, in words; of many, the first."""
    if len(numbers) == 1:
        return f"line {min(numbers)}"
    return f"lines {first_few([*map(str, sorted(numbers))], NAMED)}"


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

    rows: list[dict[str, Any]] = []
    counts: list[int] = []
    for run in find_runs(Path(p) for p in paths):
        machine = read_header(run).get("machine", {}).get("name", run.parent.name)
        records = [{**record.to_dict(), "machine": machine} for record in read_records(run)]
        counts.append(len(records))
        rows += records
    frame = pd.json_normalize(rows)
    frame.attrs[ROWS] = counts
    return frame
