"""What each row takes is what the table says: ``python -m proofs.support [--write]``.

The page ``docs/support.md`` is made of the rows and held against what is committed; ``--write``
puts the new one in its place.
"""

from __future__ import annotations

import sys
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


def main() -> int:
    """The exit status: 0 where the page is that of the table."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(new_page())
    same = PAGE.exists() and PAGE.read_text() == new_page()
    print(f"{PAGE.relative_to(ROOT)} is {'what' if same else 'not what'} the table says")
    return int(not same)


if __name__ == "__main__":
    raise SystemExit(main())
