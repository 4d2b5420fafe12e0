"""What lies in a results folder: the runs, their headers, their records line by line.

A header that can't be read is refused in a sentence, and so are records of a newer form. Of records
none is believed unread: :class:`Checked` says which lines count, and what is amiss with the others.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from attnbench.record import (
    SCHEMA,
    TOO_FAST,
    DamagedRun,
    InvalidRecord,
    NewerRecord,
    Record,
    Status,
    cell_key,
    least_time,
    variant_of,
)
from attnbench.statistics import CONFIDENCE, interval_rank, summary
from attnbench.store.disk import HEADER, RECORDS, StoreError, from_json, is_no_file
from impls.problem import Problem

try:
    from msgspec import MsgspecError
    from msgspec.json import Decoder

    NOT_PARSED: type[Exception] = MsgspecError
    parse: Callable[[bytes], Any] = Decoder().decode
except ImportError:  # a bare checkout may be without it
    NOT_PARSED, parse = ValueError, from_json

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


def read_records(path: Path) -> Iterator[Record]:
    """A run's records in the order in which they were measured; warns of what is amiss with some.

    A last line without an end is left out: it is being written now, or its writer died.
    """
    checked = Checked(path)
    for _, _, record in checked.records():
        yield record
    warn(checked.sentences())


def warn(sentences: Iterable[str]) -> None:
    """Issue what is amiss with a run as warnings, each sentence once."""
    for sentence in sentences:
        warnings.warn(sentence, DamagedRun, stacklevel=1)


class Checked:
    """A run's records, none believed unread.

    What can't be read is left out, and what one cell says twice. The figures of a time are those of
    its samples, and a time that can't be true is taken back. The rest is read, and the attributes
    say afterwards which lines were amiss.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged: list[int] = []
        """The numbers of lines that hold no record."""
        self.again: list[int] = []
        """Those that repeat a record, word for word."""
        self.unlike: list[int] = []
        """Those of cells that several lines say different things of."""
        self.corrected: list[int] = []
        """Those whose figures were not those of their samples."""
        self.untrue: list[int] = []
        """Those whose time can't be true."""
        self._ceilings = _Ceilings(path)

    def batches(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Whole lines that may count, some at a time, with the number of the first."""
        left_out = sorted(self.said_twice())
        for first, lines in batches(self.path):
            start = first
            for number in left_out:
                if start <= number < first + len(lines):
                    yield start, lines[start - first : number - first]
                    start = number + 1
            yield start, lines[start - first :]

    def said_twice(self) -> set[int]:
        """The lines that don't count because another is of the same cell."""
        self.again, self.unlike = _said_twice(self.path)
        return {*self.again, *self.unlike}

    def records(self) -> Iterator[tuple[int, bytes, Record]]:
        """Every record that counts, with its line and the line's number."""
        for first, lines in self.batches():
            yield from self.of(first, lines)

    def of(self, first: int, lines: Sequence[bytes]) -> Iterator[tuple[int, bytes, Record]]:
        """The records that some lines are, the first of them with this number in the file."""
        for number, line in enumerate(lines, first):
            try:
                values = _values(line)
            except (ValueError, RecursionError):
                self.damaged.append(number)
                continue
            try:
                record = Record.from_dict(values)
            except InvalidRecord as error:
                remedy = "" if isinstance(error, NewerRecord) else (
                    f"; take the line out, and attnbench run --resume {self.path} measures its cell"
                )  # fmt: skip
                raise StoreError(f"{self.path / RECORDS}, line {number}: {error}{remedy}") from None
            yield number, line, self._believed(number, record)

    def _believed(self, number: int, record: Record) -> Record:
        if record.time is None:
            return record
        figures, why = self.judge(number, record)
        if why:
            return replace(record, status=Status.IMPLAUSIBLE, reason=why, time=None)
        if figures:
            time = replace(record.time, **figures)  # type: ignore[arg-type]
            return replace(record, time=time, share_of_ceiling=None)
        return record

    def judge(self, number: int, row: Any) -> tuple[dict[str, float] | None, str]:
        """For a record, or what was read of one, with a time: the figures that its samples give
        where it says others, and why the time can't be true where it can't.
        """
        time, figures = row.time, None
        try:
            sound = (
                LEAST_S < time.low_s <= time.median_s <= time.high_s < LONGEST_S
                and LEAST_S < time.min_s < LONGEST_S
            )
        except TypeError:
            sound = False
        if not sound:
            self.untrue.append(number)
            return None, BAD_TIME
        ordered = self._ordered(number, time.samples_s)
        if not ordered or ordered[0] < SHORTEST_S:
            self.untrue.append(number)
            return None, UNTRUE
        if not _given_by(ordered, time):
            s = summary(ordered)
            figures = {
                "median_s": s.median, "low_s": s.low, "high_s": s.high, "q25_s": s.q25,
                "q75_s": s.q75, "min_s": s.least, "n": len(ordered),
            }  # fmt: skip
            self.corrected.append(number)
        median = figures["median_s"] if figures else time.median_s
        if row.cost is not None and (why := self._too_fast(row, median)):
            self.untrue.append(number)
            return None, why
        return figures, ""

    def _ordered(self, number: int, samples: Any) -> list[float]:
        """The samples that are numbers, the least first; raises where some are something else."""
        try:
            ordered = sorted(samples)
            return ordered if sum(ordered) < inf else sorted(s for s in samples if abs(s) < inf)
        except OverflowError:
            return []
        except TypeError:
            raise StoreError(
                f"{self.path / RECORDS}, line {number}: its time has no fit samples_s; take the "
                "line out, or measure again"
            ) from None

    def _too_fast(self, row: Any, median: float) -> str:
        """Why the work can't have been done in that time; empty where it can.

        Where the ruler had measured the ceilings again before it believed a time, the share that
        it wrote down is more than one. It has to be that time's share then, and not far off.
        """
        problem = row.problem
        dtype = str(problem.get("dtype")) if isinstance(problem, dict) else problem.dtype
        least = self._ceilings.least(row.cost, dtype, row.node)
        if least is None:
            return ""
        if row.ranks is not None:
            least /= row.ranks["world"] if isinstance(row.ranks, dict) else row.ranks.world
        share = least / median
        if share <= 1 / TOO_FAST:
            return ""
        if row.share_of_ceiling and share <= AGAIN * min(1 / TOO_FAST, row.share_of_ceiling):
            return ""
        return (
            f"it took {median * 1e3:.3g} ms for what this device can't do in less than "
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


def _given_by(ordered: Sequence[float], time: Any) -> bool:
    """Whether the figures of a time are those of its samples."""
    n = len(ordered)
    rank = interval_rank(n, CONFIDENCE)
    half = n // 2
    median = ordered[half] if n % 2 else (ordered[half - 1] + ordered[half]) / 2
    return bool(
        time.n == n
        and ordered[0] == time.min_s
        and ordered[rank - 1] == time.low_s
        and ordered[-rank] == time.high_s
        and abs(median - time.median_s) <= ROUNDING * median
        and (not hasattr(time, "q25_s") or (  # what a choice needs has none
            abs(_quantile(ordered, 1) - time.q25_s) <= ROUNDING * median
            and abs(_quantile(ordered, 3) - time.q75_s) <= ROUNDING * median
        ))
    )  # fmt: skip


def _quantile(ordered: Sequence[float], quarters: int) -> float:
    """Between the two samples next to it, as NumPy's."""
    place, rest = divmod(quarters * (len(ordered) - 1), 4)
    if not rest:
        return ordered[place]
    return ordered[place] + (ordered[place + 1] - ordered[place]) * rest / 4


def _said_twice(path: Path) -> tuple[list[int], list[int]]:
    """The lines that repeat a record, and those that say different things of one cell.

    A cell's first line is told by a number of its text alone, so that a long run needs little room;
    where two have the same number, the lines themselves are read again and compared.
    """
    seen: dict[int, tuple[int, int]] = {}
    several: dict[int, list[tuple[int, bytes]]] = {}
    start = 0
    for first, lines in batches(path):
        for number, line in enumerate(lines, first):
            problem = line.find(PROBLEM)
            begin = line.find(VARIANT, 0, problem)
            cell = line[begin : line.find(b"}", problem)] if begin >= 0 else _cell_in(line)
            mark = hash(cell)
            if mark not in seen:
                seen[mark] = number, start
            elif cell:
                if mark not in several:
                    several[mark] = [(seen[mark][0], _line_at(path, seen[mark][1]))]
                several[mark].append((number, line))
            start += len(line)
    again: list[int] = []
    unlike: list[int] = []
    for lines_of_one in several.values():
        cells: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for number, line in lines_of_one:
            with suppress(ValueError, KeyError, TypeError, AttributeError):  # damaged: found later
                values = _values(line)
                cells.setdefault(cell_key(values["variant"], values["problem"]), []).append(
                    (number, values)
                )
        for some in cells.values():
            if all(values == some[0][1] for _, values in some):
                again += [number for number, _ in some[1:]]
            else:
                unlike += [number for number, _ in some]
    return sorted(again), sorted(unlike)


def _line_at(path: Path, start: int) -> bytes:
    with (path / RECORDS).open("rb") as data:
        data.seek(start)
        return data.readline()


def _cell_in(line: bytes) -> bytes:
    """What a record's own text would say of its cell, where another program wrote the line."""
    try:
        values = _values(line)
        problem = {name: values["problem"][name] for name in Problem.__dataclass_fields__}
        text = json.dumps({"variant": values["variant"], "problem": problem}, separators=(",", ":"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return b""
    return text[1:-2].encode()


def lines_of(path: Path, keys: Collection[str]) -> Iterator[tuple[int, bytes]]:
    """The lines of some cells, each with the byte that it starts at."""
    names = {json.dumps(variant_of(key)).encode() for key in keys}
    start = 0
    for _, lines in batches(path):
        for line in lines:
            if any(name in line for name in names):  # the others need not be parsed
                with suppress(InvalidRecord, ValueError):
                    if Record.from_dict(_values(line)).key in keys:
                        yield start, line
            start += len(line)


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
    """The JSON in a line; what the fast parser won't have, json may, or says why not."""
    try:
        return parse(line)
    except (NOT_PARSED, UnicodeDecodeError, RecursionError):
        return from_json(line)


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
