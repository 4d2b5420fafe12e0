"""Which runs a choice may rest on: one at a time, since numbers of different runs never mix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.choice.choice import Choice
from attnbench.answer.choice.chosen import choose
from attnbench.machine import this_machine
from attnbench.record import PROTOCOL
from attnbench.store import StoreError, find_runs, read_header
from attnbench.store.skim import skim

if TYPE_CHECKING:
    from attnbench.answer.choice.wants import Wants
    from impls import Table
    from impls.problem import Problem

ALIKE = ("phase", "dtype", "inputs", "level", "device")
"""What a record must share with a problem to say anything of it."""
NEWEST = 12
"""So many runs of this machine are looked at."""


def from_run(run: Path, problem: Problem, wants: Wants, table: Table) -> Choice:
    """What one run says."""
    header = read_header(run)
    if header.get("protocol") != PROTOCOL:
        raise StoreError(
            f"{run} was measured with protocol {header.get('protocol')} and this attnbench has "
            f"{PROTOCOL}: measure it again"
        )
    seen = list(skim(run, {name: str(getattr(problem, name)) for name in ALIKE}))
    ceilings = header.get("ceilings") or {}
    return choose(seen, problem, wants, table, ceilings=ceilings, source=str(run))


def best_of(paths: Iterable[Path], problem: Problem, wants: Wants, table: Table) -> Choice:
    """Of several runs the one that knows most; raises a sentence where there is none."""
    asked = list(paths)
    runs = list(find_runs(asked))
    if not runs:
        raise StoreError(f"there is no run in {', '.join(map(str, asked))}")
    return max((from_run(run, problem, wants, table) for run in runs), key=_knows)


def first_that_says(runs: Iterable[Path], problem: Problem, wants: Wants,
                    table: Table) -> Choice | None:  # fmt: skip
    """The first run that has an answer, if there is one."""
    found = (from_run(run, problem, wants, table) for run in runs)
    return next((choice for choice in found if choice.winner is not None), None)


def measured_here(out: Path, threads: int | None) -> Iterator[Path]:
    """The runs of this machine as it is now, the newest first."""
    machine = this_machine()
    if not (out / machine.name).is_dir():
        return
    for run in sorted(find_runs([out / machine.name]), reverse=True)[:NEWEST]:
        try:
            header = read_header(run)
        except StoreError:
            continue
        if _as_now(header, machine.to_dict(), threads or machine.threads):
            yield run


def _as_now(header: dict[str, Any], machine: dict[str, Any], threads: int) -> bool:
    """Whether a run measured what would be measured now."""
    then, settings = header.get("machine") or {}, header.get("settings") or {}
    alike = ("cpu", "cores", "gpus", "torch_cuda")
    now = {name: list(x) if isinstance(x := machine[name], tuple) else x for name in alike}
    versions = ("torch", "triton")
    return (
        header.get("protocol") == PROTOCOL
        and not header.get("tables")
        and all(then.get(name) == now[name] for name in alike)
        and all((then.get("versions") or {}).get(v) == machine["versions"].get(v) for v in versions)
        and settings.get("threads") == threads
    )


def _knows(choice: Choice) -> tuple[bool, bool, int]:
    """How much a choice rests on: an answer, measured, among many."""
    winner = choice.winner
    others = len(choice.equal) + len(choice.slower)
    return winner is not None, winner is not None and winner.measured, others
