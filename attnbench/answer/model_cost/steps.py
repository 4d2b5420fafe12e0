"""The verdicts of all steps together: a difference stands where it survives Holm's correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.comparison import Comparison, holm

Row = Mapping[str, Any]


def with_verdicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows, their steps' verdicts corrected for how many there are."""
    taken = [s["comparison"] for row in rows for s in row.get("steps") or () if "why" not in s]
    judged = iter(holm([Comparison.from_dict(said) for said in taken]))
    return [_row(row, judged) for row in rows]


def _row(row: Row, judged: Any) -> dict[str, Any]:
    if not row.get("steps"):
        return dict(row)
    steps = [s if "why" in s else {**s, "comparison": next(judged).to_dict()} for s in row["steps"]]
    return {**row, "steps": steps}
