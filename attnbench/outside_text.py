"""Text that others wrote (rows, records, file names), made harmless where it is shown."""

from __future__ import annotations

import re
from typing import Any, TypeVar

Value = TypeVar("Value")
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x80-\x9f\N{LEFT-TO-RIGHT EMBEDDING}-\N{RIGHT-TO-LEFT OVERRIDE}"
    "\N{LEFT-TO-RIGHT ISOLATE}-\N{POP DIRECTIONAL ISOLATE}]"
)
"""What a terminal obeys (colours, cursor, clipboard, title) or what turns a line round."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of something to compute."""


def for_terminal(text: str) -> str:
    """The text with a mark in place of each control character but tab and end of line."""
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def for_sheet(value: Value) -> Value | str:
    """A cell of a CSV file: text that a spreadsheet would compute begins with an apostrophe."""
    if not isinstance(value, str) or not value.startswith(FORMULA) or _is_number(value):
        return value
    return f"'{value}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Unchecked:
    """A stream of :mod:`attnbench.verbs.stdout` for text that is checked and has colours."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.write = getattr(stream, "write_unchecked", stream.write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
