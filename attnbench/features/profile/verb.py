"""``attnbench profile NAME [--against OTHER]``: where the time and the memory go."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import impls
from attnbench.command import arguments
from attnbench.command.terminal import say
from attnbench.core.disk import write_whole
from attnbench.core.lock import lock_for
from attnbench.core.machine import this_machine
from attnbench.features.profile import view
from attnbench.features.profile.profiles import NotProfiled, plan_cells, profile_cells, slug
from attnbench.features.profile.why_slower import why_slower
from attnbench.report import tidy
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.plan import Plan
from attnbench.sweep.start import find_preset, settings_of


def profile(given: argparse.Namespace) -> int:
    """One variant, or two and why one of them is slower."""
    machine = this_machine()
    names = [given.name] + [given.against] * (given.against is not None)
    grid = find_preset(f"compare-{machine.devices[-1]}", machine)
    changes = arguments.grid_changes(given)
    cells = plan_cells(names, impls.table(given.table), grid, changes, machine)
    for note in Plan(cells).tuned_notes():
        say(note)
    against = "-against-".join(cell.variant.label for cell in cells)  # asked again, it is replaced
    folder = Path(given.out) / slug(f"{against} {cells[0].problem}").strip("-")
    try:
        devices = {cell.problem.device for cell in cells}
        limited = devices == {"cpu"}
        settings = replace(settings_of(given, machine), warm_profiler=limited)
        with lock_for(devices), LocalEngine(settings, limited=limited) as engine:
            found = profile_cells(cells, engine, given.seed or 0, folder)
    except NotProfiled as stopped:
        say(f"attnbench: {stopped}")
        return stopped.status
    why = why_slower(*found) if len(found) > 1 else []
    data = json.dumps({"profiles": found, "why": why}, allow_nan=False)
    kept = [{**p, "trace": Path(p["trace"]).name} for p in found]  # the folder may move
    write_whole(folder / "profile.json", json.dumps({"profiles": kept, "why": why}).encode())
    view.draw(found, [folder / "memory.png", folder / "memory.svg"])
    if given.json:
        print(data)
    elif given.csv:
        tidy.show(view.csv_rows(found))
    else:
        view.show(found, why)
    traces = ", ".join(Path(p["trace"]).name for p in found)
    say(f"written in {folder}: memory.png, memory.svg, profile.json, {traces} (ui.perfetto.dev)")
    return 0
