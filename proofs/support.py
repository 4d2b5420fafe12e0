"""What each row takes is what the table says: ``python -m proofs.support [--write]``.

The page ``docs/support.md`` is made of the rows and held against what is committed; ``--write``
puts the new one in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import impls
from attnbench.features.show.support import NOTES, matrix
from attnbench.report.tables import to_markdown

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "support.md"
HEAD = """\
# What each row takes

Made of the table by `python -m proofs.support --write`. `attnbench list --matrix` shows it with
rows of your own too, `--csv` and `--json` as plain values; `attnbench show NAME` explains a row.
"""


def new_page() -> str:
    """The page as the table of this commit makes it."""
    table = impls.table()
    parts = [HEAD, "\n".join(f"- {note}" for note in NOTES) + "\n"]
    for part in matrix(table.find(name) for name in impls.own_rows()):
        parts.append(f"## {part.title.capitalize()}\n\n{to_markdown(part)}\n")
    return "\n".join(parts)


def renew(page: Path, text: str, words: Sequence[str]) -> int:
    """Put a page in its place where ``--write`` asks for it; 1 where its file is another one."""
    if "--write" in words:
        page.write_text(text)
    same = page.exists() and page.read_text() == text
    print(f"{page.relative_to(ROOT)} is {'up to date' if same else 'out of date'}")
    return int(not same)


if __name__ == "__main__":
    sys.exit(renew(PAGE, new_page(), sys.argv[1:]))
