"""``attnbench history``: commits with asv, two commits for CI, or runs for asv's pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.command import arguments
from attnbench.command.terminal import say
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.core.checkout import Commit
    from attnbench.sweep.presets import Preset


class NoSuchHistory(CantBeDone):
    """What was asked says nothing here; a sentence."""


def history(given: argparse.Namespace) -> int:
    """The form that was asked for."""
    return {"": _commits, "compare": _compare, "export": _export}[given.form](given)


def _root(tables: bool = False) -> Path:
    """The checkout whose commits are meant: where we stand, if it holds what is measured."""
    import impls
    from attnbench.features.commits.revisions import checkout

    own = Path(impls.__file__).resolve().parents[1]
    try:
        here = checkout(Path.cwd())
    except CantBeDone:
        if tables:
            raise
        here = own
    if tables or (here / "impls" / "spec.py").exists():
        own = here
    checkout(own)
    return own


def _commits(given: argparse.Namespace) -> int:
    from attnbench.features.commits import view
    from attnbench.features.commits.asv import Asv, checked_regex, ensure_machine
    from attnbench.features.commits.asv_report import other_machines, report
    from attnbench.features.commits.revisions import find_commits, refuse_dirty

    _refuse_tables(given)
    root, bench = _root(), checked_regex(given.bench)
    asv = Asv.of(root)
    commits = find_commits(given.range, root)
    refuse_dirty(commits, root)
    machine = ensure_machine()
    others = other_machines(asv.results, machine)
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
    from attnbench.core.evidence import stored_margin
    from attnbench.core.lock import lock_for
    from attnbench.core.machine import this_machine
    from attnbench.core.settings import Settings
    from attnbench.features.commits import rounds, view
    from attnbench.sweep.holding import open_worker
    from attnbench.sweep.start import pinned

    if given.json and given.markdown:
        raise NoSuchHistory("--json and --markdown are two forms of one answer; give one of them")
    if given.instructions:
        return _instructions(given)
    root, tables, base, head = _two(given)
    machine = this_machine()
    settings, grid = Settings(threads=pinned(given.threads, machine)), _grid(given)
    margin = given.margin or stored_margin(Path(given.out), machine, settings.threads)
    seconds = given.budget or rounds.BUDGET_S
    opened = open_worker(settings, given.seed or 0, grid.budget, tables, device=grid.device)

    with lock_for([grid.device]):
        found = rounds.compare(
            base,
            head,
            given.variant or [],
            grid,
            machine,
            opened,
            margin=margin,
            budget_s=seconds,
            root=root,
            tables=tables,
            watch=lambda cell: say(view.line(cell, "base", "head")),
            plan=lambda cells: say(view.plan(cells, seconds)),
        )
    if given.json:
        print(json.dumps(found.to_dict()))
    elif given.markdown:
        print(view.markdown(found))
    else:
        view.pull_request(found)
    return found.exit_status


def _two(given: argparse.Namespace) -> tuple[Path, list[str], Commit, Commit]:
    """The checkout, the row files in it, and the two commits; raises a sentence."""
    from attnbench.features.commits.revisions import find_commit, refuse_dirty

    root = _root(bool(given.table))
    tables = [_inside(Path(file), root) for file in given.table]
    base, head = find_commit(given.a, root), find_commit(given.b, root)
    refuse_dirty([base, head], root, "." if tables else "impls")
    return root, tables, base, head


def _instructions(given: argparse.Namespace) -> int:
    from attnbench.core.lock import lock_for
    from attnbench.core.machine import this_machine
    from attnbench.core.settings import Settings
    from attnbench.features.commits import instructions, view
    from attnbench.features.commits.rounds import NoCommonCells, plan_cells
    from attnbench.sweep.holding import open_worker
    from attnbench.sweep.start import find_preset

    instructions.require()
    root, tables, base, head = _two(given)
    machine = this_machine()
    grid = find_preset(given.preset, machine) if given.preset else instructions.grid()
    changes = arguments.grid_changes(given)
    changes.pop("budget", None)
    grid = grid.with_(**changes)
    if grid.device != "cpu":
        raise NoSuchHistory("--instructions are counted on a CPU; leave --device and --preset out")
    planned = plan_cells(base, head, given.variant or [], grid, machine, root, tables)
    if why := next(filter(None, planned.unreadable), None):
        raise NoCommonCells(f"{why}; give commits whose table can be read")
    cells = planned.cells
    say(
        f"counting the instructions of {len(cells)} cells in {base} and {head}: a minute or two "
        "for valgrind to load torch, and some seconds a cell"
    )
    opened = open_worker(Settings(threads=1), given.seed or 0, grid.budget, tables)
    with lock_for(["cpu"]):
        found = instructions.count(base, head, cells, opened, root, tables)
    if given.json:
        print(json.dumps(found.to_dict()))
    else:
        view.instructions(found, markdown=given.markdown)
    return found.exit_status


def _grid(given: argparse.Namespace) -> Preset:
    """One problem on which commits are compared, and the variants that asv measures."""
    from attnbench.core.machine import this_machine
    from attnbench.sweep.presets import PRESETS, default_preset
    from attnbench.sweep.start import find_preset

    machine = this_machine()
    device = default_preset(machine.devices)
    variants = PRESETS["history-cuda" if device == "cuda" else "history"].variants
    grid = find_preset(given.preset or f"compare-{device}", machine)
    changes = arguments.grid_changes(given)
    changes.pop("budget", None)  # of pairs here, not of samples
    return grid.with_(variants=grid.variants or variants, **changes)


def _export(given: argparse.Namespace) -> int:
    from attnbench.features.commits.asv import Asv
    from attnbench.features.commits.export import export

    _refuse_tables(given)
    asv = Asv.of(_root())
    written = export(given.runs, asv.results, root=asv.root, say=say)
    if given.json:
        print(json.dumps({"files": [str(file) for file in written]}))
    else:
        for file in written:
            print(file)
    page = asv.publish()
    say(f"pages: {page}; to see them: {asv.preview_command}")
    return 0


def _refuse_tables(given: argparse.Namespace) -> None:
    if given.table:
        raise NoSuchHistory(
            "--table says nothing to asv, which measures the benchmarks of the table; 'attnbench "
            "history compare BASE HEAD --table FILE' compares a repository's own rows"
        )


def _inside(file: Path, root: Path) -> str:
    """A row file's place in its repository; each commit's own is read."""
    try:
        return file.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        raise NoSuchHistory(
            f"{file} is not in {root}, and a row file is read as each commit has it; give one that "
            "is, or leave --table out"
        ) from None
