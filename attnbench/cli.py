"""The command line, which reads as the product: one short function a verb.

Data goes to stdout, prose to stderr. Exit status: 0 done, 1 a finding, 2 usage or environment.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from attnbench import __version__, arguments
from attnbench.verbs.compare import compare
from attnbench.verbs.env import env
from attnbench.verbs.profile import profile
from attnbench.verbs.selfcheck import selfcheck

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from attnbench.record import Record

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb."""
    given = arguments.parser().parse_args(argv)
    if given.version:
        print(__version__)
        return 0
    if given.help or given.verb is None:
        print(arguments.help_text())
        return 0 if given.help else 2
    try:
        return VERBS[given.verb](given)
    except KeyboardInterrupt:
        say("attnbench: stopped")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not _users_own(error):
            raise
        say(f"attnbench: {error}")
        return 2


def say(text: str) -> None:
    """Prose, out of the way of data."""
    print(text, file=sys.stderr, flush=True)


def _users_own(error: Exception) -> bool:
    """Whether an error is about what was asked, and its text a sentence for whoever asked."""
    from attnbench.answer.words import BadEmbeddings
    from attnbench.lock import DeviceBusy
    from attnbench.report.map_picture import BadPicture
    from attnbench.store import StoreError
    from attnbench.sweep.commits import BadCommit
    from attnbench.sweep.engine import WorkerLost
    from attnbench.sweep.start import UnknownPreset
    from attnbench.verbs.compare import NothingToCompare
    from impls import UnknownVariant
    from impls.masks import InvalidMask
    from impls.outside import BrokenTable
    from impls.problem import InvalidProblem
    from impls.spec import InvalidRow

    return isinstance(
        error,
        BadEmbeddings | BadPicture | StoreError | WorkerLost | UnknownPreset | UnknownVariant
        | InvalidMask | BrokenTable | InvalidProblem | InvalidRow
        | NothingToCompare | BadCommit | DeviceBusy,
    )  # fmt: skip


def show_list(given: argparse.Namespace) -> int:
    """``attnbench list``"""
    import impls
    from attnbench.machine import this_machine, why_not

    table = impls.table(given.table)
    rows: list[tuple[Any, str | None, str]] = []
    for row in table.rows.values():
        missing = why_not(row, this_machine())
        rows.append((row, missing.reason if missing else None, missing.remedy if missing else ""))
    if given.json:
        listed: list[dict[str, Any]] = [
            {**row.to_dict(), "available": reason is None, "reason": reason or "", "remedy": remedy}
            for row, reason, remedy in rows
        ]
        listed += [
            {"name": b.name, "family": "", "computes": "", "level": "", "available": False,
             "reason": f"the row is broken: {b.reason}", "remedy": b.remedy}
            for b in table.broken
        ]  # fmt: skip
        print(json.dumps(listed, indent=1))
    else:
        from attnbench.report import terminal

        terminal.variants(rows, table.broken)
    return 0


def show(given: argparse.Namespace) -> int:
    """``attnbench show NAME``"""
    import impls
    from attnbench.answer import words
    from attnbench.answer.variant import mathematics
    from attnbench.machine import this_machine, why_not

    row = impls.table(given.table).find(given.name)
    if given.text is None and (given.out or given.embeddings or given.mask):
        raise words.BadEmbeddings(
            "--out, --embeddings and --mask go with --text: a map needs a sentence"
        )
    if given.text is not None:
        return _show_map(given, row)
    missing = why_not(row, this_machine())
    reason, remedy = (missing.reason, missing.remedy) if missing else (None, "")
    if given.json:
        about = {
            "mathematics": mathematics(row),
            "available": missing is None,
            "reason": reason or "",
        }
        print(json.dumps({**row.to_dict(), **about, "remedy": remedy}, indent=1))
    else:
        from attnbench.report import terminal

        terminal.variant(row, mathematics(row), reason, remedy)
    return 0


def _show_map(given: argparse.Namespace, row: Any) -> int:
    from pathlib import Path

    from attnbench.answer import words
    from attnbench.answer.variant import map_of

    tokens = words.tokens(given.text)
    vectors = words.vectors(tokens, given.embeddings)
    taken = row.on("cpu", "masks") or ("none",)
    mask = given.mask or ("none" if "none" in taken else taken[0])
    weights = map_of(row, mask, vectors)
    if given.out:
        from attnbench.report import map_picture

        map_picture.draw(tokens, weights, row.label, Path(given.out))
        say(f"drawn in {given.out}")
    if given.json:
        print(json.dumps({"variant": row.label, "words": tokens, "weights": weights}))
    else:
        from attnbench.report import terminal

        terminal.attention_map(tokens, weights)
    return 0


def check(given: argparse.Namespace) -> int:
    """``attnbench check [VARIANT …]``"""
    import impls
    from attnbench.lock import lock_for
    from attnbench.machine import this_machine
    from attnbench.measure.settings import Settings
    from attnbench.sweep import progress
    from attnbench.sweep.engine import LocalEngine
    from attnbench.sweep.plan import make_plan
    from attnbench.sweep.run import check_cells
    from attnbench.sweep.start import find_preset, pinned

    machine = this_machine()
    grid = find_preset(given.preset or "check", machine)
    if given.variants:  # then the levels are theirs
        grid = grid.with_(level=())
    grid = grid.with_(**arguments.grid_changes(given))
    plan = make_plan(impls.table(given.table), given.variants, grid, machine)
    settings = Settings(threads=pinned(given.threads, machine))
    watching = progress.watcher(len(plan.to_run))
    with lock_for([grid.device]), LocalEngine(settings) as engine, watching as watcher:
        records = check_cells(plan, engine, given.seed or 0, watcher)
    if given.json:
        print(json.dumps([r.to_dict() for r in records], indent=1))
    else:
        from attnbench.report import terminal

        terminal.checks(records)
    return _finding(records)


def run(given: argparse.Namespace) -> int:
    """``attnbench run [VARIANT …]``"""
    from pathlib import Path

    from attnbench.lock import lock_for
    from attnbench.machine import this_machine
    from attnbench.store import StoreError, read_records
    from attnbench.sweep import progress, start
    from attnbench.sweep.engine import LocalEngine
    from attnbench.sweep.run import Interrupt, Stopped, sweep

    changes = arguments.grid_changes(given)
    if given.resume is not None:
        rest = (given.variants, given.preset, given.table, given.seed, given.threads)
        if changes or any(x not in (None, []) for x in rest):
            raise StoreError("--resume takes the grid of the run it names; leave the rest out")
        begun = start.resume(Path(given.resume))
    else:
        grid = start.find_preset(given.preset, this_machine()).with_(**changes)
        begun = start.begin(
            given.variants, grid, given.table, Path(given.out), seed=given.seed or 0,
            threads=given.threads, energy=given.energy,
        )  # fmt: skip
    folder, left = begun.folder, [c for c in begun.plan.to_run if c.key not in begun.done]
    say(begun.plan.sentence() + (f"; {len(begun.done)} done before" if begun.done else ""))
    for warning in begun.plan.warnings():
        say(warning)
    say(f"records go to {folder.path}")
    try:
        devices, watching = {c.problem.device for c in left}, progress.watcher(len(left))
        with lock_for(devices), LocalEngine(begun.settings) as engine, watching as watcher:
            sweep(begun.plan, begun.done, folder, engine, watcher, Interrupt(say))
    except (Stopped, KeyboardInterrupt):
        say(f"stopped; what was measured is kept. Go on with: attnbench run --resume {folder.path}")
        return INTERRUPTED
    finally:
        folder.close()
    return _conclude(list(read_records(folder.path)), folder.path, as_json=given.json)


def _conclude(records: list[Record], where: Path, *, as_json: bool) -> int:
    """The picture, the table and the answer."""
    from attnbench.answer.verdict import answers
    from attnbench.report import scaling_picture

    left_out = ("unsupported", "unavailable")
    records = sorted(records, key=lambda r: str(r.status) in left_out)  # what was run comes first
    found = list(answers(records))
    pictures = [where / "scaling.png", where / "scaling.svg"]
    if scaling_picture.draw(
        records, f"attnbench run {where.name} on {where.parent.name}", pictures
    ):
        more = len(scaling_picture.regimes(r for r in records if r.time is not None)) - 1
        rest = f"; {more} other regime{'s' * (more > 1)} in the table alone" if more else ""
        say(f"drawn in {pictures[0]}{rest}")
    trust = _trust(where)
    if as_json:
        sent = {"run": str(where), "selfcheck": trust, "records": [r.to_dict() for r in records],
                "answers": [a.to_dict() for a in found]}  # fmt: skip
        print(json.dumps(sent))
    else:
        from attnbench.report import terminal

        terminal.results(records)
        print()
        for answer in found:
            print(answer.sentence())
        if not found:
            print("nothing exact was measured, so there is no fastest to name")
        print(trust)
    return _finding(records)


def _trust(where: Path) -> str:
    """What the ruler's self-check said, on the machine of a run."""
    from attnbench.selfcheck import load

    found = load(where.parent.parent, where.parent.name)
    if found is None:
        return "ruler self-check: not run here yet; 'attnbench selfcheck' takes some minutes"
    return f"{found['line']} ({found['date'][:10]})"


def _finding(records: list[Record]) -> int:
    """1 where a variant was not what it says it is; 2 where nothing was asked of any."""
    if all(str(r.status) in ("unsupported", "unavailable") for r in records):
        say(
            "attnbench: nothing was run: no variant takes these problems here, for the reasons said"
        )
        return 2
    bad = {"wrong", "implausible", "failed", "crashed"}
    return int(any(str(r.status) in bad for r in records))


VERBS = {"list": show_list, "show": show, "env": env, "check": check, "run": run,
         "profile": profile, "compare": compare, "selfcheck": selfcheck}  # fmt: skip
