"""What a cell says that ended in an exception, whatever the exception says of itself."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attnbench.measure.owner import Owner, owner_of
from attnbench.record import Record, Status

LONGEST, TRACE, NAME = 1000, 4000, 80
"""Characters of a message, of a traceback and of an exception's name that are kept."""
DEEPEST = 8
"""Of exceptions that led to one another, so many are told."""
SILENT = "it doesn't say why"
NO_ROOM = ("can't allocate memory", "Cannot allocate memory", "bad_alloc", "out of memory")
"""How those say it that have no exception for it."""


def failure(error: Exception) -> dict[str, Any]:
    """The fields of a record that ended in an exception."""
    text = _said(error)
    if _no_room(error, text):
        return {
            "status": Status.OUT_OF_MEMORY, "reason": text,
            "remedy": "shorten the sequence, lower the batch, or free memory",
        }  # fmt: skip
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if owner_of(f.filename) is not Owner.RULER]
    place = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return {
        "status": Status.FAILED, "reason": f"it raised {_name(error)}{place}: {text}",
        "detail": "\n".join(_trace(error))[-TRACE:],
    }  # fmt: skip


def told(words: object, most: int = LONGEST) -> str:
    """What a variant says of itself, as far as anybody reads; that it says nothing, where so."""
    try:
        return str(words)[:most].strip() or SILENT
    except Exception:  # it can't be said
        return SILENT


def clipped(record: Record) -> Record:
    """A record of which no text is longer than anybody reads, wherever it came from."""
    return replace(
        record, reason=str(record.reason)[:LONGEST], remedy=str(record.remedy)[:LONGEST],
        note=str(record.note)[:LONGEST], detail=str(record.detail)[-TRACE:],
    )  # fmt: skip


def poisoned(device: str) -> bool:
    """Whether a GPU's context can't be used any more: after some errors every call fails."""
    if device == "cpu":
        return False
    try:
        torch.cuda.synchronize(device)
        return float(torch.ones(1, device=device).sum()) != 1.0
    except RuntimeError:
        return True


def _said(error: BaseException) -> str:
    """The first line of its message, as far as anybody reads; its name where it has none."""
    try:
        lines = str(error)[:LONGEST].strip().splitlines()
    except Exception:  # a message that can't be made is the variant's own affair
        lines = []
    return lines[0] if lines else _name(error)


def _name(error: BaseException) -> str:
    return type(error).__name__[:NAME]


def _no_room(error: Exception, text: str) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and any(word in text for word in NO_ROOM)


def _trace(error: BaseException) -> Iterator[str]:
    """As Python would print it, but for messages without end; what it came from stands first."""
    for each in reversed(list(_origins(error))):
        yield "Traceback (most recent call last):"
        yield "".join(traceback.format_tb(each.__traceback__)).rstrip()
        yield f"{_name(each)}: {_whole(each)}"


def _origins(error: BaseException) -> Iterator[BaseException]:
    """It, what it was raised from, and so on."""
    at: BaseException | None = error
    for _ in range(DEEPEST):
        if at is None:
            return
        yield at
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)


def _whole(error: BaseException) -> str:
    try:
        return str(error)[:TRACE]
    except Exception:
        return ""
