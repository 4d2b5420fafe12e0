"""The answers for a program on the terminal: a line a call site, what is gained, what to paste."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.markup import escape

from attnbench.answer.choice import paste
from attnbench.answer.said import milliseconds
from attnbench.report.tables import FAINT, GOOD, console, grid, put

if TYPE_CHECKING:
    from attnbench.answer.choice.choice import Choice
    from attnbench.answer.model_gain import Gain, SiteTimes, Span
    from impls.problem import Problem


def show(choices: Mapping[Problem, Choice], gained: Gain) -> None:
    """``choose --problems``"""
    out = console()
    for choice in choices.values():
        style = f"bold {GOOD}" if choice.winner else "bold"
        out.print(escape(choice.sentence()), style=style)
    out.print()
    _sites(gained)
    out.print(escape(gained.sentence()), style="bold")
    for site in gained.sites:
        if why := site.unchanged():
            out.print(escape(f"{site.site}: {why}"), style=FAINT)
    _pasted(gained, choices)


def _sites(gained: Gain) -> None:
    share = "of " + gained.of
    right = (share, "now, in the program", "now, alone", "then, alone", "then / now")
    made = grid(
        "site", share, "uses", "now, in the program", "now, alone", "take", "then, alone",
        "then / now", right=right,
    )  # fmt: skip
    for site in gained.sites:
        made.add_row(
            escape(site.site), "–" if site.share is None else f"{site.share.value:.1%}",
            escape(site.uses), "–" if site.inside_s is None else milliseconds(site.inside_s),
            _ms(site.now_s), escape(site.takes or "–"), _ms(site.then_s), _ratio(site),
        )  # fmt: skip
    put(made)


def _ms(time: Span | None) -> str:
    return "–" if time is None else milliseconds(time.value)


def _ratio(site: SiteTimes) -> str:
    r = site.ratio
    return "–" if r is None else f"{r.value:.2f} [{r.low:.2f}, {r.high:.2f}]"


def _pasted(gained: Gain, choices: Mapping[Problem, Choice]) -> None:
    """For each variant that something would take, what to paste; and what proves it."""
    taken = {site.takes for site in gained.sites if site.ratio is not None}
    first = {c.winner.variant: c for c in reversed(list(choices.values())) if c.winner}
    for name in sorted(taken & first.keys()):
        choice = first[name]
        print(f"\nto use {name}:")
        for line in paste.lines(name, choice.problem):
            print(f"    {line}")
        print("or in a model of transformers:")
        for line in paste.in_transformers(name):
            print(f"    {line}")
        print(f"what proves it:\n    {paste.proof(choice)}")
    if len(taken) > 1:
        print(
            "\nseveral variants, for several kinds of call: measure them in one run, 'attnbench "
            "run --problems FILE'; make a table of it, 'attnbench choose --export table.json "
            "--from RUN'; and attnbench.dispatch picks for each call"
        )
