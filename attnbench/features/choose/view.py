"""A choice on the terminal: the answer, who else could, who can't and why, and what to paste."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.markup import escape

from attnbench.answer import paste
from attnbench.answer.choose import Choice, Why
from attnbench.answer.ranking import EXACT
from attnbench.core import format
from attnbench.core.format import duration, first_few, ms, ratio, size
from attnbench.report import tidy
from attnbench.report.sentences import kept, show_layers
from attnbench.report.tables import FAINT, GOOD, Styled, Table, columns, console
from attnbench.report.tables import show as show_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attnbench.answer.choose_calls import Gain, SiteGain
    from attnbench.answer.engines import EngineAnswer
    from attnbench.answer.layers import LayerChoice
    from attnbench.answer.ranking import Ranking
    from attnbench.features.choose.calls import ProgramAnswer
    from attnbench.models.capture.calls import SeenCalls
    from impls.problem import Problem


NAMES = 8
"""So many variants are named to a reason; the rest are counted."""
LEFT_OUT = "left out"
BRIEF = (Why.COMPUTES, Why.SUPPORT)
"""Reasons why most are out: each reason once would be a line a variant."""


def show(choice: Choice, engine: EngineAnswer | None = None) -> None:
    """``choose``: one problem's answer, with what to paste: Python, or what an engine takes."""
    out, r = console(), choice.ranking
    out.print(escape(choice.sentence()), style=f"bold {GOOD}" if r else "bold")
    if r is not None:
        for line in _beside(choice, r):
            out.print(escape(line))
        out.print()
        _candidates(r)
    elif choice.source:
        out.print(escape(f"looked at: {choice.source}"))
    for line in _left_out(choice):
        out.print(escape(line), style=FAINT)
    if r is not None:
        pasted = paste.pasted(choice)
        if engine is None:
            _paste("to use it:", pasted["code"])
            _paste("or in a model of transformers, for all of its calls:", pasted["transformers"])
        else:
            _show_engine(engine)
        _paste("what proves it:", [pasted["proof"]])


def _beside(choice: Choice, ranking: Ranking) -> Iterator[str]:
    """Notes on the winner: what it costs once, what it is off by, what it rests on."""
    w = ranking.winner
    if choice.source:
        yield f"from {choice.source}"
    if not w.measured:
        yield (
            "predicted from the lengths around it: nine of ten such times lie in their interval; "
            "--measure measures it"
        )
    if w.setup_s is not None:
        yield f"setup: {duration(w.setup_s)}"
    if w.error is not None:
        fidelity = "" if w.skill is None else f"; {format.percent(w.skill)} fidelity to softmax"
        fidelity += "" if w.kept is None else f", {kept(w.kept)}"
        where = "" if w.measured else ", at the worst where it was checked: not on this problem"
        yield f"error to exact softmax: {w.error:.1e}{fidelity}{where}"
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


def rows(choice: Choice) -> Iterator[tidy.Row]:
    """A row a variant: those that could be chosen, the winner first, then those that can't be."""
    about, r = tidy.of_problem(choice.problem), choice.ranking
    for c in r.all if r else ():
        verdict = "use" if r and c is r.winner else "tied" if r and c in r.equal else "slower"
        values = tidy.flat(c)
        first = {name: values.pop(name) for name in ("variant", "computes")}
        yield {**first, **about, **values, "verdict": verdict, "reason": ""}
    for e in choice.excluded:
        yield {"variant": e.variant, **about, "verdict": LEFT_OUT, "reason": f"{e.why}: {e.said}"}


def site_rows(
    calls: SeenCalls, choices: Mapping[Problem, Choice], gained: Gain
) -> Iterator[tidy.Row]:
    """A row a site: its share of the time, and its calls' times now and with what it would take."""
    kinds = {c.variant: c.computes for x in choices.values() if x.ranking for c in x.ranking.all}
    places = {site.label: site for site in calls.sites}
    for site in gained.to_dict()["sites"]:
        place, values = places[site["site"]], tidy.flat(site)
        about = {"site": place.site, "via": place.via, **tidy.of_problem(place.problem)}
        computes = kinds.get(site["takes"], "")
        yield {**about, "computes": computes, **values, "site": place.site}


def _left_out(choice: Choice) -> Iterator[str]:
    """The other variants, by reason."""
    for why in Why:
        reasons: dict[str, list[str]] = {}
        for each in (e for e in choice.excluded if e.why is why):
            reasons.setdefault("" if why in BRIEF else each.said, []).append(each.variant)
        for reason, names in reasons.items():
            yield f"left out, {why}: {first_few(names, NAMES)}" + (f": {reason}" if reason else "")


def show_model(
    title: str, choices: Sequence[LayerChoice], engine: EngineAnswer | None = None
) -> None:
    """``choose --model``: each kind of layer, what all layers take, and what to paste for each."""
    show_layers(title, choices)
    for each in choices if engine is None else ():
        if each.choice.ranking:
            pasted = paste.pasted(each.choice)
            winner = each.choice.ranking.winner.variant
            _paste(f"{each.kind}: to use {winner}:", pasted["code"])
            _paste("    what proves it:", [pasted["proof"]], above="")
    if engine is not None:
        _show_engine(engine)


def show_calls(answer: ProgramAnswer) -> None:
    """``choose --problems``: each place with what to change there, and what the program gains."""
    out, gained = console(), answer.gained
    ranked = [c for c in answer.choices.values() if c.ranking]
    proofs = {c.ranking.winner.variant: paste.proof(c) for c in ranked if c.ranking}
    out.print(escape(gained.sentence()), style="bold")
    if answer.verified is not None:
        out.print(escape(answer.verified.sentence()), style="bold")
    for site in gained.sites:
        _show_site(site, gained.of, proofs.get(site.takes), code=answer.engine is None)
    if answer.engine is not None:
        _show_engine(answer.engine)
    elif (whole := answer.whole_model) is not None:
        _paste(f"to use {whole.takes} in all layers of the model:", whole.lines)
        if not whole.lines:
            out.print(escape(f"\nno line for the whole model: {whole.why}"))
    out.print("\nof each problem alone:", style=FAINT)
    for choice in answer.choices.values():
        out.print(escape(choice.sentence()), style=FAINT)


def _show_site(site: SiteGain, of: str, proof: str | None, *, code: bool) -> None:
    """A place: its share, its call as it is made, and what to change or why nothing."""
    out = console()
    share = "" if site.share is None else f", {format.percent(site.share.value)} of {of}"
    out.print(escape(f"\n{site.site}{share}"), style="bold")
    inside = "" if site.inside_s is None else f"; {duration(site.inside_s)} in the program"
    now = "" if site.now_s is None else f"{duration(site.now_s)} a call{inside}: "
    out.print(escape(f"  now   {now}{site.uses}"))
    if site.ratio is None or site.then_s is None:
        out.print(escape(f"  {site.unchanged()}"), style=FAINT)
        return
    change = "; ".join(site.mend)
    then = f"  then  {duration(site.then_s)}, {site.ratio} of it: {change}"
    out.print(escape(then), style=GOOD)
    if code:
        _paste("", site.code)
    if proof is not None:
        _paste("    what proves it:", [proof], above="")


def _show_engine(engine: EngineAnswer) -> None:
    _paste(f"for {engine.name}, to use {engine.takes}:", engine.lines)
    if engine.why:
        print(f"\nfor {engine.name}: {engine.why}{':' if engine.instead else ''}")
    if engine.instead is not None:
        _paste("", engine.instead.lines)


def _paste(title: str, lines: Sequence[str], above: str = "\n") -> None:
    if lines:
        print("\n".join([*([above + title] if title else []), *(f"    {line}" for line in lines)]))
