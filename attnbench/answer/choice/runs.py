"""Which runs a choice may rest on: one at a time, since numbers of different runs never mix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.choice.candidates import Excluded, Why
from attnbench.answer.choice.choice import Choice
from attnbench.answer.choice.chosen import choose
from attnbench.answer.choice.settled import settled
from attnbench.answer.said import size
from attnbench.machine import this_machine, why_not
from attnbench.paths import long, short
from attnbench.record import PROTOCOL
from attnbench.store import StoreError, find_runs, read_header
from attnbench.store.skim import skim
from attnbench.sweep.contest import Held

if TYPE_CHECKING:
    from attnbench.answer.choice.wants import Wants
    from impls import Table
    from impls.problem import Problem

ALIKE = ("phase", "dtype", "inputs", "level", "device")
"""What a record must share with a problem to say anything of it."""
NAMED = 4
NEWEST = 12
"""So many runs of this machine are looked at."""


def from_run(run: Path, problem: Problem, wants: Wants, table: Table,
             contest: Mapping[str, Any] | None = None) -> Choice:  # fmt: skip
    """What one run says. ``contest``: how it was made, where its header does not say so yet."""
    header = read_header(run)
    if header.get("protocol") != PROTOCOL:
        raise StoreError(
            f"{run} was measured with protocol {header.get('protocol')} and this attnbench has "
            f"{PROTOCOL}: measure it again"
        )
    if contest is not None:
        header["contest"] = contest
    seen = list(skim(run, {name: str(getattr(problem, name)) for name in ALIKE}))
    found = choose(
        seen, problem, wants, table, ceilings=header.get("ceilings") or {},
        left_out=left_out(header, problem, wants), source=str(run),
    )  # fmt: skip
    taken = [Held.from_dict(values) for values in _contest(header, problem).get("pairs", ())]
    return replace(settled(found, taken), settings=_settings(header))


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


def first_that_says(runs: Iterable[Path], problem: Problem, wants: Wants, table: Table,
                    say: Callable[[str], None]) -> Choice | None:  # fmt: skip
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
