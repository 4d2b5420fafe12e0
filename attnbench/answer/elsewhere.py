"""What befell a variant at other lengths of a problem: who is wrong there is in doubt here.

A variant that is right at 512 tokens and wrong at 4,096 has been measured, and may lead, at 512.
Whoever is about to use it has to hear of the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from attnbench.record import FINDINGS, Record, Status

LENGTHS = ("q_len", "kv_len", "batch")
"""What problems that are alike may differ in: a batch shrinks where tokens are to stay as many."""

DID = {
    Status.WRONG: "is wrong", Status.IMPLAUSIBLE: "is implausible", Status.FAILED: "failed",
    Status.CRASHED: "crashed",
}  # fmt: skip


def alike(problem: Mapping[str, Any]) -> str:
    """A word that problems of unlike lengths share."""
    return json.dumps({k: v for k, v in problem.items() if k not in LENGTHS}, sort_keys=True)


def griefs(records: Iterable[Record]) -> dict[tuple[str, str], str]:
    """By problem but for its length, and by variant: ``mine is wrong at 4,096 tokens``.

    Of several lengths the shortest.
    """
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        if record.status in FINDINGS:
            key = alike(record.problem), record.variant
            found[key] = min(found.get(key, record), record, key=_length)
    return {
        key: f"{r.variant} {DID[r.status]} at {_length(r):,} tokens" for key, r in found.items()
    }


def _length(record: Record) -> int:
    return int(record.problem["kv_len"])
