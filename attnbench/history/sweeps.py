"""Which runs can stand in a commit's history, and why the others can't."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnbench.history.revisions import one
from attnbench.record import PROTOCOL, Record
from attnbench.store import HEADER, find_runs, read_header, read_records
from attnbench.sweep.checkout import git
from impls.asked import CantBeDone


class CantExport(CantBeDone):
    """A run that belongs to no commit, or whose numbers stand for something else; a sentence."""


@dataclass(frozen=True)
class Sweep:
    """A run of a commit, or a leg of one."""

    path: Path
    commit: str
    committed_ms: int
    """When the commit was made, in the milliseconds that asv counts in."""
    started: datetime
    machine: Mapping[str, Any]
    nodes: Mapping[str, Mapping[str, Any]]
    threads: int
    energy: bool
    leg: int = 1

    def records(self) -> Iterator[tuple[Mapping[str, Any], Record]]:
        """What was measured in this leg of the run, and the machine that measured it."""
        for record in read_records(self.path):
            node = self.nodes.get(record.node, {})
            if node.get("leg", 1) == self.leg:
                yield node.get("machine", self.machine), record

    def own_threads(self, machine: Mapping[str, Any]) -> int | None:
        """How many threads were asked for, where a measurement takes another number by itself."""
        return None if self.threads == max(1, machine["cores"] - 1) else self.threads


def sweeps(paths: Iterable[Path], root: Path, say: Callable[[str], None]) -> list[Sweep]:
    """The runs that are, or lie below, some paths, oldest first.

    A run that was named is refused by raising a sentence; one that was only found in a folder is
    left out, and the sentence said.
    """
    found: dict[Path, list[Sweep]] = {}
    left_out = []
    for path in paths:
        runs = list(find_runs([path]))
        if not runs:
            raise CantExport(f"there is no run in {path}; runs lie in results/<machine>/<run>")
        for run in runs:
            try:
                found[run.resolve()] = legs(run, root)
            except CantBeDone as refused:
                if run == path:
                    raise
                left_out.append(str(refused))
    if not found:
        raise CantExport(f"of the {len(left_out)} runs there none can be exported: {left_out[0]}")
    for sentence in left_out:
        say(f"left out: {sentence}")
    return sorted((leg for some in found.values() for leg in some), key=lambda one: one.started)


def legs(path: Path, root: Path) -> list[Sweep]:
    """The legs of a run, each of a commit of ``root``; raises a sentence where one is of none."""
    header = read_header(path)
    later = enumerate(header.get("legs") or (), 2)
    return [_leg(path, root, header, 1), *(_leg(path, root, {**header, **more}, number)
                                           for number, more in later)]  # fmt: skip


def _leg(path: Path, root: Path, header: Mapping[str, Any], number: int) -> Sweep:
    try:
        code, machine, protocol = header["code"], header["machine"], header["protocol"]
        commit, dirty = code["commit"], code["dirty"]
        for needed in ("name", "cpu", "cores", "memory_bytes", "python"):
            machine[needed]
        for node in header.get("nodes", {}).values():
            node["machine"]
        started = datetime.fromisoformat(header["started"]).astimezone(UTC)
        found = Sweep(
            path, str(commit), 0, started, machine,
            header.get("nodes", {}),
            int(header["settings"]["threads"]), bool(header.get("energy")), number,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CantExport(
            f"{path / HEADER} is damaged ({error!r}), so it can't be told what {path} measured; "
            "measure again"
        ) from None
    _check(path, commit, dirty, protocol)
    return replace(found, committed_ms=_committed(found, root))


def _check(path: Path, commit: str | None, dirty: bool | None, protocol: int) -> None:
    if commit is None or dirty is None:
        raise CantExport(
            f"{path} says no commit: it was measured by an attnbench that is in no git checkout, "
            "and has no place in a history; measure again from a clone"
        )
    if dirty:
        raise CantExport(
            f"{path} was measured with changes that no commit holds, so its numbers are not those "
            f"of {commit[:8]}; commit the changes and measure again"
        )
    if protocol != PROTOCOL:
        raise CantExport(
            f"{path} was measured with protocol {protocol} and this attnbench has {PROTOCOL}: "
            "numbers of unlike protocols can't share a graph; measure that commit again"
        )


def _committed(found: Sweep, root: Path) -> int:
    try:
        sha = one(found.commit, root).sha
    except CantBeDone as unknown:
        raise CantExport(
            f"{found.path} was measured at a commit that can't be looked up: {unknown}"
        ) from None
    return int(git(root, "show", "--no-patch", "--format=%at", sha) or 0) * 1000
