"""``attnbench profile NAME [--against OTHER]``: where the time goes, and why one is slower."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import impls
from attnbench.command.arguments import grid_changes
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


def profile(arguments: argparse.Namespace) -> int:
    """One variant, or two and why one of them is slower."""
    machine = this_machine()
    names = [arguments.name] + [arguments.against] * (arguments.against is not None)
    grid = find_preset(f"compare-{machine.devices[-1]}", machine)
    cells = plan_cells(names, impls.table(arguments.table), grid, grid_changes(arguments), machine)
    for note in Plan(cells).tuned_notes():
        say(note)
    against = "-against-".join(cell.variant.label for cell in cells)  # a second call replaces it
    folder = Path(arguments.out) / slug(f"{against} {cells[0].problem}").strip("-")
    try:
        devices = {cell.problem.device for cell in cells}
        limited = devices == {"cpu"}
        settings = replace(settings_of(arguments, machine), warm_profiler=limited)
        with lock_for(devices), LocalEngine(settings, limited=limited) as engine:
            profiles = profile_cells(cells, engine, arguments.seed or 0, folder)
    except NotProfiled as stopped:
        say(f"attnbench: {stopped}")
        return stopped.status
    why = why_slower(*profiles) if len(profiles) > 1 else []
    portable = [{**p, "trace": Path(p["trace"]).name} for p in profiles]  # the folder may move
    write_whole(folder / "profile.json", json.dumps({"profiles": portable, "why": why}).encode())
    if arguments.json:
        print(json.dumps({"profiles": profiles, "why": why}, allow_nan=False))
    elif arguments.csv:
        tidy.show(view.csv_rows(profiles))
    else:
        view.show(profiles, why)
    traces = ", ".join(p["trace"] for p in portable)
    say(f"written in {folder}: profile.json, {traces} (ui.perfetto.dev)")
    return 0
