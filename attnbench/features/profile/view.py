"""A profile in a terminal, of one variant or of two side by side, and as rows of plain numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape

from attnbench.core.format import (
    duration,
    flop_rate,
    ms,
    percent,
    plain,
    short,
    size,
    unit_of_rates,
)
from attnbench.features.profile.why_slower import profiled_seconds
from attnbench.report import tidy
from attnbench.report.tables import BOLD, FAINT, Column, Styled, Table, console
from attnbench.report.tables import show as show_table

NAME, BAR = 28, 14
"""Characters of an operator's name, and of a bar."""
LEAST = 0.01
"""The share of a phase below which an operator is counted with the others."""
MOST_ALONE, MOST_BESIDE = 8, 4
"""Operators a phase that are listed, of one variant and of two side by side."""
COLORS = {"forward": "cyan", "backward": "magenta"}

Profile = Mapping[str, Any]
Phase = Mapping[str, Any]


def show(profiles: Sequence[Profile], why: Sequence[str]) -> None:
    """One variant, or two side by side with the reasons."""
    out = console()
    names = " against ".join(p["variant"] for p in profiles)
    out.print(f"[bold]{escape(names)}[/]  {escape(profiles[0]['slug'])}")
    for sentence in why:
        out.print(escape(sentence))
    show_table(_table(profiles))
    out.print()
    for profile in profiles:
        name = f"{profile['variant']}: " if len(profiles) > 1 else ""
        for line in (_time_line(profile), _memory_line(profile["memory"])):
            out.print(escape(name + line))
        notes = [profile["note"]] * bool(profile["note"])
        for note in [*notes, *(f"! {flag}" for flag in profile["memory"]["flags"])]:
            out.print(escape(name + note), style=FAINT)


def _time_line(profile: Profile) -> str:
    timed, traced = profile["plain"]["total_s"], profiled_seconds(profile)
    text = f"unwatched {duration(timed)}"
    if profile["phases"] and profile["phases"][0]["of"] == "operators":
        text += f", profiled {duration(traced)} ({percent(traced / timed - 1, '+')})"
    else:
        text += f", kernels {duration(traced)}"
    if profile["cost"]:
        text += f"; {flop_rate(profile['cost']['flop_rate'])} useful"
    return text


def _memory_line(memory: Mapping[str, Any]) -> str:
    text = f"peak {size(memory['peak_bytes'])} above the inputs"
    if memory["saved_bytes"] is not None:
        text += f"; {size(memory['saved_bytes'])} saved for backward"
    return text


def _table(profiles: Sequence[Profile]) -> Table:
    """The operators of each phase, on one scale: that of the slower variant."""
    alone, phases = len(profiles) == 1, [phase for p in profiles for phase in p["phases"]]
    whole = max(sum(phase["profiled_s"] for phase in p["phases"]) for p in profiles) or 1.0
    rates = [x["flop_rate"] or 0.0 for phase in phases for x in phase["operators"]]
    unit, rate_name = unit_of_rates(max(rates, default=0.0))
    columns = [Column(phases[0]["of"] if phases else "operators")]
    for p in profiles:
        name = "self ms" if alone else f"{short(p['variant'], BAR)}, ms"
        columns += [Column(name, align="right"), Column("")]
    if alone:
        columns += [Column(name, align="right") for name in ("share", "calls", rate_name)]
    rows: list[Sequence[Any]] = []

    def add(name: Any, times: Sequence[float | None], color: str, operator: Any = None) -> None:
        cells = [name]
        for seconds in times:
            bar = "█" * round(BAR * (seconds or 0.0) / whole)
            cells += [None if seconds is None else ms(seconds), Styled(bar, color)]
        if alone:
            cells.append(percent((times[0] or 0.0) / whole))
        if alone and operator:
            rate = operator["flop_rate"]
            cells += [f"{operator['calls']:g}", f"{rate / unit:.3g}" if rate else None]
        elif alone:
            cells += ["", ""]
        rows.append(cells)

    for name in dict.fromkeys(phase["name"] for phase in phases):
        color = COLORS[name]
        some = [next((x for x in p["phases"] if x["name"] == name), None) for p in profiles]
        add(Styled(name, BOLD), [x and x["profiled_s"] for x in some], color)
        for operator, times in _merge_operators(some, MOST_ALONE if alone else MOST_BESIDE):
            there = some[0] and {x["name"]: x for x in some[0]["operators"]}.get(operator)
            add("  " + short(plain(operator), NAME), times, color, there)
    return Table("", columns, rows)


def _merge_operators(
    phases: Sequence[Phase | None], most: int
) -> Iterator[tuple[str, list[float | None]]]:
    """Operators by the longest time in any, then the rest of each; None where one never runs."""
    spent = [{x["name"]: x["self_s"] for x in p["operators"]} if p else {} for p in phases]
    longest = {name: max(s.get(name, 0.0) for s in spent) for each in spent for name in each}
    least = LEAST * max((p["profiled_s"] for p in phases if p), default=0.0)
    large = [n for n in sorted(longest, key=lambda n: -longest[n]) if longest[n] >= least][:most]
    for name in large:
        yield name, [s.get(name) for s in spent]
    if others := longest.keys() - set(large):
        sums = [sum(seconds for name, seconds in s.items() if name in others) for s in spent]
        yield f"{len(others)} others" if len(others) > 1 else "1 other", [*sums]
    if any(p and p["of"] == "operators" for p in phases):
        yield "outside operators", [p["outside_s"] if p else None for p in phases]


def csv_rows(profiles: Sequence[Profile]) -> Iterator[tidy.Row]:
    """A row for what takes time: an operator, a kernel, the time outside all."""
    for p in profiles:
        about = {name: p[name] for name in ("variant", "computes")} | tidy.of_problem(p["problem"])
        for phase in p["phases"]:
            kind = phase["of"].removesuffix("s")
            rows = [(kind, each) for each in phase["operators"]]
            if kind == "operator":
                rows.append((f"outside {kind}s", {"name": "", "self_s": phase["outside_s"]}))
            for what, each in rows:
                rate = each.get("flop_rate")
                yield {
                    **about,
                    "part": phase["name"],
                    "what": what,
                    "name": plain(each["name"]),
                    "ms": 1e3 * each["self_s"],
                    "calls": each.get("calls"),
                    "gflop_per_s": rate and 1e-9 * rate,
                }
