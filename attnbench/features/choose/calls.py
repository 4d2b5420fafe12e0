"""The answers for a captured program: what to change at each place, and what a step gains."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.answer.choose_calls import Gain, SiteTimes, gain, priced_times, site_times
from attnbench.answer.mends import Priced, Pricer
from attnbench.command.terminal import say
from attnbench.core.machine import this_machine
from attnbench.core.settings import Settings
from attnbench.features.choose.verify import Verified, verify
from attnbench.features.choose.view import site_label
from attnbench.models.capture.calls import SeenCalls, Site
from attnbench.sweep.engine import engine_on
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.answer.choose import Choice
    from attnbench.core.call import CallForm
    from impls import Table
    from impls.problem import Problem

RIVALS = 2
"""Variants of the table, at the most, that are held against a call."""


class ProgramAnswer(NamedTuple):
    """A program's calls, the table's answer for each problem, and what is gained where."""

    calls: SeenCalls
    choices: dict[Problem, Choice]
    gained: Gain
    verified: Verified | None = None


def show_answer(
    given: argparse.Namespace, table: Table, answer: Callable[[Problem], Choice]
) -> int:
    """``attnbench choose --problems calls.json``, printed."""
    from attnbench.answer import paste
    from attnbench.features.choose import view
    from attnbench.report import tidy

    calls, choices, gained, verified = answers(given, table, answer)
    if given.json:
        plain: dict[str, Any] = {
            "answers": [{**c.to_dict(), **paste.pasted(c)} for c in choices.values()]
        }
        plain |= {"gain": gained.to_dict(), "verified": verified and verified.to_dict()}
        print(json.dumps(plain))
    elif given.csv:
        tidy.show(view.site_rows(calls, choices, gained))
    else:
        view.show_calls(choices, gained, verified.sentence() if verified else "")
    return int(all(choice.ranking is None for choice in choices.values()))


def answers(
    given: argparse.Namespace, table: Table, answer: Callable[[Problem], Choice]
) -> ProgramAnswer:
    """What to change in a program; ``answer``: the table's, of a problem alone.

    Raises CantBeDone where no call can be put as a problem, or the program can't be run again.
    """
    calls = given.problems
    if not isinstance(calls, SeenCalls):
        calls = SeenCalls.read(Path(calls))
    for sentence in calls.unseen:
        say(f"note: {sentence}")
    if not calls.problems():
        what = "the capture" if calls is given.problems else given.problems
        notes = "; ".join(dict.fromkeys(site.note for site in calls.sites if site.note))
        raise CantBeDone(f"{what} holds no call that can be put as a problem: {notes}")
    if given.threads is None:  # as many as the program had
        given.threads = calls.header.get("torch_threads")
    choices = {problem: answer(problem) for problem in calls.problems()}
    priced = _priced(given, calls, choices, table)
    sites = [_times(calls, s, choices, priced.get(n)) for n, s in enumerate(calls.sites)]
    gained = gain(sites, "a step" if calls.step_share is not None else "the program's time")
    if not getattr(given, "verify", False):
        return ProgramAnswer(calls, choices, gained)
    advised = [(calls.sites[n], each) for n, each in priced.items() if each.gains]
    verified = verify(given.program, advised, given.table or (), say)
    return ProgramAnswer(calls, choices, gained, verified)


def _priced(
    given: argparse.Namespace, calls: SeenCalls, choices: Mapping[Problem, Choice], table: Table
) -> dict[int, Priced]:
    """What would be faster at each place, by the place's number."""
    from attnbench.command.progress import Progress

    some = [(n, s, s.call) for n, s in enumerate(calls.sites) if s.problem in choices]
    found: dict[int, Priced] = {}
    settings = Settings(threads=given.threads or this_machine().threads)
    device = next(iter(choices)).device
    with engine_on(device, settings) as engine, Progress(len(some)) as watcher:
        for done, (number, site, form) in enumerate(some):
            watcher.at(done, len(some), A_PLACE_S * (len(some) - done), site.site)
            if form is None or not site.faithful:
                continue
            pricer = Pricer(engine, site.problem, form)
            found[number] = pricer.price()
            how = {
                "tables": given.table or [],
                "by_model": site.via.startswith("transformers"),
                "calls_a_mask": round(site.calls / site.new_masks) if site.new_masks else 0,
            }
            for variant in _rivals(choices[site.problem], form, table):
                taken = pricer.variant(variant, found[number], **how)
                if taken.gains:
                    found[number] = taken
    return found


A_PLACE_S = 15.0
"""A guess at the seconds that one place takes."""


def _rivals(choice: Choice, form: CallForm, table: Table) -> list[str]:
    """The fastest variants that serve all of a call, torch's own functions aside."""
    if choice.ranking is None or (form.returns and not form.unread):
        return []
    if form.mask is not None and form.mask.gradient:
        return []
    rows = [c.variant for c in choice.ranking.all if not c.variant.startswith("sdpa")]
    return [x for x in rows if table.find(x).dropout or not form.dropout][:RIVALS]


def _times(
    calls: SeenCalls, site: Site, choices: Mapping[Problem, Choice], priced: Priced | None
) -> SiteTimes:
    """A place's share of a step, and its call now and then."""
    name = site_label(site)
    more: dict[str, Any] = {"off": calls.off, "inside_s": calls.a_call_s(site)}
    if site.call is not None and priced is not None:
        return priced_times(name, site.share, site.call, priced, **more)
    choice = choices.get(site.problem) if site.faithful else None
    why = "" if site.faithful else site.note
    return site_times(name, site.share, site.via, choice, **more, why=why)
