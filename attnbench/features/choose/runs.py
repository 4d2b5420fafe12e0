"""The run that a choice rests on: one measured before, or a new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnbench.answer.choose import (
    Choice,
    Excluded,
    Wants,
    Why,
    choose,
    contest_row,
    make_choice,
    settle,
)
from attnbench.answer.ranking import MARGIN
from attnbench.command.progress import Progress
from attnbench.command.terminal import say
from attnbench.core.disk import StoreError, short, table_words
from attnbench.core.format import first_few, size
from attnbench.core.machine import this_machine, why_not
from attnbench.core.record import FINDINGS, PROTOCOL
from attnbench.core.settings import KEPT, PLAIN, allocator_of
from attnbench.core.stats import Comparison
from attnbench.core.store import find_runs, named_run, read_header, read_records, some_runs
from attnbench.core.tuned import TunedOptions
from attnbench.core.wire import plain
from attnbench.sweep import compare, start
from attnbench.sweep.compare import Compared
from attnbench.sweep.engine import engine_on
from attnbench.sweep.places import Local
from attnbench.sweep.plan import grid_of, make_plan
from attnbench.sweep.sweep import Interrupt, Stopped, sweep
from impls.errors import CantBeDone
from impls.problem import Problem

if TYPE_CHECKING:
    from argparse import Namespace

    from attnbench.core.record import Record
    from attnbench.sweep.start import Run
    from impls import Table

ALIKE = ("phase", "dtype", "level", "device")
"""Fields that a record must share with a problem to say anything about it; a time needs the inputs
too.
"""
MOST_NAMES = 4
"""So many of the variants that a run lacks are named."""
NEWEST = 12
"""So many runs of this machine are looked at."""
SCOUT_S, SAMPLING_S = 0.05, 0.3
"""Seconds of sampling on the shorter sequence, and on the problem itself."""


def answer(arguments: Namespace, problem: Problem, wants: Wants, table: Table) -> Choice:
    """The choice for a problem: from the runs named, one that was measured here, or a new one.

    Raises CantBeDone where these hold no run, or it can't be measured.
    """
    problem = start.as_recorded(problem)
    if arguments.source:
        return best_of(list(map(named_run, arguments.source)), problem, wants, table)
    if not arguments.measure:
        settings = arguments.threads, arguments.table, arguments.allocator
        here = measured_here(Path(arguments.out), *settings)
        if (choice := first_answer(here, problem, wants, table)) is not None:
            say(f"from {choice.source}, which was measured here; to measure anew: --measure")
            return choice
    return measure_anew(problem, wants, table, arguments)


# ---- from runs that there are --------------------------------------------------------------------


def header_of(run: Path) -> dict[str, Any]:
    """Its header; raises StoreError where it can't be read, or has another protocol."""
    header = read_header(run)
    if header.get("protocol") != PROTOCOL:
        raise StoreError(
            f"{run} was measured with protocol {header.get('protocol')} and this attnbench has "
            f"{PROTOCOL}: measure it again"
        )
    return header


def from_run(
    run: Path,
    problem: Problem,
    wants: Wants,
    table: Table,
    tuned: TunedOptions | None = None,
) -> Choice:
    """The choice of one run; raises StoreError where it can't be read, or has another protocol.

    ``tuned``: the options that hold now; records of variants with others are left out.
    """
    header = header_of(run)
    contest = header.get("contest") or {}
    if contest.get("problem") != plain(problem):
        contest = {}
    alike = read_records(run, lambda p: all(getattr(p, x) == getattr(problem, x) for x in ALIKE))
    alike = [r for r in alike if r.problem.inputs == problem.inputs or r.status in FINDINGS]
    left_out = _left_out(contest, wants)
    records = [r for r in alike if tuned is None or _tuned_as_now(r, table, tuned)]
    choice = choose(records, problem, wants, table, left_out=left_out, source=str(run))
    pairs = [
        Compared(
            problem=problem,
            variant=pair["judged"],
            against=pair["against"],
            comparison=msgspec.convert(pair, Comparison),
        )
        for pair in contest.get("pairs", ())
    ]
    threads = (header.get("settings") or {}).get("threads")
    settings = ["--threads", str(threads)] if threads else []
    settings += ["--allocator", KEPT] if allocator_of(header) == KEPT else []
    return replace(settle(choice, pairs), settings=(*settings, *table_words(header)))


def _tuned_as_now(record: Record, table: Table, tuned: TunedOptions) -> bool:
    """True where its variant would run with the same options now."""
    try:
        row = table.find(record.variant)
    except CantBeDone:  # the table has none of that name
        return True
    now = tuned.applied(row, record.problem).chosen
    return all(record.options.get(name, row.options[name]) == now[name] for name in row.tunable)


def _left_out(contest: Mapping[str, Any], wants: Wants) -> list[Excluded]:
    """The variants that a run made for a choice did not measure, with the reasons."""
    most, excluded = wants.max_memory, []
    for name, peak in contest.get("too_large", {}).items():
        if most is not None and peak > most:
            reason = f"by its own formula it needs {size(peak)}"
            excluded.append(Excluded(name, Why.MEMORY, reason, {"memory": peak}))
    for name, times in contest.get("behind", {}).items():
        reason = f"on {contest['shorter']} it took {times:.0f} times as long as the best"
        excluded.append(Excluded(name, Why.SLOW, reason))
    return excluded


def best_of(paths: Sequence[Path], problem: Problem, wants: Wants, table: Table) -> Choice:
    """The choice of the run that knows most; raises :class:`StoreError` if there is no run."""
    choices = [from_run(run, problem, wants, table) for run in some_runs(paths)]
    ranks = [(c.ranking.winner.measured, len(c.ranking.all)) if c.ranking else () for c in choices]
    return choices[ranks.index(max(ranks))]


def first_answer(
    runs: Iterable[Path], problem: Problem, wants: Wants, table: Table
) -> Choice | None:
    """The choice, of the runs that lack no variant that could win here, of the first that measured
    the problem itself, else of the first that has an answer. Names a run that is passed over.
    """
    predicted: Choice | None = None
    tuned = TunedOptions(this_machine())
    for run in runs:
        try:
            if wants.same_bits and not read_header(run).get("same_bits"):
                continue  # each variant was tried once, on whichever problem came first
            choice = from_run(run, problem, wants, table, tuned=tuned)
        except StoreError:  # one that can't be read answers nothing
            continue
        if choice.ranking is None:
            continue
        absent = [e.variant for e in choice.excluded if e.why is Why.ABSENT]
        missing = [x for x in absent if why_not(table.rows[x], this_machine()) is None]
        measured = choice.ranking.winner.measured
        if measured and not missing:
            return choice
        if measured:
            say(
                f"not from {run}, which measured this without {first_few(missing, MOST_NAMES)}, "
                f"which may be faster; to use it anyway: --from {run}"
            )
        elif not missing:
            predicted = predicted or choice
    return predicted


def measured_here(
    out: Path, threads: int | None, tables: Sequence[str] = (), allocator: str | None = None
) -> Iterator[Path]:
    """The runs of this machine as it is now, with these tables and settings and this protocol, the
    newest first.

    A run of several legs is only used where it is named.
    """
    machine = this_machine()
    if not (out / machine.name).is_dir():
        return
    settings = {"threads": threads or machine.threads, "allocator": allocator or PLAIN}
    now: dict[str, Any] = {"protocol": PROTOCOL, "machine": machine.facts(), "settings": settings}
    now["tables"] = [str(Path(table).resolve()) for table in tables]
    for run in sorted(find_runs([out / machine.name]), reverse=True)[:NEWEST]:
        try:
            header = read_header(run)
        except StoreError:
            continue
        if "legs" not in header and _circumstances(header) == _circumstances(now):
            yield run


def _circumstances(header: Mapping[str, Any]) -> list[Any]:
    """All that must be the same for times to hold."""
    machine, settings = header.get("machine") or {}, header.get("settings") or {}
    versions = machine.get("versions") or {}
    return [
        *(header.get("protocol"), settings.get("threads"), allocator_of(header)),
        list(map(short, header.get("tables", []))),
        *(versions.get(name) for name in ("torch", "triton")),
        *(machine.get(name) for name in ("cpu", "cores", "torch_cuda")),
        list(machine.get("gpus") or ()),
    ]


# ---- a new run -----------------------------------------------------------------------------------


def measure_anew(problem: Problem, wants: Wants, table: Table, arguments: Namespace) -> Choice:
    """The choice of a new run of this problem alone, with pairs of what its medians leave near.

    The run's header keeps what was left out, why, and the pairs, for the next time it is read.
    Raises CantBeDone where it can't be measured.
    """
    names = [
        row.name
        for row in table.rows.values()
        if wants.allows(row.operator) and row.level == problem.level and not row.ranks
    ]
    grid = grid_of([problem], "one problem").with_(budget=SAMPLING_S)
    plan = make_plan(table, names, grid, this_machine(), [problem], tuned=True)
    names, too_large = compare.within(plan, wants.max_memory)
    contest: dict[str, Any] = {"problem": plain(problem), "too_large": too_large}
    if (less := compare.shorter(plan)) is not None:
        say(f"first a shorter sequence, {less}, to see who could win")
        scout = _run(names, less, SCOUT_S, arguments)
        names, behind = compare.hopeful(scout.folder.stored.records)
        contest |= {"shorter": str(less), "behind": behind}
    if not names:
        return make_choice(problem, wants, _left_out(contest, wants), margin=MARGIN)
    run = _run(names, problem, SAMPLING_S, arguments, same_bits=wants.same_bits)
    run.folder.header["contest"] = contest
    run.folder.save_header()
    pairs = _pairs(from_run(run.folder.path, problem, wants, table), run)
    contest["pairs"] = [contest_row(pair) for pair in pairs]
    run.folder.save_header()
    return from_run(run.folder.path, problem, wants, table)


def _run(
    names: Sequence[str],
    problem: Problem,
    budget_s: float,
    arguments: Namespace,
    *,
    same_bits: bool = False,
) -> Run:
    """A run of some variants on one problem, kept like any other."""
    run = start.begin(
        names,
        grid_of([problem], "one problem").with_(budget=budget_s),
        arguments.table,
        Path(arguments.out),
        seed=arguments.seed or 0,
        threads=arguments.threads,
        allocator=arguments.allocator,
        same_bits=same_bits,
        problems=[problem],
        command=getattr(arguments, "command", None),
    )
    say(f"{run.plan.sentence(run.about_s)}; records go to {run.folder.path}")
    for note in run.plan.tuned_notes():
        say(note)

    with (
        closing(run.folder),
        Local().slots(run.settings, problem.device) as slots,
        Progress() as progress,
    ):
        try:
            sweep(run.plan, run.folder, slots, progress, Interrupt(say))
        except Stopped:
            raise KeyboardInterrupt from None
    return run


def _pairs(choice: Choice, run: Run) -> list[Compared]:
    """Comparisons in pairs of those that the medians leave near each other."""
    if choice.ranking is None:
        return []
    names = [c.variant for c in choice.ranking.all]
    near = compare.near_the_best(run.folder.stored.records, names)
    if len(near) < 2:
        return []
    say(f"in pairs: {', '.join(near)}")
    cells = {c.variant.label: c for c in run.plan.to_run}
    some, seconds = [cells[name] for name in near], choice.ranking.winner.median_s
    with engine_on(choice.problem.device, run.settings) as engine, Progress() as progress:
        progress.expect([compare.PAIRS_S] * (len(some) - 1))
        return compare.in_pairs(some, seconds, engine, run.folder.header, say, progress.step)
