"""A commit's rows, read in a process that looks first into the folder with the commit.

    python -P -m attnbench.features.commits.read_rows ANSWER FOLDER ROOT [TABLE …]

``ROOT``: the repository, where it has rows of its own; else nothing. Their code is then loaded, to
see that it is the commit's: an installer may have put a copy, or the work tree, first on the path.
Only ``impls.table`` is asked of the commit.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnbench.core.wire import plain
from impls import table


def main(answer: str, folder: str, root: str, *tables: str) -> None:
    """Write the rows of the table, and which code of theirs is not the commit's."""
    commit = table(tables)
    values: dict[str, Any] = {"own": [], "broken": "", "elsewhere": ""}
    values["rows"] = [plain(row) for row in commit.rows.values()]
    if root:
        dists = [*importlib.metadata.distributions(path=[folder])]
        origins = {f"{dist.name} {dist.version}" for dist in dists}
        origins |= {os.path.realpath(table) for table in tables}
        own = [row for row in commit.rows.values() if row.origin in origins]
        values["own"] = [row.name for row in own]
        broken = [row.reason for row in commit.broken if getattr(row, "origin", "") in origins]
        values["broken"] = "; ".join(broken)
        values["elsewhere"] = next(_elsewhere(own, Path(folder), Path(root), dists), "")
    Path(answer).write_text(json.dumps(values))


def _elsewhere(
    own: Sequence[Any], folder: Path, root: Path, dists: Sequence[importlib.metadata.Distribution]
) -> Iterator[str]:
    """Code that was loaded from another place than the commit's folder, each in a few words."""
    places = [
        path.rpartition(":")[0]
        for row in own
        for path in (row.build, row.definition, row.cost)
        if path
    ]
    for place in dict.fromkeys(place for place in places if not place.endswith(".py")):
        with suppress(Exception, SystemExit):  # measuring reports what it raises
            file = str(importlib.import_module(place).__file__)
            if folder not in Path(file).parents:
                yield f"{place} is loaded from {file}"
    installed = {
        str(dist.locate_file(file))
        for name in (dist.name for dist in dists)
        for dist in importlib.metadata.distributions(name=name)
        if dist.files and folder not in Path(str(dist.locate_file(""))).parents
        for file in dist.files
    }
    for name, module in list(sys.modules.items()):
        file = str(vars(module).get("__file__") or "")
        above = Path(file).parents
        in_tree = root in above and Path(sys.prefix) not in above and folder not in above
        if in_tree or file in installed:
            yield f"{name} is loaded from {file}"


if __name__ == "__main__":
    main(*sys.argv[1:])
