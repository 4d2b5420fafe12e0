"""The longest that each variant takes in a budget: a table a phase."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table as Grid

from attnbench.answer.said import milliseconds, size
from attnbench.report.tables import BAD, FAINT, GOOD, console, grid, put

Row = Mapping[str, Any]
OTHER = "*"
"""Behind the names of what is not softmax attention."""
ABOUT = "≈ "
"""Before what was not run."""
WORDS = {"memory": "memory", "time": "time", "": "–"}


def show(rows: Sequence[Row], budget: Mapping[str, Any], by: str) -> None:
    """``limits``: for each phase and mask the variants, the longest first."""
    out = console()
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["phase"], row["mask"]), []).append(row)
    for (phase, mask), some in groups.items():
        out.print(f"\n[bold]{escape(f'{phase} · mask {mask}')}[/]")
        put(_grid(some, budget, by))
    out.print()
    for line in (*_amiss(rows), *_foot(rows, budget, by)):
        out.print(escape(line), style=FAINT)


def took(seconds: float) -> str:
    """``4.09 s``, ``150 ms``"""
    return f"{seconds:.3g} s" if seconds >= 1 else milliseconds(seconds)


def _grid(rows: Sequence[Row], budget: Mapping[str, Any], by: str) -> Grid:
    longest = "longest that held" if by == "seq" else "largest batch that held"
    memory = f"{size(budget['peak_bytes'])} alone, predicted"
    right = (longest, "time there", "peak there", memory)
    made = grid(
        "variant", longest, "limited by", "time there", "peak there", "does not hold at", memory,
        right=right, words=["does not hold at"],
    )  # fmt: skip
    for row in rows:
        held = row["held"]
        name = escape(row["variant"] + OTHER * (row["computes"] != "softmax"))
        if held is None:
            made.add_row(name, "none", _by(row), "", "", escape(_not_held(row)), _memory(row))
            continue
        made.add_row(
            name, f"[{GOOD}]{held['size']:,}[/]", _by(row), took(held["time_s"]),
            size(held["peak_bytes"]), escape(_not_held(row)), _memory(row),
        )  # fmt: skip
    return made


def _by(row: Row) -> str:
    why = row["limited_by"]
    if why in WORDS:
        return f"{WORDS[why]}{'' if row['fails'] else ' ≈' * bool(why)}"
    return f"[{BAD}]{escape(why.replace('_', ' '))}[/]"


def _not_held(row: Row) -> str:
    """The shortest that does not hold; what was not run is said so."""
    fails = row["fails"]
    if fails is None:
        known = {what: at for what, at in row["predicted"].items() if at is not None}
        if row["held"] is None or not row["limited_by"]:
            return row["why"] or "nothing: the search ends there"
        what = row["limited_by"]
        return f"{ABOUT}above {known[what]:,} ({what}, predicted)"
    if row["held"] is None and fails["why"] not in ("memory", "time"):
        return f"{fails['size']:,}: {fails['reason']}"
    figure = ""
    if fails["why"] == "memory" and fails["peak_bytes"]:
        figure = size(fails["peak_bytes"])
    elif fails["why"] == "time":
        figure = took(fails["time_s"]) if fails["time_s"] else fails["reason"]
    words = [word for word in (figure, "predicted" * (not fails["ran"])) if word]
    return f"{fails['size']:,}" + f" ({', '.join(words)})" * bool(words)


def _memory(row: Row) -> str:
    at = row["predicted"].get("memory")
    return "" if at is None else f"{ABOUT}{at:,}"


def _amiss(rows: Sequence[Row]) -> list[str]:
    """What failed otherwise than by a budget, and what the meters had to say."""
    lines = []
    for row in rows:
        fails, name = row["fails"], f"{row['variant']} {row['phase']}"
        if fails is not None and fails["why"] not in ("memory", "time"):
            lines.append(f"! {name} at {fails['size']:,}: {fails['why']}: {fails['reason']}")
    flags: dict[str, list[str]] = {}
    for row in rows:
        for flag in ((row["held"] or {}).get("probe") or {}).get("flags", ()):
            kind = re.sub(r"\d+", "…", flag)
            flags.setdefault(kind, []).append(f"{row['variant']} {row['phase']}")
    return lines + [f"! {flag}: {', '.join(names)}" for flag, names in flags.items()]


def _foot(rows: Sequence[Row], budget: Mapping[str, Any], by: str) -> list[str]:
    step = "multiples of 64, brackets of a sixteenth" if by == "seq" else "brackets of a sixteenth"
    lines = [
        f"budget: {size(budget['peak_bytes'])} and {took(budget['seconds'])} a call; "
        f"{step}; what held was run there, and right",
        "peak: bytes live above the inputs at the worst instant, output included; time: the median "
        "of a few calls",
        f"{ABOUT.strip()} predicted, not run: by the row's formula where it was exact, else as it "
        "grew",
    ]
    if any(row["computes"] != "softmax" for row in rows):
        lines.append(f"{OTHER} not softmax attention")
    return lines
