"""``attnbench crossover A B``: from which length on one is faster than the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.command import arguments
from attnbench.command.terminal import INTERRUPTED, say, status_of

if TYPE_CHECKING:
    import argparse

    from attnbench.core.machine import Machine
    from attnbench.features.crossover.answer import CrossoverAnswer
    from attnbench.features.crossover.search import Duel
    from attnbench.sweep.presets import Preset


DEFAULT_SEARCH_S = 240.0
"""Of the whole search: a start, and about twenty lengths."""
DEFAULT_SEQ = {"cpu": ("64", "4096"), "cuda": ("256", "32768")}


def crossover(given: argparse.Namespace) -> int:
    """``attnbench crossover A B``"""
    import impls
    from attnbench.core.machine import this_machine
    from attnbench.features.crossover.answer import STOPPED
    from attnbench.features.crossover.search import plan
    from attnbench.sweep.compare import unlike

    machine = this_machine()
    table = impls.table(given.table)
    a, b = table.find(given.a), table.find(given.b)
    notes = list(unlike(a, b))
    duel = plan(a, b, _grid(given, machine), machine)
    for note in (*notes, *(f"note: {each}" for each in duel.notes())):
        say(note)
    found = _searched(given, duel, machine)
    if given.json:
        print(json.dumps({**found.to_dict(), "problem": duel.problem.to_dict()}))
    else:
        from attnbench.features.crossover import view

        view.show(found)
    if found.ended == STOPPED:
        return INTERRUPTED
    return status_of([str(look.status) for look in found.all_looks]) if found.all_looks else 2


def _grid(given: argparse.Namespace, machine: Machine) -> Preset:
    """One problem but for its length."""
    from attnbench.sweep.plan import here
    from attnbench.sweep.start import find_preset

    changes = arguments.grid_changes(given)
    changes.pop("budget", None)
    device = str(changes.get("device", machine.devices[-1]))
    here(device, machine)
    kind = device.split(":")[0]
    return find_preset(f"compare-{kind}", machine).with_(seq=DEFAULT_SEQ[kind]).with_(**changes)


def _searched(given: argparse.Namespace, duel: Duel, machine: Machine) -> CrossoverAnswer:
    """Everything that was found out until it was all, or until something ended it."""
    from attnbench.core.evidence import stored_floors
    from attnbench.core.settings import Settings
    from attnbench.features.crossover.answer import BUDGET, STOPPED, CrossoverAnswer
    from attnbench.features.crossover.search import CrossoverSearch, PairServer, seek
    from attnbench.features.crossover.view import line
    from attnbench.sweep.engine import engine_on
    from attnbench.sweep.plan import duration
    from attnbench.sweep.start import pinned
    from attnbench.sweep.sweep import Interrupt

    settings = Settings(threads=pinned(given.threads, machine))
    floors = stored_floors(Path(given.out), machine, settings.threads)
    seconds, search = given.budget or DEFAULT_SEARCH_S, CrossoverSearch(duel.rungs)
    words = " ".join(w for w in str(duel.problem).split() if w[:1] != "n")
    say(
        f"where {duel.a.label} and {duel.b.label} overtake each other, from {duel.rungs[0]:,} to "
        f"{duel.rungs[-1]:,} ({words}); {duration(seconds)} at the most"
    )
    if given.margin is None and not floors:
        say(
            "no noise floor is stored for this machine, so it is measured at the first length; "
            "'attnbench env' measures it once"
        )
    device, interrupt, stopped = duel.problem.device, Interrupt(say), False
    try:
        with engine_on(device, settings) as engine, interrupt.watching():
            asking = PairServer(duel, engine, given.seed or 0, given.margin, floors)
            for look, left_s in seek(search, asking, seconds):
                say(line(look, duel.a.label, duel.b.label, left_s))
                if stopped := interrupt.asked:
                    break
    except KeyboardInterrupt:
        stopped = True
    ended = STOPPED if stopped else BUDGET if search.next() is not None else ""
    what = "keys" if duel.problem.phase == "decode" else "tokens"
    return CrossoverAnswer(
        duel.a.label, duel.b.label, what, duel.asked, search, ended, tuple(duel.notes())
    )
