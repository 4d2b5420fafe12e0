"""Which version of the contract between table and ruler a table has, read without loading it."""

from __future__ import annotations

import re
from pathlib import Path


def interface(impls: Path) -> int | None:
    """The version that the ``impls`` in a folder says; None where it says none."""
    file = impls / "spec.py"
    said = re.search(r"^INTERFACE = (\d+)", file.read_text() if file.exists() else "", re.MULTILINE)
    return int(said[1]) if said else None


def unlike(impls: Path, wanted: int | None, commit: str) -> str:
    """Why this ruler can't measure a commit's table; a sentence, or nothing."""
    has = interface(impls)
    if has == wanted:
        return ""
    version = "says none" if has is None else f"has version {has}"
    return (
        f"the table of commit {commit} {version} of the contract between table and ruler, and "
        f"this attnbench measures version {wanted}; give a commit that has it"
    )
