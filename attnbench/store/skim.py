"""What a choice needs of a run's records, and no more: read fast, where a run has many.

A problem that was read once is known by its text, so that a line with another phase, dtype or kind
of inputs than the one asked about isn't parsed. Samples are looked at and not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from attnbench.record import Record, Status
from attnbench.store.disk import RECORDS, StoreError, from_json
from attnbench.store.reading import Checked, batches, warn
from impls.problem import Problem


@dataclass(slots=True)
class SeenTime:
    """Of a time what a choice needs, and the samples that its figures are held against."""

    median_s: float
    low_s: float
    high_s: float
    min_s: float
    n: int = 0
    samples_s: list[float] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)


@dataclass(slots=True)
class SeenMemory:
    """Of the memory, what limits are about."""

    peak_bytes: int
    expected_bytes: int | None = None
    flags: list[str] = field(default_factory=list)


@dataclass(slots=True)
class SeenCost:
    """The work of the mathematics."""

    flops: int
    bytes: int


@dataclass(slots=True)
class SeenError:
    """Of an error, the figure that limits are about."""

    relative: float | None = None


@dataclass(slots=True)
class SeenDistance:
    """How far from softmax, and what of it is kept."""

    relative: float | None = None
    skill: float | None = None


@dataclass(slots=True)
class Seen:
    """Of a record, what a choice needs. ``problem`` is a :class:`Problem` once it is given out."""

    status: str
    variant: str
    problem: Any
    reason: str = ""
    computes: str = ""
    time: SeenTime | None = None
    memory: SeenMemory | None = None
    error: dict[str, SeenError] | None = None
    distance: SeenDistance | None = None
    cost: SeenCost | None = None
    share_of_ceiling: float | None = None
    setup_s: float | None = None
    kernels: list[str] = field(default_factory=list)
    node: str = ""
    canary_s: float | None = None
    ranks: Any = None
    protocol: int = 0


PARTS: dict[str, type[Any]] = {
    "time": SeenTime, "memory": SeenMemory, "distance": SeenDistance, "cost": SeenCost,
}  # fmt: skip
ENDS = ("low_s", "high_s", "min_s")
KEY = b'"problem":{'


def skim(path: Path, alike: Mapping[str, str]) -> Iterator[Seen]:
    """The records of a run whose problems have these values, such as ``{"phase": "train"}``."""
    read, texts, known = _reader(), dict[bytes, Problem | None](), dict[Problem, Problem]()
    checked, found, cells, twice = Checked(path), list[tuple[int, Seen]](), set[Any](), False
    for first, lines in batches(path):
        for number, line in enumerate(lines, first):
            text = _problem_in(line)
            if text in texts and texts[text] is None:
                continue
            try:
                seen = _read(line, read)
                if (problem := texts.get(text)) is None:
                    problem = Problem.from_dict(seen.problem)
                    problem = known.setdefault(problem, problem) if _is(problem, alike) else None
                    if _says(text, seen.problem):
                        texts[text] = problem
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                for _, _, record in checked.of(number, [line]):
                    raise _damaged(path, number, record) from None
                continue
            if problem is not None:
                seen.problem = problem
                _judge(checked, number, seen)
                found.append((number, seen))
                cell = seen.variant, id(problem)  # ``known`` has one of each
                twice = twice or cell in cells
                cells.add(cell)
    left_out = checked.said_twice() if twice else set()
    warn(checked.sentences())
    yield from (seen for number, seen in found if number not in left_out)


def _judge(checked: Checked, number: int, seen: Seen) -> None:
    """Take a time back that can't be true; of one that may be, its samples' figures are kept."""
    if (time := seen.time) is None:
        return
    figures, why = checked.judge(number, seen)
    if why:
        seen.status, seen.reason, seen.time = str(Status.IMPLAUSIBLE), why, None
    if figures:
        for name in (*ENDS, "median_s"):
            setattr(time, name, figures[name])
    time.samples_s = []


def _problem_in(line: bytes) -> bytes:
    """The problem as this line says it; nothing where the line was written in another way."""
    start = line.find(KEY)
    return line[start + len(KEY) - 1 : line.find(b"}", start) + 1] if start >= 0 else b""


def _says(text: bytes, values: Any) -> bool:
    """Whether a text is all of what was read, so that lines that have it need not be."""
    try:
        return bool(from_json(text) == values)
    except ValueError:
        return False


def _is(problem: Problem, alike: Mapping[str, str]) -> bool:
    return all(str(getattr(problem, name)) == value for name, value in alike.items())


def _read(line: bytes, read: Callable[[bytes], Seen]) -> Seen:
    """What the fast parser won't have may be a time without a number: that is no time."""
    try:
        return read(line)
    except (ValueError, RecursionError):
        return _by_hand(line)


def _reader() -> Callable[[bytes], Seen]:
    """From a line to what is needed of it."""
    try:
        from msgspec.json import Decoder
    except ImportError:  # a bare checkout may be without it
        return _by_hand
    return Decoder(Seen).decode


def _by_hand(line: bytes) -> Seen:
    values = from_json(line)
    if (time := values.get("time")) and None in (time.get(n) for n in ("median_s", *ENDS)):
        values["time"] = None
    parts = {name: _part(kind, values.get(name)) for name, kind in PARTS.items()}
    errors = values.get("error")
    parts["error"] = errors and {name: _part(SeenError, each) for name, each in errors.items()}
    found: Seen = _part(Seen, {**values, **parts})
    return found


def _part(kind: type[Any], values: Mapping[str, Any] | None) -> Any:
    if values is None:
        return None
    return kind(**{f.name: values[f.name] for f in fields(kind) if f.name in values})


def _damaged(path: Path, number: int, record: Record) -> StoreError:
    return StoreError(
        f"{path / RECORDS}, line {number}: its problem can't be read: {record.problem}"
    )
