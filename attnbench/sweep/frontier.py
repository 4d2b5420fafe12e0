"""What a search came to, as plain values: for a file, a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnbench.record import FINDINGS, Status
from attnbench.sweep.growth import MEMORY, TIME, Look
from attnbench.sweep.limits import Limit

SPENT = "not looked at: the wall clock was spent first"
STOPPED = "not looked at: it was stopped first"


def frontier(limits: Sequence[Limit], *, stopped: bool = False,
             ended: bool = True) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each variant in each phase, the longest first within a phase and a mask.

    While the search has not ended nothing is predicted: that would take time from it.
    """
    groups = list(dict.fromkeys((x.problem.phase, str(x.problem.mask)) for x in limits))
    rows = [_row(limit, stopped=stopped, ended=ended) for limit in limits]
    return sorted(rows, key=lambda row: (groups.index((row["phase"], row["mask"])), -_held(row)))


def finding(limits: Sequence[Limit]) -> bool:
    """Whether a variant is not what it says it is: in its gate, or at a size that it took."""
    bad = {str(status) for status in FINDINGS}
    closed = any(x.closed is not None and x.closed.why in bad for x in limits)
    return closed or any(look.why == str(Status.WRONG) for x in limits for look in x.search.looks)


def _held(row: dict[str, Any]) -> int:
    return int(row["held"]["size"]) if row["held"] else 0


def _row(limit: Limit, *, stopped: bool, ended: bool) -> dict[str, Any]:
    search, problem = limit.search, limit.problem
    held, failed = search.held, search.failed
    asked = (MEMORY, TIME) if ended and search.looks else ()
    reaches = {what: search.reaches(what) for what in asked}
    known = {what: size for what, size in reaches.items() if size is not None}
    first = min(known, key=known.__getitem__, default="")
    if held is not None and held.size >= search.sizes.longest:
        first = ""
    if failed is not None and not failed.ran and first != failed.why:
        failed = None  # it is ruled out, but something else comes before
    return {
        "variant": limit.variant.label, "computes": limit.variant.computes,
        "family": limit.variant.family,
        "phase": problem.phase, "mask": str(problem.mask),
        "by": limit.by, "held": _plain(held), "fails": _plain(failed),
        "limited_by": failed.why if failed else first,
        "predicted": reaches, "formula": search.growth.formula_holds(),
        "gate": str(limit.gated.status) if limit.gated else None,
        "why": _why(limit, stopped=stopped), "looks": [_plain(look) for look in search.looks],
        "problem": problem.to_dict(),
    }  # fmt: skip


def _plain(look: Look | None) -> dict[str, Any] | None:
    if look is None:
        return None
    return {
        "size": look.size, "why": look.why, "reason": look.reason, "time_s": look.time_s,
        "peak_bytes": look.peak_bytes, "ran": look.ran, "probe": look.more,
    }  # fmt: skip


def _why(limit: Limit, *, stopped: bool) -> str:
    """Where nothing held: the reason, in a sentence."""
    closed, failed = limit.closed, limit.search.failed
    if limit.search.held is not None:
        return ""
    if closed is not None and closed.why:
        at = f"{limit.by} {_gate_size(limit):,}, in its gate: " * closed.ran
        return f"{closed.why.replace('_', ' ')}: {at}{closed.reason}"
    if failed is None:
        return STOPPED if stopped else SPENT
    return f"nothing held that was run, down to {limit.by} {failed.size:,}"


def _gate_size(limit: Limit) -> int:
    return limit.problem.batch if limit.by == "batch" else limit.problem.kv_len
