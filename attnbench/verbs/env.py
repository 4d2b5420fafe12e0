"""``attnbench env``: what this machine is, what it can reach, and how small an effect it shows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.verbs import say

if TYPE_CHECKING:
    import argparse


def env(given: argparse.Namespace) -> int:
    """The facts, kept beside the results of this machine."""
    from attnbench.amiss import amiss
    from attnbench.machine import this_machine
    from attnbench.measure.settings import Settings
    from attnbench.record import PROTOCOL
    from attnbench.store import check_writable, save_machine
    from attnbench.sweep.start import pinned
    from attnbench.vitals import vitals

    machine = this_machine()
    settings = Settings(threads=pinned(given.threads, machine))
    check_writable(Path(given.out), machine)
    observed, wrong = vitals(machine), amiss(machine) if machine.gpus else []
    for sentence in wrong:
        say(f"note: {sentence}")
    ceilings, noise = _measured(given, machine, settings)
    facts: dict[str, Any] = {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"), "protocol": PROTOCOL,
        "machine": machine.to_dict(), "settings": settings.to_dict(), "observed": observed,
        "amiss": wrong, "ceilings": ceilings, "noise": noise,
    }  # fmt: skip
    kept = save_machine(Path(given.out), machine, facts)
    if given.json:
        print(json.dumps(facts, indent=1))
    else:
        from attnbench.report import env_view

        env_view.show(facts)
    say(f"kept in {kept}")
    return 0


def _measured(given: argparse.Namespace, machine: Any, settings: Any) -> tuple[Any, Any]:
    """The ceilings and the noise floor, by a worker."""
    from attnbench.lock import lock_for
    from attnbench.measure.settings import Settings
    from attnbench.sweep.engine import START_LIMIT_S, LocalEngine
    from attnbench.sweep.plan import LONG, here
    from impls.problem import Problem

    assert isinstance(settings, Settings)
    device = given.device or machine.devices[-1]
    dtypes = [LONG.get(dtype, dtype) for dtype in given.dtype]
    for dtype in dtypes:  # refuses what can't be, in the words of a problem
        here(Problem(dtype=dtype, device=device).device, machine)
    with lock_for([device]), LocalEngine(settings, limited=device == "cpu") as engine:
        say("measuring the ceilings …")
        asked = {"ceilings": dtypes, "device": device}
        ceilings = engine.ask(asked, START_LIMIT_S)["ceilings"]
        say("measuring the noise floor: one variant against itself, about half a minute …")
        asked = {"noise": dtypes[0], "device": device}
        return ceilings, engine.ask(asked, START_LIMIT_S)["noise"]
