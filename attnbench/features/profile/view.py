"""A profile in a terminal, and as rows of plain numbers."""

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
from attnbench.report import tidy
from attnbench.report.tables import BOLD, FAINT, Column, Styled, Table, console
from attnbench.report.tables import show as show_table

NAME = 36
"""Characters of an operator's name."""
LEAST, MOST = 0.01, 8
"""Operators below this share of a phase, or beyond so many, are counted together."""

Profile = Mapping[str, Any]


def show(profiles: Sequence[Profile], why: Sequence[str]) -> None:
    """The reasons why one of two is slower; then where the time of each goes."""
    out = console()
    names = " against ".join(p["variant"] for p in profiles)
    out.print(f"[bold]{escape(names)}[/]  {escape(profiles[0]['slug'])}")
    for sentence in why:
        out.print(escape(sentence))
    for profile in profiles:
        show_table(_table(profile, profile["variant"] if len(profiles) > 1 else ""))
        out.print(escape(_summary(profile)))
        for note in filter(None, [profile["note"], *profile["memory"]["flags"]]):
            out.print(escape(f"! {note}"), style=FAINT)


def _summary(profile: Profile) -> str:
    """The time without the profiler and with it, and the memory."""
    timed, memory = profile["plain"]["total_s"], profile["memory"]
    text = f"unwatched {duration(timed)}"
    traced = sum(
        phase["profiled_s"]
        for phase in profile["phases"]
        if phase["name"] == "backward" or profile["problem"]["phase"] != "backward"
    )
    if profile["phases"] and profile["phases"][0]["of"] == "operators":
        text += f", profiled {duration(traced)} ({percent(traced / timed - 1, '+')})"
    else:
        text += f", kernels {duration(traced)}"
    if profile["cost"]:
        text += f"; {flop_rate(profile['cost']['flop_rate'])} useful"
    text += f"; peak {size(memory['peak_bytes'])} above the inputs"
    if memory["saved_bytes"] is not None:
        text += f", {size(memory['saved_bytes'])} saved for backward"
    return text


def _table(profile: Profile, title: str) -> Table:
    """The operators of each phase, the longest first."""
    phases = profile["phases"]
    whole = sum(phase["profiled_s"] for phase in phases) or 1.0
    rates = [x["flop_rate"] or 0.0 for phase in phases for x in phase["operators"]]
    unit, rate_name = unit_of_rates(max(rates, default=0.0))
    rows: list[Sequence[Any]] = []

    def add(name: Any, seconds: float, calls: Any = "", rate: Any = "") -> None:
        rows.append((name, ms(seconds), percent(seconds / whole), calls, rate))

    for phase in phases:
        add(Styled(phase["name"], BOLD), phase["profiled_s"])
        large = [x for x in phase["operators"] if x["self_s"] >= LEAST * phase["profiled_s"]][:MOST]
        for operator in large:
            rate = operator["flop_rate"]
            shown_rate = f"{rate / unit:.3g}" if rate else None
            name = "  " + short(plain(operator["name"]), NAME)
            add(name, operator["self_s"], f"{operator['calls']:g}", shown_rate)
        if others := phase["operators"][len(large) :]:
            add(f"  {len(others)} others", sum(x["self_s"] for x in others))
        if phase["of"] == "operators":
            add("  outside operators", phase["outside_s"])
    names = ("self ms", "share", "calls", rate_name)
    of = Column(phases[0]["of"] if phases else "operators")
    return Table(title, [of, *(Column(name, align="right") for name in names)], rows)


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
