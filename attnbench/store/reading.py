"""What lies in a results folder: the runs, their headers, their records line by line.

Whatever can't be read is refused in a sentence that names the file and the line. Only a last line
without an end is passed over: it is being written now, or its writer died.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attnbench.record import SCHEMA, InvalidRecord, Record, variant_of
from attnbench.store.disk import HEADER, RECORDS, StoreError, from_json, is_no_file

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
    "variants": list, "problems": list, "tables": list, "noise": list,
}  # fmt: skip
"""What a header's values are, where there are any."""
LONGEST_BUDGET_S = 86400
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
    """A run's records in the order in which they were measured; a torn last line is left out."""
    for first, lines in batches(path):
        yield from parsed(path, first, lines)


def lines_of(path: Path, keys: Collection[str]) -> Iterator[tuple[int, bytes]]:
    """The lines of some cells, each with the byte that it starts at."""
    names = {json.dumps(variant_of(key)).encode() for key in keys}
    start = 0
    for first, lines in batches(path):
        for number, line in enumerate(lines, first):
            if any(name in line for name in names):  # the others need not be parsed
                (record,) = parsed(path, number, [line])
                if record.key in keys:
                    yield start, line
            start += len(line)


def batches(path: Path) -> Iterator[tuple[int, Sequence[bytes]]]:
    """A run's whole lines, some at a time, each time with the number of the first."""
    file, number = path / RECORDS, 1
    if not file.exists():
        return
    with file.open("rb") as data:
        while lines := data.readlines(BATCH_BYTES):
            if not lines[-1].endswith(b"\n"):
                del lines[-1]
            yield number, lines
            number += len(lines)


def parsed(path: Path, first: int, lines: Sequence[bytes]) -> Iterator[Record]:
    """The records that lines are, the first of them with this number in the run's file."""
    for number, line in enumerate(lines, first):
        try:
            yield Record.from_dict(_values(line))
        except (InvalidRecord, ValueError) as error:
            what_to_do = _remedy(path, number)
            raise StoreError(f"{path / RECORDS}, line {number}: {error}{what_to_do}") from None


def _values(line: bytes) -> Any:
    """The JSON in a line; what the fast parser won't have, json may, or says why not."""
    try:
        return parse(line)
    except (NOT_PARSED, UnicodeDecodeError, RecursionError):
        return from_json(line)


def _remedy(path: Path, number: int) -> str:
    """What helps where this line and all after it are what a death left behind."""
    data = (path / RECORDS).read_bytes()
    if number <= data.count(b"\n", 0, whole_length(data)):
        return ""
    return f"; attnbench run --resume {path} sets it aside and measures what is missing"


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
