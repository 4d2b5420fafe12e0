"""The verbs, a room each: they read what was asked and call the rooms below."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnbench.record import Record

INTERRUPTED = 130
"""The exit status of what Ctrl-C stopped."""


def say(text: str) -> None:
    """Prose, out of the way of data."""
    print(text, file=sys.stderr, flush=True)


def tried(records: list[Record]) -> bool:
    """Whether anything was asked of a variant."""
    from attnbench.record import NOT_TRIED

    return any(r.status not in NOT_TRIED for r in records)


def finding(records: list[Record]) -> int:
    """1 where a variant was not what it says it is; 2 where nothing was asked of any."""
    from attnbench.record import FINDINGS

    if not tried(records):
        say(
            "attnbench: nothing was run: no variant takes these problems here, for the reasons said"
        )
        return 2
    return int(any(r.status in FINDINGS for r in records))
