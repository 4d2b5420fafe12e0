"""What holds for every record: the method, the statuses, the contract with the table.

This loads no ``impls``: a commit's may be broken, and that must still be said.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

PROTOCOL = 4
"""Version of the method of measuring. Numbers of different protocols are never compared."""


class Status(StrEnum):
    """How a cell ended."""

    MEASURED = "measured"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    WRONG = "wrong"
    IMPLAUSIBLE = "implausible"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"

    @property
    def words(self) -> str:
        """``out of memory``"""
        return self.value.replace("_", " ")


FINDINGS = frozenset({Status.WRONG, Status.IMPLAUSIBLE, Status.FAILED, Status.CRASHED})
"""The variant did not do what it says; it should not be used before that is mended."""
NOT_TRIED = frozenset({Status.UNSUPPORTED, Status.UNAVAILABLE})
"""The variant did not run, which says nothing against it."""


def interface(impls: Path) -> int | None:
    """The version that the ``impls`` in a folder says; None where it says none."""
    file = impls / "spec.py"
    match = re.search(
        r"^INTERFACE = (\d+)", file.read_text() if file.exists() else "", re.MULTILINE
    )
    return int(match[1]) if match else None


def unlike(impls: Path, version_here: int | None, commit: str) -> str:
    """Why this ruler can't measure a commit's table; a sentence, or nothing."""
    has = interface(impls)
    if has == version_here:
        return ""
    version = "says none" if has is None else f"has version {has}"
    return (
        f"the table of commit {commit} {version} of the contract between table and ruler, and "
        f"this attnbench measures version {version_here}; give a commit that has it"
    )
