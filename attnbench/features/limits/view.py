"""The longest that each variant takes in a budget: a table a phase and mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.markup import escape

from attnbench.core.format import NOT_SOFTMAX, OTHER, duration, name_with_star, size
from attnbench.report import tables, tidy
from attnbench.report.tables import BAD, GOOD, Styled, Table, columns, console
from attnbench.report.tables import show as show_table

Row = Mapping[str, Any]
BUDGETS = ("memory", "time")


def show(rows: Sequence[Row], budget: Mapping[str, Any], by: str) -> None:
    """Print a table for each phase and mask, the longest first, and the notes below."""
    longest = "longest that held" if by == "seq" else "largest batch that held"
    numbers, fails = (longest, "time there", "peak there"), "does not hold at"
    names = ("variant", longest, "limited by", *numbers[1:], fails)
    heads = columns(*names, right=numbers, wrap=[fails])
    for (phase, mask), group in groupby(rows, lambda row: (row["phase"], row["mask"])):
        show_table(Table(f"{phase} · mask {mask}", heads, [_cells(row) for row in group]))
    lines, flags = [], dict[str, list[str]]()
    for row in rows:
        fell, name = row["fails"], f"{row['variant']} {row['phase']}"
        if fell is not None and fell["why"] not in BUDGETS:
            lines.append(f"! {name} at {fell['size']:,}: {fell['why']}: {fell['reason']}")
        for flag in (row["held"] or {}).get("flags", ()):
            flags.setdefault(flag, []).append(name)
    lines += [f"! {flag}: {', '.join(names)}" for flag, names in flags.items()]
    lines += [
        f"budget: {size(budget['peak_bytes'])} and {duration(budget['seconds'])} a call; brackets "
        "of a sixteenth; what held was run there, and right",
        "peak: bytes live above the inputs at the worst instant, output included; time: the median "
        "of a few calls",
    ]
    if any(row["computes"] != "softmax" for row in rows):
        lines.append(f"{OTHER} {NOT_SOFTMAX}")
    console().print()
    for line in lines:
        console().print(escape(line), style=tables.FAINT)


def _cells(row: Row) -> list[Any]:
    best, why = row["held"], row["limited_by"]
    limited = Styled(why.replace("_", " "), BAD) if why and why not in BUDGETS else why or "–"
    return [
        name_with_star(row["variant"], row["computes"]),
        Styled(f"{best['size']:,}", GOOD) if best else "none",
        limited,
        duration(best["time_s"]) if best else "",
        size(best["peak_bytes"]) if best else "",
        _not_held(row),
    ]


def csv_row(row: Row) -> tidy.Row:
    """A row of CSV: the largest size that held, with its time and memory, and the least that did
    not.
    """
    best, fails = (row[name] or {} for name in ("held", "fails"))
    problem = tidy.of_problem(row["problem"])
    for name in ("seq", "q_len") if row["by"] == "seq" else ("batch",):
        del problem[name]  # what was searched
    return {
        "variant": row["variant"],
        "computes": row["computes"],
        **problem,
        "by": row["by"],
        "held": best.get("size"),
        **_took(best),
        "limited_by": row["limited_by"],
        "fails_at": fails.get("size"),
        **{f"fails_{name}": value for name, value in _took(fails).items()},
        "reason": fails.get("reason") or row["why"],
    }


def _took(look: Mapping[str, Any]) -> tidy.Row:
    return tidy.flat({"median_s": look.get("time_s"), "peak_bytes": look.get("peak_bytes")})


def _not_held(row: Row) -> str:
    """The shortest that does not hold, and its time or memory."""
    if (fails := row["fails"]) is None:
        return row["why"] or "nothing that was looked at"
    figure = ""
    if fails["why"] not in BUDGETS:
        figure = fails["reason"] if row["held"] is None else ""
    elif fails["why"] == "time":
        figure = duration(fails["time_s"]) if fails["time_s"] else fails["reason"]
    elif fails["peak_bytes"]:
        figure = size(fails["peak_bytes"])
    return f"{fails['size']:,}" + (f" ({figure})" if figure else "")
