"""A run's results: a table a regime, and below them what was amiss and what was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table as Grid

from attnbench.core.record import Record, Status
from attnbench.report.tables import BAD, FAINT, GOOD, console, grid, put
from impls.problem import Problem

WIDE_SHARE = 20
"""Per cent beyond which an interval is marked like a flag."""
ABOVE = "*"
"""Behind a share of more than the whole ceiling."""
ABOVE_MEANS = "above the measured ceiling: that is a measurement too, and may be a little low"


def show_results(records: Sequence[Record]) -> None:
    """``run``: for each regime the times by length, then memory and error at the longest."""
    out = console()
    regimes: dict[str, list[Record]] = {}
    several = len({record.node for record in records if record.time}) > 1
    for record in records:
        node = f" · {record.node}" * (several and bool(record.node))
        regimes.setdefault(_regime(record.problem) + node, []).append(record)
    for regime, some in regimes.items():
        out.print(f"\n[bold]{escape(regime)}[/]  median ms ± % to the far end of its interval")
        put(_regime_grid(some))
        last = _lengths(some)[-1]
        if any(_above(r) for r in some if _length(r.problem) == last):
            out.print(f"{ABOVE} {ABOVE_MEANS}", style=FAINT)
    for flag, cells in _flags(records).items():
        out.print(escape(f"! {flag}: {', '.join(cells)}"), style=FAINT)
    for line in (*_other_bits(records), *_energy_absent(records), *_unmeasured(records)):
        out.print(escape(line), style=FAINT)


def _regime(p: Problem) -> str:
    width = f"d{p.head_dim}" + f"/{p.v_head_dim}" * (p.v_head_dim != p.head_dim)
    heads = f"b{p.batch} h{p.heads}/{p.kv_heads} {width} {p.dtype} {p.device}"
    level = f"{p.level} · " * (p.level != "core")
    return f"{level}{p.phase} · mask {p.mask} · {p.inputs} inputs · {heads}"


def _length(problem: Problem) -> str:
    q, k = problem.q_len, problem.kv_len
    return str(k) if q == k else f"{q}x{k}"


def _lengths(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(_length(r.problem) for r in records))


def _regime_grid(records: Sequence[Record]) -> Grid:
    lengths = _lengths(records)
    last = lengths[-1]
    tail = [f"peak MiB at {last}", f"worst error at {last}", "of ceiling"]
    energetic = any(r.energy is not None and r.energy.joules is not None for r in records)
    tail += [f"mJ at {last}"] * energetic
    made = grid("variant", *lengths, *tail, right=(*lengths, *tail))
    cells = {(r.variant, _length(r.problem)): r for r in records}
    best = {
        n: min(
            (
                r.time.median_s
                for r in records
                if r.time
                and _length(r.problem) == n
                and r.computes == "softmax"
                and r.ranks is None
            ),
            default=None,
        )
        for n in lengths
    }
    timed = [r.variant for r in records if r.time is not None]
    for name in dict.fromkeys([*timed, *(r.variant for r in records)]):
        row = [_time_cell(cells.get((name, n)), best[n]) for n in lengths]
        end = cells.get((name, last))
        made.add_row(name, *row, *_tail_cells(end), *[_millijoules(end)] * energetic)
    return made


def _time_cell(record: Record | None, best: float | None) -> str:
    if record is None:
        return f"[{FAINT}]not run[/]"
    if record.time is None:
        style = BAD if record.status in (Status.WRONG, Status.FAILED, Status.CRASHED) else FAINT
        return f"[{style}]{record.status}[/]"
    t = record.time
    spread = 100 * max(t.high_s - t.median_s, t.median_s - t.low_s) / t.median_s
    text = f"{t.median_s * 1e3:.4g} ±{spread:.1f}" + "!" * bool(t.flags or spread > WIDE_SHARE)
    return f"[bold {GOOD}]{text}[/]" if t.median_s == best else text


def _millijoules(record: Record | None) -> str:
    if record is None or record.energy is None or record.energy.joules is None:
        return "–"
    return f"{record.energy.joules * 1e3:.4g}"


def _tail_cells(record: Record | None) -> tuple[str, str, str]:
    if record is None or record.memory is None:
        return "–", "–", "–"
    errors = [e.relative for e in (record.error or {}).values() if e.relative is not None]
    error = f"{max(errors):.1e}" if errors else "–"
    if record.distance is not None and record.distance.relative is not None:
        error += f" (softmax: {record.distance.relative:.2f})"
    elif record.computes != "softmax":
        error += " (not softmax)"
    return f"{record.memory.peak_bytes / 2**20:.4g}", error, _share(record)


def _share(record: Record) -> str:
    if record.share_of_ceiling is None:
        return "–"
    return f"{record.share_of_ceiling:.0%}" + ABOVE * _above(record)


def _above(record: Record) -> bool:
    return record.share_of_ceiling is not None and record.share_of_ceiling > 1


def _other_bits(records: Sequence[Record]) -> Iterable[str]:
    """What the same values did not make the same of, and what torch's mode against it costs."""
    for record in records:
        d = record.determinism
        if d is None or False not in (d.repeats, d.batch, d.place):
            continue
        mode = (
            f"; under torch's deterministic mode at {d.mode_cost:.2f} times the time"
            if (d.mode_repeats and d.mode_cost)
            else ""
        )
        yield f"{record.variant}, {record.problem.phase}: {d.words()}{mode}"


def _energy_absent(records: Sequence[Record]) -> Iterable[str]:
    """Why there are no joules, each reason once."""
    whys = dict.fromkeys(r.energy.why for r in records if r.energy is not None and r.energy.why)
    return [f"no energy: {why}" for why in whys]


def _flags(records: Sequence[Record]) -> dict[str, list[str]]:
    """What was amiss while timing, with the cells."""
    found: dict[str, list[str]] = {}
    for record in records:
        for flag in record.time.flags if record.time else ():
            where = f"{record.variant} {_length(record.problem)} {record.problem.phase}"
            found.setdefault(flag.split(":")[0], []).append(where)
    return found


def _unmeasured(records: Sequence[Record]) -> Iterable[str]:
    """Each reason once, with the variants it stopped and what to do."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        if record.status is not Status.MEASURED:
            key = (record.status, record.reason, record.remedy)
            where = f"{record.variant} on {record.problem}"
            reasons.setdefault(key, []).append(where)
    for (status, reason, remedy), cells in reasons.items():
        where = cells[0] if len(cells) == 1 else f"{cells[0]} and {len(cells) - 1} more"
        yield f"{status}: {where}: {reason}" + f" → {remedy}" * bool(remedy)
