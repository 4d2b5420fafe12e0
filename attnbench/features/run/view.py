"""A run's results: a table a regime; below them what is in doubt and what was not measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from attnbench.core.format import NONE, first_few
from attnbench.core.record import Record, Status
from attnbench.report.tables import BAD, BEST, FAINT, Styled, Table, columns, console, show

WIDE_SHARE = 20
"""Per cent of half-width from which an interval is marked like a flag."""
ABOVE = "*"
"""Marks a share of more than the whole ceiling."""
ABOVE_MEANS = "above the measured ceiling: that is a measurement too, and may be a little low"


def show_results(records: Sequence[Record]) -> None:
    """Print for each regime the times by length, then memory and error at the longest."""
    regimes: dict[str, list[Record]] = {}
    several = len({record.node for record in records if record.time}) > 1
    for record in records:
        p, node = record.problem, f" · {record.node}" if several and record.node else ""
        width = f"d{p.head_dim}" + f"/{p.v_head_dim}" * (p.v_head_dim != p.head_dim)
        heads = f"b{p.batch} h{p.heads}/{p.kv_heads} {width} {p.dtype} {p.device}"
        level = f"{p.level} · " * (p.level != "core")
        regime = f"{level}{p.phase} · mask {p.mask} · {p.inputs} inputs · {heads}{node}"
        regimes.setdefault(regime, []).append(record)
    for regime, some in regimes.items():
        show(_table(regime, some))
    out = console()
    for line in _footnotes(records):
        out.print(Text(line), style=FAINT)


def _length(record: Record) -> str:
    q, k = record.problem.q_len, record.problem.kv_len
    return str(k) if q == k else f"{q}x{k}"


def _table(regime: str, records: Sequence[Record]) -> Table:
    by_length: dict[str, dict[str, Record]] = {}
    for record in records:
        by_length.setdefault(_length(record), {})[record.variant] = record
    exact = [r for r in records if r.computes == "softmax" and r.ranks is None]
    best = {
        n: min((r.time.median_s for r in exact if r.time and _length(r) == n), default=None)
        for n in by_length
    }
    last, at_last = list(by_length.items())[-1]
    joules = {
        name: f"{r.energy.joules * 1e3:.4g}"
        for name, r in at_last.items()
        if r.energy is not None and r.energy.joules is not None
    }
    tail = [f"peak MiB at {last}", f"worst error at {last}", "of ceiling"]
    tail += [f"mJ at {last}"] * bool(joules)
    timed = [r.variant for r in records if r.time is not None]
    rows: list[list[Any]] = []
    for name in dict.fromkeys([*timed, *(r.variant for r in records)]):
        times = [_time_cell(some.get(name), best[n]) for n, some in by_length.items()]
        energy = [joules.get(name)] if joules else []
        rows.append([name, *times, *_tail_cells(at_last.get(name)), *energy])
    above = any((r.share_of_ceiling or 0) > 1 for r in at_last.values())
    return Table(
        regime,
        columns("variant", *by_length, *tail, right=(*by_length, *tail)),
        rows,
        [f"{ABOVE} {ABOVE_MEANS}"] if above else [],
        caption="median ms ± % to the far end of its interval",
    )


def _time_cell(record: Record | None, best: float | None) -> Styled:
    if record is None:
        return Styled("not run", FAINT)
    if record.time is None:
        bad = record.status in (Status.WRONG, Status.FAILED, Status.CRASHED)
        return Styled(record.status, BAD if bad else FAINT)
    t = record.time
    spread = 100 * max(t.high_s - t.median_s, t.median_s - t.low_s) / t.median_s
    doubt = "!" if t.flags or spread > WIDE_SHARE else ""
    text = f"{t.median_s * 1e3:.4g} ±{spread:.1f}{doubt}"
    return Styled(text, BEST if t.median_s == best else "")


def _tail_cells(record: Record | None) -> tuple[str | None, str | None, str | None]:
    """Memory, error and share of the ceiling."""
    if record is None or record.memory is None:
        return None, None, None
    errors = [e.relative for e in (record.error or {}).values() if e.relative is not None]
    error = f"{max(errors):.1e}" if errors else NONE
    if record.distance is not None and record.distance.relative is not None:
        error += f" (softmax: {record.distance.relative:.2f})"
    elif record.computes != "softmax":
        error += " (not softmax)"
    share = record.share_of_ceiling
    of_ceiling = None if share is None else f"{share:.0%}{ABOVE * (share > 1)}"
    return f"{record.memory.peak_bytes / 2**20:.4g}", error, of_ceiling


def _footnotes(records: Sequence[Record]) -> Iterator[str]:
    """What is in doubt, and why cells were not measured: each reason once, with its cells."""
    cells: dict[tuple[str, str], list[str]] = {}
    for record in records:
        flags = record.time.flags if record.time else ()
        found = [(f"! {flag.split(':')[0]}: ", "") for flag in flags]
        d, energy = record.determinism, record.energy
        if d is not None and False in (d.repeats, d.batch, d.place):
            found.append(("", f": {d.words()}"))
        if energy is not None and energy.why:
            found.append(("no energy: ", f": {energy.why}"))
        if record.status is not Status.MEASURED:
            remedy = f" → {record.remedy}" * bool(record.remedy)
            found.append((f"{record.status}: ", f": {record.reason}{remedy}"))
        for each in found:
            cells.setdefault(each, []).append(f"{record.variant} on {record.problem}")
    for (before, after), some in cells.items():
        yield f"{before}{first_few(some, 1)}{after}"
