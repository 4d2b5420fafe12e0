"""The verbs that are more than a call or two: each reads what was asked and calls the rooms."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Prose, out of the way of data."""
    print(text, file=sys.stderr, flush=True)
