"""The answers for a captured program: what to change at each place, and what a step gains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from attnbench.answer import paste
from attnbench.answer.choose_calls import Gain, SiteGain, gain, site_gain
from attnbench.answer.engines import USES, EngineAnswer, EngineCall, for_whole_model, in_engine
from attnbench.answer.mends import Priced, Pricer
from attnbench.answer.paste import PLAIN, CallDetails, beyond_torch, can_serve, lines
from attnbench.command.progress import Progress
from attnbench.command.terminal import say
from attnbench.core.machine import this_machine
from attnbench.features.choose import runs
from attnbench.features.choose.verify import Verified, verify
from attnbench.models.capture.calls import SeenCalls, Site
from attnbench.sweep.engine import engine_on
from attnbench.sweep.start import settings_of
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.answer.choose import Choice, Wants
    from impls import Table
    from impls.problem import Problem

RIVALS = 2
"""Variants of the table, at the most, that are held against a call."""
BY_MODEL = "transformers"
"""The way in which a call was captured that a model of transformers made."""
LEAST_SHARE = 0.005
"""A place that takes less of the time has nothing to gain that anybody would see."""
OTHER_BITS = (
    "no variant that gives the same bits is known to gain; whether the call gives them as it is "
    "made was not tried"
)
A_PLACE_S = 15.0
"""A guess at the seconds that one place takes."""


class ProgramAnswer(NamedTuple):
    """A program's calls, the table's answer for each problem, and what is gained where; with one
    implementation for all layers of a transformers model, or why there is none; ``engine``: the
    same of the engine of ``--for``.
    """

    calls: SeenCalls
    choices: dict[Problem, Choice]
    gained: Gain
    whole_model: EngineAnswer | None = None
    engine: EngineAnswer | None = None
    verified: Verified | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        values: dict[str, Any] = {
            "answers": [{**c.to_dict(), **paste.pasted(c)} for c in self.choices.values()],
            "gain": self.gained.to_dict(),
            "whole_model": None,
        }
        if (whole := self.whole_model) is not None:
            more = {"lines": whole.lines, "why": whole.why}
            values["whole_model"] = {"variant": whole.takes or "", **more}
        if self.engine is not None:
            values["engine"] = asdict(self.engine)
        return {**values, "verified": self.verified and self.verified.to_dict()}


def answers(arguments: argparse.Namespace, wants: Wants, table: Table) -> ProgramAnswer:
    """The changes of a program; raises CantBeDone where no call can be described as a problem."""
    calls = arguments.problems
    if not isinstance(calls, SeenCalls):
        calls = SeenCalls.read(Path(calls))
    for sentence in calls.unseen:
        say(f"note: {sentence}")
    if not calls.problems():
        what = "the capture" if calls is arguments.problems else arguments.problems
        notes = "; ".join(dict.fromkeys(site.note for site in calls.sites if site.note))
        raise CantBeDone(f"{what} holds no call that can be described as a problem: {notes}")
    if arguments.threads is None:  # as many as the program had
        arguments.threads = calls.header.get("torch_threads")
    choices = {p: runs.answer(arguments, p, wants, table) for p in calls.problems()}
    priced = _prices(arguments, calls, choices, wants, table)
    gains = [_site_gain(calls, site, priced.get(n)) for n, site in enumerate(calls.sites)]
    gained = gain(gains, "a step" if calls.step_share is not None else "the program's time")
    tables = arguments.table or ()
    places = [_engine_call(site, choices.get(site.problem)) for site in calls.sites]
    of_a_model = [p for p, site in zip(places, calls.sites, strict=True) if BY_MODEL in site.via]
    whole_model = for_whole_model(of_a_model, tables) if of_a_model else None
    engine = None
    if arguments.engine == "transformers" and whole_model is not None:
        engine = whole_model
    elif arguments.engine is not None:
        engine = in_engine(arguments.engine, places, tables)
    result = ProgramAnswer(calls, choices, gained, whole_model, engine)
    if not arguments.verify:
        return result
    advised = [(calls.sites[n], each) for n, each in priced.items() if each.gains]
    try:
        return result._replace(verified=verify(arguments.program, advised, tables))
    except CantBeDone as error:  # the answer stands, unchecked
        say(f"not checked: {error}")
        return result


def _site_gain(calls: SeenCalls, site: Site, priced: Priced | None) -> SiteGain:
    """A place's share of a step, and its call now and then."""
    label, share = site.label, calls.share_of(site)
    if site.call is None or priced is None:
        why = "" if site.faithful else site.note
        if (site.share or 1.0) < LEAST_SHARE:
            why = "it takes too little to gain anything"
        return SiteGain(label, share, site.via, why=why)
    return site_gain(label, share, site.call, priced, calls.a_call_s(site))


def _engine_call(site: Site, choice: Choice | None) -> EngineCall:
    """A place with the variants there and what it uses now."""
    ranking = choice.ranking if choice and site.faithful else None
    uses = next((name for word, name in USES.items() if word in site.via), "")
    about = site.label, site.problem, ranking, site.calls, details_of(site)
    return EngineCall(*about, uses, site.new_masks or 1)


def details_of(site: Site) -> CallDetails:
    """Demands of a call beside its problem."""
    form = site.call
    if form is None:
        return PLAIN
    returns = "" if form.unread or form.returns in site.problem.parameters else form.returns
    return CallDetails(dropout=form.dropout, returns=returns)


def _prices(
    arguments: argparse.Namespace,
    calls: SeenCalls,
    choices: Mapping[Problem, Choice],
    wants: Wants,
    table: Table,
) -> dict[int, Priced]:
    """The faster form of each place, by the place's number. For the same bits only variants whose
    bits were tried: another form of a call may make torch run a kernel whose bits were not.
    """
    some = [
        (number, site, site.call)
        for number, site in enumerate(calls.sites)
        if site.faithful and site.call is not None and (site.share or 1.0) >= LEAST_SHARE
    ]
    prices: dict[int, Priced] = {}
    device = next(iter(choices)).device
    tables = arguments.table or []
    with (
        engine_on(device, settings_of(arguments, this_machine())) as engine,
        Progress() as progress,
    ):
        progress.expect([A_PLACE_S] * len(some))
        for number, site, form in some:
            progress.step(site.site)
            others, problem = calls.others_at(site), site.problem
            pricer = Pricer(engine, problem, form, others)
            bits = wants.same_bits
            prices[number] = Priced(why=OTHER_BITS) if bits else pricer.price()
            if any(p.mask != problem.mask for _, p in others if p.q_len == problem.q_len):
                continue  # a line for this mask would be wrong for the others
            trains = calls.step_s is not None
            if rivals := _rivals(choices[problem], site, table, trains=trains, own=bits):
                by_model = BY_MODEL in site.via
                a_mask = round(site.calls / site.new_masks) if site.new_masks else 0
                how = {"tables": tables, "by_model": by_model, "calls_a_mask": a_mask}
                best = pricer.best_variant(rivals, prices[number], **how)
                if best.variant:
                    code = lines(best.variant, problem, details_of(site), tables)
                    prices[number] = replace(best, code=tuple(code))
    return prices


def _rivals(
    choice: Choice, site: Site, table: Table, *, trains: bool, own: bool = False
) -> list[str]:
    """The fastest variants that serve all of a call, the function aside that it is of, or that its
    mends would call, unless ``own``; of a program that has ended, those whose setup could have
    paid.
    """
    mask = site.call and site.call.mask
    if choice.ranking is None or (mask and mask.gradient):
        return []
    details = details_of(site)
    left_out: str | tuple[str, ...] = "flex" if site.via.startswith("flex") else "sdpa"
    if own or (left_out == "sdpa" and beyond_torch(site.problem)):
        left_out = ()
    rows = []
    for c in choice.ranking.all:
        row = table.find(c.variant)
        compiles = not {"c++", "cc"}.isdisjoint(row.requires)  # for how long, a cache may hide
        pays = trains or not (compiles or (c.setup_s or 0.0) > site.total_s / 2)
        if not c.variant.startswith(left_out) and pays and can_serve(row, details) is None:
            rows.append(c.variant)
    return rows[:RIVALS]
