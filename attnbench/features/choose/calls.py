"""The answers for a captured program: what to change at each place, and what a step gains."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from attnbench.answer import paste
from attnbench.answer.choose_calls import (
    Gain,
    SiteTimes,
    gain,
    priced_times,
    site_times,
    variant_of,
)
from attnbench.answer.engines import EngineAnswer, TimedSite, for_whole_model, in_engine
from attnbench.answer.mends import Priced, Pricer
from attnbench.answer.paste import PLAIN, CallDetails, can_serve, find_row, lines
from attnbench.command.terminal import say
from attnbench.core.machine import this_machine
from attnbench.features.choose import runs, view
from attnbench.features.choose.verify import Verified, verify
from attnbench.features.choose.view import site_label
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


class ProgramAnswer(NamedTuple):
    """A program's calls, the table's answer for each problem, and what is gained where.

    ``engine``: in the words of the engine that was asked for; ``whole_model``: one implementation
    for all layers of a transformers model, or why there is none.
    """

    calls: SeenCalls
    choices: dict[Problem, Choice]
    gained: Gain
    engine: EngineAnswer | None = None
    whole_model: EngineAnswer | None = None
    verified: Verified | None = None


def show_answer(arguments: argparse.Namespace, wants: Wants, table: Table) -> int:
    """``attnbench choose --problems calls.json``, printed."""
    from attnbench.report import tidy

    result = answers(arguments, wants, table)
    if arguments.json:
        choices = result.choices.values()
        plain: dict[str, Any] = {"answers": [{**c.to_dict(), **paste.pasted(c)} for c in choices]}
        plain["gain"] = result.gained.to_dict()
        for name in ("engine", "whole_model", "verified"):
            if (part := getattr(result, name)) is not None:
                plain[name] = part.to_dict()
        print(json.dumps(plain))
    elif arguments.csv:
        tidy.show(view.site_rows(result.calls, result.choices, result.gained))
    else:
        view.show_calls(result)
    silent = all(choice.ranking is None for choice in result.choices.values())
    return int(silent or (arguments.verify and result.verified is None))


def answers(arguments: argparse.Namespace, wants: Wants, table: Table) -> ProgramAnswer:
    """What to change in a program; raises CantBeDone where no call can be put as a problem."""
    calls = arguments.problems
    if not isinstance(calls, SeenCalls):
        calls = SeenCalls.read(Path(calls))
    for sentence in calls.unseen:
        say(f"note: {sentence}")
    if not calls.problems():
        what = "the capture" if calls is arguments.problems else arguments.problems
        notes = "; ".join(dict.fromkeys(site.note for site in calls.sites if site.note))
        raise CantBeDone(f"{what} holds no call that can be put as a problem: {notes}")
    if arguments.threads is None:  # as many as the program had
        arguments.threads = calls.header.get("torch_threads")
    choices = {p: runs.answer(arguments, p, wants, table) for p in calls.problems()}
    priced = _priced(arguments, calls, choices, table)
    tables = arguments.table or ()
    times = [_times(calls, s, choices, priced.get(n), tables) for n, s in enumerate(calls.sites)]
    gained = gain(times, "a step" if calls.step_share is not None else "the program's time")
    places = [
        _timed(s, choices.get(s.problem) if s.faithful else None, each, priced.get(n))
        for n, (s, each) in enumerate(zip(calls.sites, times, strict=True))
    ]
    of_a_model = [p for p, s in zip(places, calls.sites, strict=True) if BY_MODEL in s.via]
    result = ProgramAnswer(
        calls,
        choices,
        gained,
        in_engine(arguments.engine, places, tables) if arguments.engine else None,
        for_whole_model(of_a_model, tables) if of_a_model else None,
    )
    if not arguments.verify:
        return result
    advised = [(calls.sites[n], each) for n, each in priced.items() if each.gains]
    try:
        return result._replace(verified=verify(arguments.program, advised, tables, say))
    except CantBeDone as error:  # the answer stands, unchecked
        say(f"not checked: {error}")
        return result


BY_MODEL = "transformers"
"""How a call was captured that a model of transformers made."""


def _timed(site: Site, choice: Choice | None, times: SiteTimes, priced: Priced | None) -> TimedSite:
    """What is known of the variants at a place, for an engine that takes one for all."""
    ranking = choice.ranking if choice else None
    timed = ranking.by_name if ranking else {}
    uses = variant_of(site.via)
    takes = times.takes if times.takes in timed else uses
    if priced is not None and "sdpa" in priced.keys:
        takes = "sdpa"
    details = details_of(site)
    return TimedSite(
        site_label(site), site.problem, timed, takes, uses, details, site.calls, site.new_masks or 1
    )


def details_of(site: Site) -> CallDetails:
    """What a call asks for beside its problem."""
    form = site.call
    if form is None:
        return CallDetails.of(site.problem, site.scale) if site.scale else PLAIN
    read = "" if form.unread else form.returns
    more = {"returns_lse": read == "lse", "returns_weights": read == "weights"}
    return CallDetails.of(site.problem, form.scale, dropout=form.dropout, **more)


def _priced(
    arguments: argparse.Namespace, calls: SeenCalls, choices: Mapping[Problem, Choice], table: Table
) -> dict[int, Priced]:
    """What would be faster at each place, by the place's number."""
    from attnbench.command.progress import Progress

    some = [(n, s, s.call) for n, s in enumerate(calls.sites) if s.problem in choices]
    prices: dict[int, Priced] = {}
    settings = settings_of(arguments, this_machine())
    device = next(iter(choices)).device
    with engine_on(device, settings) as engine, Progress() as progress:
        progress.expect([A_PLACE_S] * len(some))
        for number, site, form in some:
            progress.step(site.site)
            if form is None or not site.faithful or (site.share or 1.0) < LEAST_SHARE:
                continue
            others = calls.others_at(site)
            pricer = Pricer(engine, site.problem, form, others)
            prices[number] = pricer.price()
            how = {
                "tables": arguments.table or [],
                "by_model": BY_MODEL in site.via,
                "calls_a_mask": round(site.calls / site.new_masks) if site.new_masks else 0,
            }
            trains = calls.step_s is not None
            if any(p.mask != site.problem.mask for _, p in others if p.q_len == site.problem.q_len):
                continue  # a line for this mask would be wrong for the others
            if rivals := _rivals(choices[site.problem], site, table, trains=trains):
                best = pricer.best_variant(rivals, prices[number], **how)
                if best is not prices[number]:
                    tables = arguments.table or ()
                    code = lines(best.keys[0], site.problem, details_of(site), tables)
                    prices[number] = replace(best, code=tuple(code))
    return prices


LEAST_SHARE = 0.005
"""A place that takes less of the time has nothing to gain that anybody would see."""
A_PLACE_S = 15.0
"""A guess at the seconds that one place takes."""


def _rivals(choice: Choice, site: Site, table: Table, *, trains: bool) -> list[str]:
    """The fastest variants that serve all of a call, the function that it is of aside; of a program
    that has ended, those whose setup could have paid.
    """
    mask = site.call and site.call.mask
    if choice.ranking is None or (mask and mask.gradient):
        return []
    details = details_of(site)
    rows = []
    for c in choice.ranking.all:
        row = table.find(c.variant)
        compiles = not {"c++", "cc"}.isdisjoint(row.requires)  # for how long, a cache may hide
        pays = trains or not (compiles or (c.setup_s or 0.0) > site.total_s / 2)
        own = "flex" if site.via.startswith("flex") else "sdpa"
        if not c.variant.startswith(own) and pays and can_serve(row, details) is None:
            rows.append(c.variant)
    return rows[:RIVALS]


def _times(
    calls: SeenCalls,
    site: Site,
    choices: Mapping[Problem, Choice],
    priced: Priced | None,
    tables: Sequence[str],
) -> SiteTimes:
    """A place's share of a step, and its call now and then."""
    name = site_label(site)
    more: dict[str, Any] = {"off": calls.off, "inside_s": calls.a_call_s(site)}
    if site.call is not None and priced is not None:
        return priced_times(name, site.share, site.call, priced, **more)
    if site.call is not None and (site.share or 1.0) < LEAST_SHARE:
        return SiteTimes(name, None, site.via, None, why="it takes too little to gain anything")
    choice = choices.get(site.problem) if site.faithful else None
    why = "" if site.faithful else site.note
    times = site_times(name, site.share, site.via, choice, **more, why=why)
    if times.ratio is None:
        return times
    details = details_of(site)
    if (refusal := can_serve(find_row(times.takes, tables), details)) is not None:
        return dataclasses.replace(times, takes="", then_s=None, why=refusal)
    code = lines(times.takes, site.problem, details, tables)
    return dataclasses.replace(times, code=tuple(code))
