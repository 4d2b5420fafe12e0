"""``attnbench list`` and ``attnbench show NAME``: what is in the table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attnbench.command.terminal import say

if TYPE_CHECKING:
    import argparse


def show_list(given: argparse.Namespace) -> int:
    """``attnbench list``"""
    import impls
    from attnbench.core.machine import this_machine, why_not

    table = impls.table(given.table)
    rows: list[tuple[Any, str | None, str]] = []
    for row in table.rows.values():
        missing = why_not(row, this_machine())
        rows.append((row, missing.reason if missing else None, missing.remedy if missing else ""))
    if given.json:
        listed: list[dict[str, Any]] = [
            {**row.to_dict(), "available": reason is None, "reason": reason or "", "remedy": remedy}
            for row, reason, remedy in rows
        ]
        listed += [
            {
                "name": b.name,
                "family": "",
                "computes": "",
                "level": "",
                "available": False,
                "reason": f"the row is broken: {b.reason}",
                "remedy": b.remedy,
            }
            for b in table.broken
        ]
        print(json.dumps(listed, indent=1))
    else:
        from attnbench.features.maps import view

        view.table(rows, table.broken)
    return 0


def show(given: argparse.Namespace) -> int:
    """``attnbench show NAME``"""
    import impls
    from attnbench.core.machine import this_machine, why_not
    from attnbench.features.maps import maps
    from attnbench.features.maps.maps import mathematics

    row = impls.table(given.table).find(given.name)
    if given.text is None and (given.out or given.embeddings or given.mask):
        raise maps.BadEmbeddings(
            "--out, --embeddings and --mask go with --text: a map needs a sentence"
        )
    if given.text is not None:
        return _show_map(given, row)
    missing = why_not(row, this_machine())
    reason, remedy = (missing.reason, missing.remedy) if missing else (None, "")
    if given.json:
        about = {
            "mathematics": mathematics(row),
            "available": missing is None,
            "reason": reason or "",
        }
        print(json.dumps({**row.to_dict(), **about, "remedy": remedy}, indent=1))
    else:
        from attnbench.features.maps import view

        view.show_variant(row, mathematics(row), reason, remedy)
    return 0


def _show_map(given: argparse.Namespace, row: Any) -> int:
    from pathlib import Path

    from attnbench.features.maps import maps
    from attnbench.features.maps.maps import map_of

    tokens = maps.tokens_of(given.text)
    vectors = maps.vectors_of(tokens, given.embeddings)
    taken = row.on("cpu", "masks") or ("none",)
    mask = given.mask or ("none" if "none" in taken else taken[0])
    weights = map_of(row, mask, vectors)
    if given.out:
        from attnbench.features.maps import view

        view.draw(tokens, weights, row.label, Path(given.out))
        say(f"drawn in {given.out}")
    if given.json:
        print(json.dumps({"variant": row.label, "words": tokens, "weights": weights}))
    else:
        from attnbench.features.maps import view

        view.show(tokens, weights)
    return 0
