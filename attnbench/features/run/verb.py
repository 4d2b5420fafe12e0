"""``attnbench run [VARIANT …]``: measure a grid, and answer."""

from __future__ import annotations

import json
from contextlib import contextmanager
from itertools import chain
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from attnbench.command import arguments
from attnbench.command.terminal import INTERRUPTED, finding, say
from attnbench.core.format import duration, roughly
from attnbench.core.wire import plain
from attnbench.features.report.verb import report_of
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from attnbench.command.progress import Progress
    from attnbench.models.capture.calls import SeenCalls
    from attnbench.report.scenes import ReportRun
    from attnbench.sweep.places import Places
    from attnbench.sweep.presets import Preset
    from attnbench.sweep.start import Run
    from impls.problem import Problem


def run(args: argparse.Namespace) -> int:
    """``attnbench run [VARIANT …]``"""
    from attnbench.command.progress import Progress
    from attnbench.core.record import NOT_TRIED
    from attnbench.report.scenes import read_run
    from attnbench.sweep.sweep import Stopped

    start = monotonic()
    until = inf if args.limit is None else start + args.limit
    stopped, left_over = False, 0
    with places_of(args) as places:
        new = start_run(args, places)
        folder, count = new.folder, len(new.left)
        try:
            with Progress(every=args.all) as progress:
                left_over = measure(new, places, progress, until)
            folder.check_in_place()
        except (Stopped, KeyboardInterrupt):
            stopped = True
        finally:
            folder.close()
    result = read_run(folder.path, stored=folder.stored)
    left = ""
    if stopped:
        left = f"stopped; what was measured is kept. Go on with: {folder.resumed_by}"
    elif left_over:
        left = (
            f"the limit of {duration(args.limit)} is reached: {left_over} of {count} "
            f"measurements were not started. Go on with: {folder.resumed_by}"
        )
    if left and all(r.status in NOT_TRIED for r in result.records):
        say(left)
        return INTERRUPTED if stopped else 2  # no results to conclude from
    status = _conclude(result, args, monotonic() - start)
    if left:
        say(left)
    return INTERRUPTED if stopped else status


def measure(run: Run, places: Places, progress: Progress, until: float = inf) -> int:
    """Tell what will be measured, and measure it: how many cells have no record then."""
    from attnbench.core.machine import gpu_warnings
    from attnbench.sweep.plan import ceilings_s
    from attnbench.sweep.sweep import Interrupt, sweep

    plan, folder, tell = run.plan, run.folder, progress.tell
    device = next((c.problem.device for c in plan.to_run), "cpu")
    before = len(folder.stored.records)
    tell(plan.sentence(run.about_s) + (f"; {before} done before" if before else ""))
    notes = [
        f"this is another leg of the run, ranked apart: {'; '.join(leg['changes'])}"
        for leg in folder.header.get("legs", ())[-1:]
    ]
    notes += folder.stored.faults()
    if folder.header.get("code", {}).get("commit") is None:
        notes.append(
            "this attnbench lies in no git checkout of its own, so the records can't say which "
            "commit they are of"
        )
    notes += gpu_warnings(places.machine) if device.startswith("cuda") else ()
    for line in [places.note, *(f"note: {note}" for note in notes), *plan.warnings()]:
        if line:
            tell(line)
    tell(f"records go to {folder.path}")
    starts_s = ceilings_s()
    progress.at(0, len(run.left), run.about_s, "the worker starts", begins_s=starts_s)
    with places.slots(run.settings, device) as slots:
        return sweep(plan, folder, slots, progress, Interrupt(tell), until)


@contextmanager
def places_of(args: argparse.Namespace) -> Iterator[Places]:
    """Where cells can be measured: this machine, or a cluster."""
    from attnbench.sweep.places import Local

    if args.engine != "ray":
        if args.address:
            raise CantBeDone("--address requires --engine ray")
        yield Local(args.devices or ())
        return
    if args.devices:
        raise CantBeDone("--devices are of this machine; --engine ray takes those of its nodes")
    from attnbench.sweep.cluster import connected

    with connected(args.address, args.device) as cluster:
        yield cluster


def start_run(args: argparse.Namespace, places: Places) -> Run:
    """The run that goes on, or a new one over a preset's grid, or over problems in its place.

    Raises CantBeDone for what can't be asked, as all that makes a run does.
    """
    from attnbench.sweep import start
    from attnbench.sweep.plan import grid_of

    if args.resume is not None:
        return _resumed(args, places)
    if args.anyway:
        raise CantBeDone("--anyway requires --resume RUN")
    changes = arguments.grid_changes(args)
    beside = [f"--{name}".replace("_", "-") for name in changes if name != "budget"]
    for name in ("preset", "model"):
        beside += [f"--{name}"] * (getattr(args, name) is not None)
    problems = problems_of(args.problems, beside)
    if args.model is not None:
        grid = _model_grid(args, changes, args.device or places.kind or places.machine.devices[-1])
    elif problems:
        grid = grid_of(problems, "the problems of a program").with_(budget=changes.get("budget"))
    else:
        grid = start.find_preset(args.preset, places.machine)
        if args.preset is None and "seq" in changes:
            phases = tuple(dict.fromkeys(chain(*(part.phase for part in grid.products))))
            # the first part's mask alone: what has another has lengths of its own
            grid = grid.products[0].with_(title=grid.title, phase=phases)
        grid = grid.with_(**changes).with_(device=places.kind)
    if args.tp is not None and args.model is None:
        raise CantBeDone("--tp requires --model")
    return start.begin(
        args.variants,
        grid,
        args.table,
        Path(args.out),
        seed=args.seed or 0,
        threads=args.threads,
        allocator=args.allocator,
        energy=args.energy,
        same_bits=args.same_bits,
        machine=places.machine,
        command=getattr(args, "command", None),
        problems=problems,
    )


def _model_grid(args: argparse.Namespace, changes: Mapping[str, Any], device: str) -> Preset:
    """The grid of ``--model``; raises CantBeDone where it can't be."""
    from attnbench.sweep.models import grid_asked

    if args.preset is not None:
        raise CantBeDone("--model and --preset are both grids; leave one of them out")
    grid = grid_asked(args.model, args.tp, device, changes)
    say(grid.title)
    return grid


def problems_of(calls: SeenCalls | str | Path | None, beside: Sequence[str]) -> list[Problem]:
    """The problems of a captured program, or of its file; none where none is given.

    ``beside``: the options that say the problems too. Raises CantBeDone where there are some, or
    where no call can be described as a problem.
    """
    if calls is None:
        return []
    from attnbench.models.capture.calls import SeenCalls

    if beside:
        raise CantBeDone(
            f"the problems come from the program's calls; leave out {', '.join(beside)}"
        )
    captured = calls if isinstance(calls, SeenCalls) else SeenCalls.read(Path(calls))
    if not (problems := captured.problems()):
        why = "; ".join(dict.fromkeys(s.note for s in captured.sites if s.note)) or "there are none"
        raise CantBeDone(f"none of the program's calls can be described as a problem: {why}")
    if not captured.complete:
        say(f"note: the calls are not complete; {' '.join(captured.unseen)}")
    return problems


def _resumed(args: argparse.Namespace, places: Places) -> Run:
    from attnbench.core.disk import StoreError
    from attnbench.core.store import named_run
    from attnbench.sweep import start

    names = ("variants", "preset", "model", "tp", "seed", "threads", "allocator", "problems")
    rest = [args.energy, args.same_bits, *(getattr(args, n) not in (None, []) for n in names)]
    if arguments.grid_changes(args) or any(rest):
        raise StoreError("--resume takes the grid of the run it names; leave the rest out")
    return start.resume(
        named_run(args.resume, Path(args.out)), places.machine, args.table, anyway=args.anyway
    )


def _conclude(run: ReportRun, arguments: argparse.Namespace, took_s: float) -> int:
    """The report, and the answer: as data, or on the screen."""
    from attnbench.answer.layers import together
    from attnbench.answer.ranking import answers, margin_reason
    from attnbench.core.record import NOT_TRIED
    from attnbench.features.run import view
    from attnbench.report import tidy
    from attnbench.report.sentences import advice

    records = sorted(run.records, key=lambda r: r.status in NOT_TRIED)  # measured cells first
    report = None if arguments.no_report else report_of(run)
    if arguments.csv:
        tidy.show(tidy.measurements(run))
        return finding(records)
    if arguments.json:
        values = {
            "run": str(run.path),
            "selfcheck": run.selfcheck,
            "records": [plain(record) for record in records],
            "answers": [answer.to_dict() for answer in answers(records)],
        }
        if run.layers:
            values["layers"] = [each.to_dict() for each in run.layers]
            values["together"] = [each.to_dict() for each in together(run.layers)]
        print(json.dumps(values))
        return finding(records)
    if arguments.all or arguments.tables:
        view.show_results(records)
        lines = [f"{a.where}: {advice(a)}" for a in answers(records)]
        none = "nothing exact was measured, so there is no fastest variant"
        lines += [margin_reason(records) if lines else none, run.selfcheck]
        print("", *filter(None, lines), "", sep="\n")
    if not arguments.tables:
        view.show_answer(run, roughly(took_s), report.index if report else None)
    return finding(records)
