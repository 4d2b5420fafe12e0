"""Tables for the terminal: the plugin table, a check, a run's results, one variant, the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from attnbench.record import Record, Status
from impls import BrokenRow
from impls.problem import Problem
from impls.spec import Variant

GOOD, BAD, FAINT = "green", "red", "dim"


WIDE_SHARE = 20
"""Per cent beyond which an interval is marked like a flag."""
UNTRIED = "not yet run: no run has attested it"
WIDE = 4000
"""Columns where nobody's terminal sets a limit."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """A reader that has seen enough is no error."""
        raise BrokenPipeError


def console() -> Console:
    """Standard output; where it is no terminal, wide enough that nothing is cut."""
    out = _Console(highlight=False)
    return out if out.is_terminal else _Console(highlight=False, width=WIDE)


def _whole(grid: Grid) -> None:
    """Print a table of numbers unbroken: a number folded in two reads as two others."""
    out = console()
    needed = out.measure(grid).maximum
    (out if needed <= out.width else _Console(highlight=False, width=needed)).print(
        grid, crop=False
    )


def _grid(*columns: str, right: Sequence[str] = ()) -> Grid:
    grid = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        grid.add_column(escape(column), justify=justify, overflow="fold", no_wrap=column != "")
    return grid


def variants(rows: Iterable[tuple[Variant, str | None, str]], broken: Iterable[BrokenRow]) -> None:
    """``list``: family by family, each row available or with its reason and remedy."""
    grid = _grid("variant", "family", "computes", "here", "")
    last = ""
    for row, reason, remedy in rows:
        if last and row.family != last:
            grid.add_section()
        here = f"[{GOOD}]yes[/]" if reason is None else f"[{BAD}]no[/]"
        why = row.title if reason is None else reason + f" → {remedy}" * bool(remedy)
        why += f" ({UNTRIED})" * row.untried
        family = escape(row.family) if row.family != last else ""
        grid.add_row(row.name, family, row.computes, here, escape(why))
        last = row.family
    for bad in broken:
        why = bad.reason + f" → {bad.remedy}" * bool(bad.remedy)
        grid.add_row(escape(bad.name), "", "", f"[{BAD}]broken[/]", escape(why))
    console().print(grid)


def checks(records: Sequence[Record]) -> None:
    """``check``: a line a variant, the problems it was right on, and each that it was not."""
    grid = _grid("variant", "right", "worst error", "same bits", "")
    by_variant: dict[str, list[Record]] = {}
    for record in records:
        by_variant.setdefault(record.variant, []).append(record)
    for name, some in by_variant.items():
        asked = [r for r in some if r.status not in (Status.UNSUPPORTED, Status.UNAVAILABLE)]
        right = [r for r in asked if r.status is Status.MEASURED]
        bad = [r for r in asked if r.status is not Status.MEASURED]
        ratios = [e.ratio for r in right for e in (r.error or {}).values() if e.ratio is not None]
        worst = f"{max(ratios):.2f} × plain" if ratios else ""
        count = f"{len(right)} of {len(asked)}" if asked else "–"
        style = BAD if bad else GOOD if asked else FAINT
        why = "; ".join(dict.fromkeys(r.reason for r in some if r not in asked))
        bits = _bits(right)
        grid.add_row(name, f"[{style}]{count}[/]", worst, bits, "" if asked else escape(why))
        reasons: dict[tuple[str, str], list[Record]] = {}
        for record in bad:
            reasons.setdefault((record.status, record.reason), []).append(record)
        for (status, reason), alike in reasons.items():
            where = _where(alike[0].problem)
            more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
            grid.add_row("", f"[{BAD}]{status}[/]", "", "", escape(f"{where}{more}: {reason}"))
    console().print(grid)


def _bits(records: Sequence[Record]) -> str:
    """Whether the same values gave the same bits, wherever that was tried."""
    tried = [r.determinism for r in records if r.determinism is not None]
    facts = [(d.repeats, d.batch, d.place) for d in tried]
    if not facts:
        return ""
    words = ("over repeats", "across batches", "across places")
    said = []
    for word, column in zip(words, zip(*facts, strict=True), strict=True):
        if False in column:
            said.append(f"not {word}")
        elif True not in column:
            said.append(f"{word} not tried")
    return ", ".join(said) or "yes"


def _where(problem: Mapping[str, Any]) -> str:
    words = [problem["mask"], problem["phase"], problem["dtype"]]
    words += [problem["level"]] * (problem["level"] != "core")
    words += [problem["inputs"]] * (problem["inputs"] != "normal")
    return " ".join(words)


def results(records: Sequence[Record]) -> None:
    """``run``: for each regime the times by length, then memory and error at the longest."""
    out = console()
    regimes: dict[str, list[Record]] = {}
    for record in records:
        regimes.setdefault(_regime(record.problem), []).append(record)
    for regime, some in regimes.items():
        out.print(f"\n[bold]{escape(regime)}[/]  median ms ± % to the far end of its interval")
        _whole(_regime_grid(some))
    for flag, cells in _flags(records).items():
        out.print(escape(f"! {flag}: {', '.join(cells)}"), style=FAINT)
    for line in (*_other_bits(records), *_energy_absent(records), *_unmeasured(records)):
        out.print(escape(line), style=FAINT)


def _regime(problem: Mapping[str, Any]) -> str:
    p = problem
    width = f"d{p['head_dim']}" + f"/{p['v_head_dim']}" * (p["v_head_dim"] != p["head_dim"])
    heads = f"b{p['batch']} h{p['heads']}/{p['kv_heads']} {width} {p['dtype']} {p['device']}"
    level = f"{p['level']} · " * (p["level"] != "core")
    return f"{level}{p['phase']} · mask {p['mask']} · {p['inputs']} inputs · {heads}"


def _length(problem: Mapping[str, Any]) -> str:
    q, k = problem["q_len"], problem["kv_len"]
    return str(k) if q == k else f"{q}x{k}"


def _regime_grid(records: Sequence[Record]) -> Grid:
    lengths = list(dict.fromkeys(_length(r.problem) for r in records))
    last = lengths[-1]
    tail = [f"peak MiB at {last}", f"worst error at {last}", "of ceiling"]
    energetic = any(r.energy is not None and r.energy.joules is not None for r in records)
    tail += [f"mJ at {last}"] * energetic
    grid = _grid("variant", *lengths, *tail, right=(*lengths, *tail))
    cells = {(r.variant, _length(r.problem)): r for r in records}
    best = {
        n: min((r.time.median_s for r in records if r.time and _length(r.problem) == n
                and r.computes == "softmax"), default=None)
        for n in lengths
    }  # fmt: skip
    timed = [r.variant for r in records if r.time is not None]
    for name in dict.fromkeys([*timed, *(r.variant for r in records)]):
        row = [_time_cell(cells.get((name, n)), best[n]) for n in lengths]
        end = cells.get((name, last))
        grid.add_row(name, *row, *_tail_cells(end), *[_millijoules(end)] * energetic)
    return grid


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
    share = "–" if record.share_of_ceiling is None else f"{record.share_of_ceiling:.0%}"
    return f"{record.memory.peak_bytes / 2**20:.4g}", error, share


def _other_bits(records: Sequence[Record]) -> Iterable[str]:
    """What the same values did not make the same of, and what torch's mode against it costs."""
    for record in records:
        d = record.determinism
        if d is None or False not in (d.repeats, d.batch, d.place):
            continue
        mode = f"; under torch's deterministic mode at {d.mode_cost:.2f} times the time" if (
            d.mode_repeats and d.mode_cost) else ""  # fmt: skip
        yield f"{record.variant}, {record.problem['phase']}: {d.said()}{mode}"


def _energy_absent(records: Sequence[Record]) -> Iterable[str]:
    """Why there are no joules, each reason once."""
    whys = dict.fromkeys(r.energy.why for r in records if r.energy is not None and r.energy.why)
    return [f"no energy: {why}" for why in whys]


def _flags(records: Sequence[Record]) -> dict[str, list[str]]:
    """What was amiss while timing, with the cells."""
    found: dict[str, list[str]] = {}
    for record in records:
        for flag in record.time.flags if record.time else ():
            where = f"{record.variant} {_length(record.problem)} {record.problem['phase']}"
            found.setdefault(flag.split(":")[0], []).append(where)
    return found


def _unmeasured(records: Sequence[Record]) -> Iterable[str]:
    """Each reason once, with the variants it stopped and what to do."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        if record.status is not Status.MEASURED:
            key = (record.status, record.reason, record.remedy)
            where = f"{record.variant} on {Problem.from_dict(record.problem)}"
            reasons.setdefault(key, []).append(where)
    for (status, reason, remedy), cells in reasons.items():
        where = cells[0] if len(cells) == 1 else f"{cells[0]} and {len(cells) - 1} more"
        yield f"{status}: {where}: {reason}" + f" → {remedy}" * bool(remedy)


def variant(row: Variant, mathematics: str, reason: str | None, remedy: str) -> None:
    """``show NAME``: what it is, what it takes, what it costs."""
    out = console()
    out.print(f"[bold]{row.name}[/]  {escape(row.title)}")
    out.print(escape(f"{row.family}, level {row.level}, computes: {row.computes}\n"))
    out.print(escape(mathematics) + "\n")
    limits = [
        ("grouped-query heads", row.gqa),
        ("q_len ≠ kv_len", "in decode alone" if row.cross == "decode" else row.cross),
        ("v_head_dim ≠ head_dim", row.value_dim),
    ]  # fmt: skip
    facts = {
        f"on {device}": f"{', '.join(row.on(device, 'dtypes'))}; "
        f"masks {', '.join(row.on(device, 'masks'))}; {', '.join(row.on(device, 'phases'))}"
        for device in row.devices
    }
    facts |= {
        "shapes": ", ".join(
            f"{what}: {can if isinstance(can, str) else 'yes' if can else 'no'}"
            for what, can in limits
        ),
        "head_dim": f"{row.head_dims[0]} to {row.head_dims[1]}" if row.head_dims else "",
        "options": ", ".join(f"{k}={_word(v)}" for k, v in {**row.options, **row.given}.items()),
        "core": f"{row.core.label}: {row.core.title}" if row.core else "",
        "requires": ", ".join(row.requires),
        "paper": row.paper,
        "code": row.build,
        "attested by": ", ".join(
            f"{operator} on {device}"
            for device in row.devices
            if (operator := row.attested_by(device)) is not None
        ),
        "from": row.origin,
        "run": UNTRIED if row.untried else "",
        "runs here": "yes" if reason is None else f"no: {reason}" + f" → {remedy}" * bool(remedy),
    }
    grid = _grid("", "")
    for what, fact in facts.items():
        if fact:
            grid.add_row(what, escape(fact))
    out.print(grid)


def _yes(can: bool | str) -> str:
    return can if isinstance(can, str) else "yes" if can else "no"


def _word(value: object) -> str:
    """An option as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value) or "''"


def attention_map(words: Sequence[str], weights: Sequence[Sequence[float | None]]) -> None:
    """Rows look at columns; the darker, the more."""
    grid = _grid("", *words, right=words)
    for word, row in zip(words, weights, strict=True):
        top = max((abs(w) for w in row if w is not None), default=0.0) or 1.0
        grid.add_row(f"[bold]{escape(word)}[/]", *(_shade(w, top) for w in row))
    _whole(grid)


def _shade(weight: float | None, top: float) -> str:
    if weight is None:
        return f"[{BAD}]nan[/]"
    level = round(16 * abs(weight) / top)
    ground = 255 - level
    ink = "black" if ground > 243 else "white"
    return f"[{ink} on color({max(232, ground)})] {weight:5.2f} [/]"
