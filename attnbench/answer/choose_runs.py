"""Which run a choice rests on, or a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.choose import Choice, choose, ranked, settled
from attnbench.answer.ranking import MARGIN
from attnbench.answer.wants import Excluded, Why
from attnbench.core.disk import StoreError, long, short
from attnbench.core.format import size
from attnbench.core.lock import lock_for
from attnbench.core.machine import this_machine, why_not
from attnbench.core.record import PROTOCOL
from attnbench.core.store import find_runs, read_header, read_records
from attnbench.sweep import compare, start
from attnbench.sweep.compare import ContestResult
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.places import Local
from attnbench.sweep.plan import grid_of, make_plan
from attnbench.sweep.sweep import sweep

if TYPE_CHECKING:
    from attnbench.answer.choose import Choice
    from attnbench.answer.wants import Wants
    from attnbench.sweep.plan import Plan
    from attnbench.sweep.presets import Preset
    from attnbench.sweep.start import Run
    from attnbench.sweep.sweep import Interrupt, Watcher
    from impls import Table
    from impls.problem import Problem


ALIKE = ("phase", "dtype", "inputs", "level", "device")
"""What a record must share with a problem to say anything of it."""
NAMED = 4
NEWEST = 12
"""So many runs of this machine are looked at."""


def from_run(
    run: Path,
    problem: Problem,
    wants: Wants,
    table: Table,
    contest: Mapping[str, Any] | None = None,
) -> Choice:
    """What one run says. ``contest``: how it was made, where its header does not say so yet."""
    header = read_header(run)
    if header.get("protocol") != PROTOCOL:
        raise StoreError(
            f"{run} was measured with protocol {header.get('protocol')} and this attnbench has "
            f"{PROTOCOL}: measure it again"
        )
    if contest is not None:
        header["contest"] = contest
    seen = list(read_records(run, lambda other: _is_alike(other, problem)))
    found = choose(
        seen,
        problem,
        wants,
        table,
        ceilings=header.get("ceilings") or {},
        left_out=left_out(header, problem, wants),
        source=str(run),
    )
    taken = [
        ContestResult.from_dict(values) for values in _contest(header, problem).get("pairs", ())
    ]
    return replace(settled(found, taken), settings=_settings(header))


def _is_alike(one: Problem, other: Problem) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ALIKE)


def left_out(header: Mapping[str, Any], problem: Problem, wants: Wants) -> list[Excluded]:
    """Whom a run that was made for a choice did not measure, and why."""
    about = _contest(header, problem)
    large = [
        Excluded(name, Why.MEMORY, f"by its own formula it needs {size(peak)}", {"memory": peak})
        for name, peak in about.get("too_large", {}).items()
        if wants.max_memory is not None and peak > wants.max_memory
    ]
    times = about.get("behind", {}).items()
    return large + [
        Excluded(name, Why.SLOW, f"on {about['shorter']} it took {x:.0f} times as long as the best")
        for name, x in times
    ]


def _contest(header: Mapping[str, Any], problem: Problem) -> Mapping[str, Any]:
    """What a run that was made for a choice says of it; nothing of another problem."""
    about: Mapping[str, Any] = header.get("contest") or {}
    return about if about.get("problem") == problem.to_dict() else {}


def _settings(header: Mapping[str, Any]) -> tuple[str, ...]:
    threads = (header.get("settings") or {}).get("threads")
    words = ["--threads", str(threads)] if threads else []
    return (
        *words,
        *(w for table in header.get("tables") or () for w in ("--table", str(long(table)))),
    )


def best_of(paths: Iterable[Path], problem: Problem, wants: Wants, table: Table) -> Choice:
    """Of several runs the one that knows most; raises a sentence where there is none."""
    asked = list(paths)
    runs = list(find_runs(asked))
    if not runs:
        raise StoreError(f"there is no run in {', '.join(map(str, asked))}")
    return max((from_run(run, problem, wants, table) for run in runs), key=_knows)


def first_that_says(
    runs: Iterable[Path], problem: Problem, wants: Wants, table: Table, say: Callable[[str], None]
) -> Choice | None:
    """Of runs that held everybody who could win here, the first that measured the problem itself,
    or else the first that has an answer. A run that would answer, but for who is missing, is said.
    """
    predicted: Choice | None = None
    for run in runs:
        try:
            found = from_run(run, problem, wants, table)
        except StoreError:  # one that can't be read answers nothing
            continue
        if found.winner is None:
            continue
        if missing := [e.variant for e in found.excluded if _can_run(table, e)]:
            if found.winner.measured:
                say(_passed_over(run, missing))
            continue
        if found.winner.measured:
            return found
        predicted = predicted or found
    return predicted


def _passed_over(run: Path, missing: Sequence[str]) -> str:
    more = f" and {len(missing) - NAMED} more" * (len(missing) > NAMED)
    return (
        f"not from {run}, which measured this without {', '.join(missing[:NAMED])}{more}, who "
        f"might win; to rest on it alone: --from {run}"
    )


def _can_run(table: Table, one: Excluded) -> bool:
    """Whether it was not measured and might have been."""
    return one.why is Why.ABSENT and why_not(table.rows[one.variant], this_machine()) is None


def measured_here(out: Path, threads: int | None, tables: Sequence[str] = ()) -> Iterator[Path]:
    """The runs of this machine as it is now, with these tables, the newest first.

    A run of several legs is only rested on where it is named.
    """
    machine = this_machine()
    if not (out / machine.name).is_dir():
        return
    named = [short(str(Path(table).resolve())) for table in tables]
    for run in sorted(find_runs([out / machine.name]), reverse=True)[:NEWEST]:
        try:
            header = read_header(run)
        except StoreError:
            continue
        same = list(map(short, header.get("tables", []))) == named and "legs" not in header
        if same and _as_now(header, machine.to_dict(), threads or machine.threads):
            yield run


def _as_now(header: dict[str, Any], machine: dict[str, Any], threads: int) -> bool:
    """Whether a run measured what would be measured now."""
    then, settings = header.get("machine") or {}, header.get("settings") or {}
    alike = ("cpu", "cores", "gpus", "torch_cuda")
    now = {name: list(x) if isinstance(x := machine[name], tuple) else x for name in alike}
    versions = ("torch", "triton")
    return (
        header.get("protocol") == PROTOCOL
        and all(then.get(name) == now[name] for name in alike)
        and all((then.get("versions") or {}).get(v) == machine["versions"].get(v) for v in versions)
        and settings.get("threads") == threads
    )


def _knows(choice: Choice) -> tuple[bool, bool, int]:
    """How much a choice rests on: an answer, measured, among many."""
    winner = choice.winner
    return winner is not None, winner is not None and winner.measured, len(choice.ranked)


SCOUT_S, SAMPLING_S = 0.05, 0.3
"""Seconds of sampling on the shorter sequence, and on the problem itself."""


@dataclass(frozen=True)
class Means:
    """What measuring needs to know, and whom it tells."""

    say: Callable[[str], None]
    watching: Callable[[int], AbstractContextManager[Watcher]]
    """Whoever shows the progress of so many cells."""
    interrupt: Callable[[], Interrupt]
    out: Path = Path("results")
    tables: Sequence[str] = ()
    seed: int = 0
    threads: int | None = None
    command: str | None = None


def measured(problem: Problem, wants: Wants, table: Table, means: Means) -> Choice:
    """A run of this problem alone, then pairs of whom its medians don't tell apart.

    Who was left out, and why, and what the pairs said, stands in the run's header: it is read again
    when the same is asked once more.
    """
    plan = _plan(problem, wants, table)
    names, too_large = compare.within(plan, wants.max_memory)
    about: dict[str, Any] = {"problem": problem.to_dict(), "too_large": too_large, "pairs": []}
    if (less := compare.shorter(plan)) is not None:
        means.say(f"first a shorter sequence, {less}, to see who could win")
        scouted = _carried_out(names, less, SCOUT_S, means)
        names, behind = compare.hopeful(list(read_records(scouted.folder.path)))
        about |= {"shorter": str(less), "behind": behind}
    if not names:
        return ranked(problem, wants, left_out({"contest": about}, problem, wants), margin=MARGIN)
    run = _carried_out(names, problem, SAMPLING_S, means)
    path = run.folder.path
    found = from_run(path, problem, wants, table, about)
    about["pairs"] = [held.to_dict() for held in _held(found, run, means)]
    run.folder.header["contest"] = about
    run.folder.save_header()
    return from_run(path, problem, wants, table)


def _plan(problem: Problem, wants: Wants, table: Table) -> Plan:
    """A cell of everybody who may be asked at all."""
    names = [
        row.name
        for row in table.rows.values()
        if row.computes in wants.computes and row.level == problem.level and not row.ranks
    ]
    return make_plan(table, names, _grid(problem, SAMPLING_S), this_machine(), [problem])


def _grid(problem: Problem, budget_s: float) -> Preset:
    return grid_of([problem], "one problem").with_(budget=budget_s)


def _carried_out(names: Sequence[str], problem: Problem, budget_s: float, means: Means) -> Run:
    """A run of some variants on one problem, kept like any other."""
    begun = start.begin(
        names,
        _grid(problem, budget_s),
        means.tables,
        means.out,
        seed=means.seed,
        threads=means.threads,
        problems=[problem],
        command=means.command,
    )
    means.say(f"{begun.plan.sentence()}; records go to {begun.folder.path}")
    with (
        closing(begun.folder),
        Local().slots(begun.settings, problem.device) as slots,
        means.watching(len(begun.plan.to_run)) as watcher,
    ):
        sweep(begun.plan, begun.done, begun.folder, slots, watcher, means.interrupt())
    return begun


def _held(found: Choice, run: Run, means: Means) -> list[compare.ContestResult]:
    """Pairs of those that the medians leave near each other."""
    if found.winner is None:
        return []
    names = [c.variant for c in found.ranked]
    near = compare.near_the_best(list(read_records(run.folder.path)), names)
    if len(near) < 2:
        return []
    means.say(f"in pairs: {', '.join(near)}")
    cells, device = {c.variant.label: c for c in run.plan.to_run}, found.problem.device
    with (
        lock_for([device]),
        LocalEngine(run.settings, limited=device == "cpu") as engine,
    ):
        held = [cells[name] for name in near]
        return compare.in_pairs(held, found.winner.median_s, engine, run.folder.header, means.say)


def answer(
    problem: Problem,
    wants: Wants,
    table: Table,
    means: Means,
    *,
    named: Sequence[Path] = (),
    anew: bool = False,
) -> Choice:
    """``named``: runs to answer from, and nothing else. ``anew``: measure, whatever there is."""
    if named:
        return best_of(named, problem, wants, table)
    if not anew:
        here = measured_here(means.out, means.threads, means.tables)
        if (found := first_that_says(here, problem, wants, table, means.say)) is not None:
            means.say(f"from {found.source}, which was measured here; to measure anew: --measure")
            return found
    return measured(problem, wants, table, means)
