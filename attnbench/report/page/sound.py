"""What a record or a header must be for a report: files may have been written by anybody.

What can't be read is refused in a sentence that names the line. A number that isn't finite is said
to be missing, and a time that is none is taken back with its reason: nothing is ranked by it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnbench.record import Record, Status, Time
from attnbench.store import HEADER, RECORDS, StoreError
from attnbench.store.reading import BAD_TIME

NO_NUMBER = re.compile(rb"NaN|Infinity|[eE]\+?\d{3}")
"""Within a line whose numbers may not be finite; few are."""
SHORTEST_S, LONGEST_S = 1e-12, 1e9
"""No call takes less or more."""
COUNTS = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
WORDS = ("dtype", "mask", "phase", "inputs", "level", "device")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""What has no place in a name: a line's end, a terminal's commands, half a letter."""
OBJECTS = ("machine", "settings", "grid", "ceilings", "nodes", "code", "selfcheck")
"""Of a header; each may be missing."""


def check_problem(path: Path, number: int, problem: Mapping[str, Any]) -> None:
    """All that regimes are made of must be there: a file may have been written by anybody."""
    if isinstance(problem, Mapping):
        wrong = [k for k in COUNTS if type(problem.get(k)) is not int or problem[k] < 1]
        wrong += [k for k in WORDS if not isinstance(problem.get(k), str)]
        wrong += [str(k) for k, v in problem.items() if isinstance(v, list | dict)]
    else:
        wrong = [*COUNTS, *WORDS]
    if wrong:
        raise StoreError(
            f"{path / RECORDS}, line {number}: its problem has no fit {', '.join(wrong)}; take the "
            "line out, or measure again"
        )


def check_header(path: Path, header: Mapping[str, Any]) -> None:
    """What the header says of machine and settings must be objects, or not there."""
    wrong = [k for k in OBJECTS if not isinstance(header.get(k) or {}, Mapping)]
    wrong += [
        k
        for k in ("tables", "noise", "variants", "legs")
        if not isinstance(header.get(k, []), list)
    ]
    if wrong:
        raise StoreError(f"{path / HEADER} is damaged: no fit {', '.join(wrong)}; measure again")


def check_time(path: Path, number: int, time: Time | None) -> None:
    """What is said of a time in words must be words."""
    if time is None:
        return
    flags = isinstance(time.flags, list) and all(isinstance(flag, str) for flag in time.flags)
    samples = isinstance(time.samples_s, list) and all(
        isinstance(s, int | float) for s in time.samples_s
    )
    fit = {"clock": isinstance(time.clock, str), "flags": flags, "samples_s": samples}
    if wrong := [name for name, good in fit.items() if not good]:
        raise StoreError(
            f"{path / RECORDS}, line {number}: its time has no fit {', '.join(wrong)}; take the "
            "line out, or measure again"
        )


def sound(record: Record, line: bytes) -> Record:
    """The record without numbers that are none; a time that is none is taken back."""
    odd = NO_NUMBER.search(line) is not None
    if CONTROL.search(record.variant + record.reason):
        variant, reason = (CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
                           for text in (record.variant, record.reason))  # fmt: skip
        record = replace(record, variant=variant, reason=reason)
    if odd:
        record = Record.from_dict(record.to_dict())  # what is not finite is null from here on
    if record.time is not None and not _is_time(record.time):
        record = replace(record, time=None, status=Status.IMPLAUSIBLE, reason=BAD_TIME)
    if odd and record.time is not None:
        finite = [s for s in record.time.samples_s if s is not None]
        record = replace(record, time=replace(record.time, samples_s=finite))
    if record.memory is not None and not _is_number(record.memory.peak_bytes):
        record = replace(record, memory=None)
    if record.cost is not None and not (
        _is_number(record.cost.flops) and _is_number(record.cost.bytes)
    ):
        record = replace(record, cost=None)
    return record


def _is_time(time: Time) -> bool:
    all_of_it = (time.min_s, time.low_s, time.median_s, time.high_s)
    if not all(_is_number(each) and SHORTEST_S < each < LONGEST_S for each in all_of_it):
        return False
    return time.low_s <= time.median_s <= time.high_s


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer larger than any float
        return False
