"""Runs read from disk: which there are, their headers, and their records, checked line by line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any
from warnings import warn

import msgspec

from attnbench.core.disk import HEADER, RECORDS, StoreError, from_json
from attnbench.core.format import counted, first_few
from attnbench.core.record import SCHEMA, DamagedRun, Record, read_record
from impls.problem import Problem

NAMED = 5
"""So many lines are named."""
NEWEST = ("latest", "previous")
"""Names of the newest run below a folder, and of the one before."""
WHERE = "runs lie in results/<machine>/<run>"
NEWER = f"newer than the {SCHEMA} this attnbench reads: update attnbench"


def find_runs(paths: Iterable[Path]) -> Iterator[Path]:
    """The run folders at or below the paths given; raises StoreError where one is not there."""
    for path in paths:
        if not path.exists():
            raise StoreError(f"there is no folder {path}; {WHERE}")
        alone = (path / HEADER).exists()
        yield from [path] if alone else sorted(p.parent for p in path.rglob(HEADER))


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
        f"there is no run in {', '.join(map(str, paths))}: no {HEADER} lies there; {WHERE}, and "
        "'attnbench run' makes one"
    )


def read_header(path: Path) -> dict[str, Any]:
    """A run's header; raises StoreError for what is no run, is damaged, or is of a newer form."""
    if not path.is_dir():
        raise StoreError(f"there is no run folder {path}; {WHERE}")
    try:
        header: dict[str, Any] = from_json((path / HEADER).read_text())
        schema = header["schema"]
    except FileNotFoundError:
        raise StoreError(f"{path} holds no {HEADER}: it is not a run; {WHERE}") from None
    except OSError as error:
        raise StoreError(f"can't read {path / HEADER}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise StoreError(f"{path / HEADER} is damaged; start a new run") from None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise StoreError(f"{path} was written with schema {schema}, {NEWER}, or start a new run")
    return header


def read_records(path: Path, keep: Callable[[Problem], bool] | None = None) -> list[Record]:
    """A run's records in the order in which they were measured, of the problems that are wanted.

    Warns where lines are left out; raises StoreError as :meth:`StoredRecords.read` does.
    """
    stored = StoredRecords.read(path, keep)
    for sentence in stored.faults():
        warn(sentence, DamagedRun, stacklevel=2)
    return stored.records


_record = msgspec.json.Decoder(Record).decode


def _record_of(line: bytes) -> Record:
    """The record of a line; raises ValueError, or RecursionError, for what is none."""
    with suppress(msgspec.DecodeError):
        return _record(line)
    return read_record(from_json(line))  # which knows half a letter, and names that have one


class StoredRecords:
    """A run's records with the numbers of their lines. Of two records of one measurement the later
    one counts; a line that can't be read is left out, and so is one of another run.
    """

    def __init__(self, path: Path, run: str = "") -> None:
        """``run``: the run's name, where it is known."""
        self.path, self._names = path, {"", run, path.name}
        self._by_cell: dict[tuple[str, Problem], tuple[int, Record]] = {}
        self.count = 0
        """Lines."""
        self.again = 0
        """Records that a later one of the same measurement replaced."""
        self._damaged: list[int] = []
        self._foreign: list[int] = []

    @classmethod
    def read(cls, path: Path, keep: Callable[[Problem], bool] | None = None) -> StoredRecords:
        """Those on disk, of the problems that are wanted; raises StoreError for one of a newer
        form, and where the file can't be read.

        A last line without an end is left out: it is being written now, or its writer died.
        """
        run, file = "", path / RECORDS
        with suppress(OSError, ValueError, AttributeError):
            run = str(from_json((path / HEADER).read_text()).get("run") or "")
        stored = cls(path, run)
        try:
            with file.open("rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):
                        stored._take(line, keep)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreError(f"can't read {file}: {error.strerror}; make it readable") from None
        return stored

    def _take(self, line: bytes, keep: Callable[[Problem], bool] | None) -> None:
        number = self.count + 1
        try:
            record = _record_of(line)
            time, newer = record.time, record.schema > SCHEMA
            if time and not 0 < time.low_s <= time.median_s <= time.high_s < inf:
                raise ValueError("its time is no finite number above zero, within its interval")
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            record, newer = None, _schema(line) > SCHEMA
        if newer:
            raise StoreError(f"{self.path / RECORDS}, line {number}: its schema is {NEWER}")
        if record is not None and record.run in self._names:
            if keep is None or keep(record.problem):
                self.add(record)
                return
        else:
            (self._damaged if record is None else self._foreign).append(number)
        self.count = number

    def add(self, record: Record) -> None:
        """The record on the next line."""
        cell = record.variant, record.problem
        self.count += 1
        self.again += self._by_cell.pop(cell, None) is not None
        self._by_cell[cell] = self.count, record

    @property
    def records(self) -> list[Record]:
        """Those that count, in the order in which they were measured."""
        return [record for _, record in self._by_cell.values()]

    @property
    def lines(self) -> list[int]:
        """The line of each."""
        return [line for line, _ in self._by_cell.values()]

    def faults(self) -> Iterator[str]:
        """The lines that are left out, and why."""
        if self._damaged:
            yield (
                f"{numbered(self._damaged)} of {self.path / RECORDS} can't be read, left out; "
                f"attnbench run --resume {self.path} measures that again"
            )
        if self._foreign:
            where = f"{numbered(self._foreign)} of {self.path / RECORDS}"
            yield f"{where} is of another run, left out"


def _schema(line: bytes) -> int:
    """The schema of a line that is no record of this form; 0 where it has none."""
    with suppress(ValueError, KeyError, TypeError):
        return int(from_json(line)["schema"])
    return 0


def numbered(numbers: Collection[int]) -> str:
    """Lines by their numbers, in words; of many, the first."""
    plural = "s" if len(numbers) > 1 else ""
    return f"line{plural} {first_few([*map(str, sorted(numbers))], NAMED)}"
