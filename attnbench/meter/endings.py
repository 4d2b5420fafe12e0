"""The ends of a cell that was not measured: the fields of its record, by what was raised."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path
from typing import Any

import torch

from attnbench.core.record import Record, Status
from attnbench.gate.findings import Wrong
from attnbench.meter.audit import owner_of
from attnbench.meter.ranks import RankLost
from impls.spec import Unavailable, Unsupported

LONGEST, TRACE, NOTE = 1000, 4000, 500
"""Characters that are kept of a message, a traceback and a variant's note."""
SILENT = "it doesn't say why"
NO_ROOM = ("can't allocate memory", "Cannot allocate memory", "bad_alloc", "out of memory")
"""In the messages of what has no exception for it."""


class Implausible(Exception):
    """A number that can't be true. The message is a sentence with the evidence."""


class NotReady(Exception):
    """A variant that did not pass the gate; ``record`` says why."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.reason)
        self.record = record


def failure(error: Exception) -> dict[str, Any]:
    """The fields of a record that ended in an exception."""
    name = type(error).__name__
    first, *more = _text(error, LONGEST).splitlines() or [name]
    text = f"{first} {more[0].strip()}" if first.endswith(":") and more else first
    if (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and any(word in text for word in NO_ROOM))
    ):
        remedy = "shorten the sequence, lower the batch, or free memory"
        return {"status": Status.OUT_OF_MEMORY, "reason": text, "remedy": remedy}
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if owner_of(f.filename) != "attnbench"]
    whose = "at " if own else "in attnbench's "
    place = "".join(f" {whose}{Path(f.filename).name}:{f.lineno}" for f in (own or frames)[-1:])
    reason = f"it raised {name}{place}: {text}"
    detail = "".join(traceback.format_exception(error)).strip()[-TRACE:]
    return {"status": Status.FAILED, "reason": reason, "detail": detail}


def refused(error: Exception) -> dict[str, Any]:
    """The fields of a record that ended in an exception of any kind, by that kind."""
    match error:
        case Wrong():
            return {"status": Status.WRONG, "reason": str(error)}
        case Implausible():
            return {"status": Status.IMPLAUSIBLE, "reason": str(error)}
        case Unsupported():
            return {"status": Status.UNSUPPORTED, "reason": _text(error, NOTE) or SILENT}
        case Unavailable():
            return {
                "status": Status.UNAVAILABLE,
                "reason": _text(error.reason, LONGEST) or SILENT,
                "remedy": (_text(error.remedy, LONGEST) or SILENT) if error.remedy else "",
            }
        case RankLost():
            return error.fields
    return failure(error)


def _text(words: object, most: int) -> str:
    """What a variant passed as a message; empty where it has none or can't be printed."""
    try:
        return str(words)[:most].strip()
    except Exception:
        return ""


def clipped(record: Record) -> Record:
    """The record with its texts cut to the longest that is kept; it may come from anywhere."""
    texts = {name: str(getattr(record, name))[:LONGEST] for name in ("reason", "remedy", "note")}
    return record.with_(**texts, detail=str(record.detail)[-TRACE:])
