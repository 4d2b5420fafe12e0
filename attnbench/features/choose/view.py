"""A choice on the terminal: the answer, who else could, who can't and why, and what to paste."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.markup import escape

from attnbench.answer import paste
from attnbench.answer.choose import Choice, Why
from attnbench.answer.ranking import EXACT
from attnbench.core import format
from attnbench.core.format import counted, duration, first_few, ms, ratio, size
from attnbench.report.tables import FAINT, GOOD, Styled, Table, columns, console
from attnbench.report.tables import show as show_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attnbench.answer.choose_calls import Gain
    from attnbench.answer.ranking import Ranking
    from impls.problem import Problem


NAMES = 8
"""So many variants are named to a reason; the rest are counted."""
BRIEF = (Why.COMPUTES, Why.SUPPORT)
"""Why most are out: each reason once would be a line a variant."""


def show(choice: Choice) -> None:
    """``choose``: one problem's answer."""
    out, r = console(), choice.ranking
    out.print(escape(choice.sentence()), style=f"bold {GOOD}" if r else "bold")
    if r is None and choice.source:
        out.print(escape(f"looked at: {choice.source}"))
    if r is not None:
        for line in _beside(choice, r):
            out.print(escape(line))
        out.print()
        _candidates(r)
    for line in _left_out(choice):
        out.print(escape(line), style=FAINT)
    if r is not None:
        pasted = paste.pasted(choice)
        _paste("to use it:", pasted["code"])
        _paste("or in a model of transformers:", pasted["transformers"])
        _paste("what proves it:", [pasted["proof"]])


def _beside(choice: Choice, ranking: Ranking) -> Iterator[str]:
    """What must be known besides: what it costs once, what it is off by, what it rests on."""
    w, other = ranking.winner, ranking.runner_up
    if choice.source:
        yield f"from {choice.source}"
    if not w.measured:
        yield (
            "predicted from the run's other problems: nine of ten such times lie in their "
            "interval; --measure measures it"
        )
    if w.setup_s is not None:
        paid = ""
        if other and (after := choice.pays_after):
            paid = f"; against {other.variant} that has paid after {counted(after, 'call')}"
        yield f"setup: {duration(w.setup_s)}{paid}"
    if w.error is not None:
        kept = "" if w.skill is None else f"; {format.percent(w.skill)} fidelity to softmax"
        where = "" if w.measured else ", at the worst where it was checked: not on this problem"
        yield f"error to exact softmax: {w.error:.1e}{kept}{where}"
    if choice.unknown:
        names = ", ".join(e.variant for e in choice.unknown[:NAMES])
        yield f"too little is known of {names}: they might be faster"


def _candidates(ranking: Ranking) -> None:
    names = ("variant", "ms", "95 %", "of the winner's", "memory", "error", "")
    rows = [
        (
            Styled(c.name, f"bold {GOOD}" if c is ranking.winner else ""),
            ms(c.median_s),
            f"[{ms(c.low_s)}, {ms(c.high_s)}]",
            ratio(c.median_s / ranking.winner.median_s),
            None if c.memory_bytes is None else size(c.memory_bytes),
            None if c.error is None else f"{c.error:.1e}",
            "; ".join(
                ["predicted"] * (not c.measured)
                + ["tied"] * (c in ranking.equal)
                + [c.computes] * (c.computes != EXACT)
                + ["noisy"] * bool(c.flags)
            ),
        )
        for c in ranking.all
    ]
    show_table(Table("", columns(*names, right=names[1:-1]), rows))


def _left_out(choice: Choice) -> Iterator[str]:
    """The other variants, by reason."""
    for why in Why:
        reasons: dict[str, list[str]] = {}
        for each in (e for e in choice.excluded if e.why is why):
            reasons.setdefault("" if why in BRIEF else each.said, []).append(each.variant)
        for said, names in reasons.items():
            yield f"left out, {why}: {first_few(names, NAMES)}" + (f": {said}" if said else "")


def show_calls(choices: Mapping[Problem, Choice], gained: Gain) -> None:
    """``choose --problems``: the answers, the sites, and for each variant that something would take
    what to paste and what proves it.
    """
    out = console()
    for choice in choices.values():
        style = f"bold {GOOD}" if choice.ranking else "bold"
        out.print(escape(choice.sentence()), style=style)
    out.print()
    numbers = ("now, in the program", "now, alone", "then, alone", "then / now")
    heads = ("site", "of " + gained.of, "uses", *numbers[:2], "take", *numbers[2:])
    rows = [
        (
            site.site,
            site.share and format.percent(site.share.value),
            site.uses,
            None if site.inside_s is None else duration(site.inside_s),
            site.now_s and duration(site.now_s.value),
            site.takes or None,
            site.then_s and duration(site.then_s.value),
            (r := site.ratio) and format.ratio_interval(r.value, r.low, r.high),
        )
        for site in gained.sites
    ]
    show_table(Table("", columns(*heads, right=(heads[1], *numbers)), rows))
    out.print(escape(gained.sentence()), style="bold")
    for site in gained.sites:
        if why := site.unchanged():
            out.print(escape(f"{site.site}: {why}"), style=FAINT)
    taken = {site.takes for site in gained.sites if site.ratio is not None}
    answered = [(c.ranking.winner.variant, c) for c in choices.values() if c.ranking]
    first = dict(reversed(answered))
    for name in sorted(taken & first.keys()):
        _paste(f"to use {name}:", paste.lines(name, first[name].problem))
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
