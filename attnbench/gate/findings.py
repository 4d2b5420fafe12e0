"""What the gate raises."""

from __future__ import annotations


class Wrong(Exception):
    """A variant does not compute what it claims to. The message is a sentence with the evidence."""


def place(batch: int, head: int, row: int) -> str:
    """Where in an output: ``row 3 (batch 0, head 1)``."""
    return f"row {row} (batch {batch}, head {head})"
