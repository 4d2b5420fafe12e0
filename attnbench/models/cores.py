"""Which rows can stand in a model's layer. Without torch."""

from __future__ import annotations

from impls.spec import Variant


def wrong_level(row: Variant) -> str | None:
    """None for a core in one process, which takes q, k and v, else a sentence."""
    if row.level == "core" and not row.ranks:
        return None
    what = "runs over several processes" if row.ranks else f"is a {row.level}"
    return (
        f"{row.label} {what}, and what is called with q, k and v is a core; 'attnbench list' "
        "shows which are"
    )
