"""``attnbench history``: commits with asv, two commits for CI, or runs for asv's pages."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from attnbench.command.terminal import say
from attnbench.core import lock
from attnbench.core.checkout import Commit
from attnbench.core.settings import Settings
from attnbench.features.commits import export, instructions, revisions, rounds, view
from attnbench.features.commits.asv import Asv, checked_regex, ensure_machine
from attnbench.features.commits.asv_report import report
from attnbench.features.commits.verb import begin, compare_commits
from attnbench.sweep import holding
from attnbench.sweep.presets import PRESETS
from impls.asked import CantBeDone


class NoSuchHistory(CantBeDone):
    """What was asked says nothing here; a sentence."""


def history(given: argparse.Namespace) -> int:
    """The form that was asked for."""
    if given.table and given.form != "compare":
        raise NoSuchHistory(
            "--table says nothing to asv, which measures the benchmarks of the table; 'attnbench "
            "history compare BASE HEAD --table FILE' compares a repository's own rows"
        )
    return {"": _commits, "compare": _compare, "export": _export}[given.form](given)


def _commits(given: argparse.Namespace) -> int:
    (root, _), bench = revisions.repository(), checked_regex(given.bench)
    asv = Asv.of(root)
    commits = revisions.find_commits(given.range, root)
    revisions.refuse_dirty(commits, root)
    machine = ensure_machine()
    there = sorted(file.parent.name for file in asv.results.glob("*/machine.json"))
    others = [name for name in there if name != machine]
    say(
        f"measuring {len(commits)} commit{'s' * (len(commits) > 1)} with asv, in {given.rounds} "
        f"round{'s' * (given.rounds > 1)} through all of them, as machine {machine}"
    )
    if others:
        say(
            f"note: {asv.results} holds results of {', '.join(others)} too: other lines on the "
            "pages, and not compared with these"
        )
    if not asv.run([c.sha for c in commits], machine, given.rounds, bench):
        say("note: some benchmarks failed; the table says how many, 'asv show' which and why")
    page = asv.publish()
    found = report(commits, asv.results, machine, given.factor, root)
    if given.json:
        sent = {"machine": machine, "factor": given.factor, "page": str(page)}
        print(json.dumps({**sent, "commits": [one.to_dict() for one in found]}))
    else:
        view.history(found, given.factor)
    say(f"pages: {page}; to see them: {asv.preview_command}")
    if given.open:
        asv.preview()
    return int(any(one.newly_failed for one in found))  # asv's 'slower' is no finding: no pairs


def _compare(given: argparse.Namespace) -> int:
    if given.json and given.markdown:
        raise NoSuchHistory("--json and --markdown are two forms of one answer; give one of them")
    if given.instructions:
        instructions.require()
    root, tables = revisions.repository(given.table)
    base, head = revisions.find_commit(given.a, root), revisions.find_commit(given.b, root)
    revisions.refuse_dirty([base, head], root, "." if tables else "impls")
    if given.instructions:
        return _instructions(given, root, tables, base, head)
    machine, settings, grid = begin(given)
    suite = "history-cuda" if "cuda" in machine.devices else "history"
    grid = grid.with_(variants=grid.variants or PRESETS[suite].variants)
    begun, names = (machine, settings, grid), ("base", "head")
    found = compare_commits(given, root, tables, (base, head), begun, given.variant or [], names)
    if given.json:
        print(json.dumps(found.to_dict()))
    elif given.markdown:
        print(view.markdown(found))
    else:
        view.commits(found, names)
    return found.exit_status


def _instructions(
    given: argparse.Namespace, root: Path, tables: list[str], base: Commit, head: Commit
) -> int:
    machine, _, grid = begin(given, instructions.GRID)
    if grid.device != "cpu":
        raise NoSuchHistory("--instructions are counted on a CPU; leave --device and --preset out")
    planned = rounds.plan_cells(base, head, given.variant or [], grid, machine, root, tables)
    if why := next(filter(None, planned.unreadable), None):
        raise rounds.NoCommonCells(f"{why}; give commits whose table can be read")
    say(
        f"counting the instructions of {len(planned.cells)} cells in {base} and {head}: a minute "
        "or two for valgrind to load torch, and some seconds a cell"
    )
    opened = holding.open_worker(Settings(threads=1), given.seed or 0, grid.budget, tables)
    with lock.lock_for(["cpu"]):
        found = instructions.count((base, head), planned.cells, opened, root, tables)
    if given.json:
        cells = [cell.to_dict() for cell in found]
        print(json.dumps({"base": asdict(base), "head": asdict(head), "cells": cells}))
    else:
        view.instructions((base, head), found, markdown=given.markdown)
    return instructions.exit_status(found)


def _export(given: argparse.Namespace) -> int:
    asv = Asv.of(revisions.repository()[0])
    written = [str(file) for file in export.export(given.runs, asv.results, root=asv.root, say=say)]
    print(json.dumps({"files": written}) if given.json else "\n".join(written))
    page = asv.publish()
    say(f"pages: {page}; to see them: {asv.preview_command}")
    return 0
