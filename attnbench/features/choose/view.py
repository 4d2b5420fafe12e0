"""A choice on the terminal: the answer, who else could, who can't and why, and what to paste."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.markup import escape

from attnbench.answer import paste
from attnbench.answer.choose import Choice, Why
from attnbench.answer.ranking import EXACT
from attnbench.core.format import milliseconds, size
from attnbench.report.tables import FAINT, GOOD, Styled, Table, columns, console
from attnbench.report.tables import show as show_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attnbench.answer.choose_calls import Gain
    from impls.problem import Problem


NAMES = 8
"""So many variants are named to a reason; the rest are counted."""
BRIEF = (Why.COMPUTES, Why.SUPPORT)
"""Why most are out: each reason once would be a line a variant."""


def show(choice: Choice) -> None:
    """``choose``: one problem's answer."""
    out = console()
    out.print(escape(choice.sentence()), style=f"bold {GOOD}" if choice.winner else "bold")
    for line in _beside(choice):
        out.print(escape(line))
    if choice.ranked:
        out.print()
        _candidates(choice)
    for line in _left_out(choice):
        out.print(escape(line), style=FAINT)
    if choice.winner is None:
        return
    pasted = paste.pasted(choice)
    _paste("to use it:", pasted["code"])
    _paste("or in a model of transformers:", pasted["transformers"])
    _paste("what proves it:", [pasted["proof"]])


def _beside(choice: Choice) -> Iterator[str]:
    """What must be known besides: what it costs once, what it is off by, what it rests on."""
    w = choice.winner
    if w is None:
        if choice.source:
            yield f"looked at: {choice.source}"
        return
    if choice.source:
        yield f"from {choice.source}"
    if not w.measured:
        yield (
            "predicted from the run's other problems: nine of ten such times lie in their "
            "interval; --measure measures it"
        )
    if w.setup_s is not None:
        paid = ""
        if after := choice.pays_after:
            other = choice.next or choice.equal[0]
            paid = f"; against {other.variant} that has paid after {after:,} call"
            paid += "s" * (after > 1)
        yield f"once, before the first call: {milliseconds(w.setup_s)}{paid}"
    if w.error is not None:
        kept = "" if w.skill is None else f"; it keeps {w.skill:.0%} of what softmax does"
        where = "" if w.measured else ", at the worst where it was checked: not on this problem"
        yield f"error to exact softmax: {w.error:.1e}{kept}{where}"
    if choice.unknown:
        names = ", ".join(e.variant for e in choice.unknown[:NAMES])
        yield f"too little is known of {names}: they might be faster"


def _candidates(choice: Choice) -> None:
    names = ("variant", "ms", "between", "of the winner's", "memory", "error", "")
    best = choice.ranked[0].median_s
    rows = [
        (
            Styled(c.variant, f"bold {GOOD}" if c is choice.winner else ""),
            f"{c.median_s * 1e3:.4g}",
            f"{c.low_s * 1e3:.4g} to {c.high_s * 1e3:.4g}",
            f"{c.median_s / best:.2f}",
            None if c.memory_bytes is None else size(c.memory_bytes),
            None if c.error is None else f"{c.error:.1e}",
            "; ".join(
                ["predicted"] * (not c.measured)
                + ["can't be told from it"] * (c in choice.equal)
                + [c.computes] * (c.computes != EXACT)
                + ["in doubt"] * bool(c.flags)
            ),
        )
        for c in choice.ranked
    ]
    show_table(Table("", columns(*names, right=names[1:-1]), rows))


def _left_out(choice: Choice) -> Iterator[str]:
    """Everybody else, by reason."""
    for why in Why:
        out = [e for e in choice.excluded if e.why is why]
        reasons: dict[str, list[str]] = {}
        for each in out:
            reasons.setdefault("" if why in BRIEF else each.said, []).append(each.variant)
        for said, names in reasons.items():
            yield f"left out, {why}: {_names(names)}" + (f": {said}" if said else "")


def _names(names: list[str]) -> str:
    more = len(names) - NAMES
    return ", ".join(names[:NAMES]) + (f" and {more} more" if more > 0 else "")


def show_calls(choices: Mapping[Problem, Choice], gained: Gain) -> None:
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
    numbers = ("now, in the program", "now, alone", "then, alone", "then / now")
    heads = ("site", "of " + gained.of, "uses", *numbers[:2], "take", *numbers[2:])
    rows = []
    for site in gained.sites:
        now, then, r = site.now_s, site.then_s, site.ratio
        row = (
            site.site,
            site.share and f"{site.share.value:.1%}",
            site.uses,
            None if site.inside_s is None else milliseconds(site.inside_s),
            now and milliseconds(now.value),
            site.takes or None,
            then and milliseconds(then.value),
            r and f"{r.value:.2f} [{r.low:.2f}, {r.high:.2f}]",
        )
        rows.append(row)
    show_table(Table("", columns(*heads, right=(heads[1], *numbers)), rows))


def _pasted(gained: Gain, choices: Mapping[Problem, Choice]) -> None:
    """For each variant that something would take, what to paste; and what proves it."""
    taken = {site.takes for site in gained.sites if site.ratio is not None}
    first = {c.winner.variant: c for c in reversed(list(choices.values())) if c.winner}
    for name in sorted(taken & first.keys()):
        problem = first[name].problem
        _paste(f"to use {name}:", paste.lines(name, problem))
        _paste("or in a model of transformers:", paste.in_transformers(name), "")
        _paste("what proves it:", [paste.proof(first[name])], "")
    if len(taken) > 1:
        print(
            "\nseveral variants, for several kinds of call: measure them in one run, 'attnbench "
            "run --problems FILE'; make a table of it, 'attnbench choose --export table.json "
            "--from RUN'; and attnbench.dispatch picks for each call"
        )


def _paste(title: str, lines: Sequence[str], above: str = "\n") -> None:
    if lines:
        print("\n".join([above + title, *(f"    {line}" for line in lines)]))
