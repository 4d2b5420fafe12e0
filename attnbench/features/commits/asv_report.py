"""A report of what asv's results show of some commits, each held against the one before it.

By asv's own rule: both have values, asv's statistics tell them apart, and one is a factor of the
other. It is weaker than pairs, since what slows the machine for a while slows one commit alone. A
commit that changed no file of ``impls`` shows how much weaker: what moved there moved by itself,
and what moved no further elsewhere, in the same kind of figure, can't be told from that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from attnbench.core.checkout import Commit, changed


@dataclass(frozen=True)
class Value:
    """One benchmark with its parameters: what asv keeps of it."""

    result: float | None
    """None: it failed; not a number: it was skipped."""
    stats: Mapping[str, Any] | None = None
    samples: Sequence[float] | None = None
    version: str = ""

    @property
    def skipped(self) -> bool:
        """There was nothing to run."""
        return self.result is not None and math.isnan(self.result)


@dataclass(frozen=True)
class Moved:
    """A benchmark that is another than it was."""

    name: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before

    @property
    def far(self) -> float:
        """How far from what it was, either way."""
        return abs(math.log(self.ratio)) if self.ratio > 0 else math.inf

    @property
    def kind(self) -> str:
        """The benchmark, whatever its parameters: one that times, or one of memory."""
        return self.name.partition("(")[0]


@dataclass
class CommitHistory:
    """What a commit gave, and how that stands to the commit before it."""

    commit: Commit
    measured: int
    skipped: int
    failed: list[str]
    newly_failed: list[str]
    slower: list[Moved]
    faster: list[Moved]
    by_itself: list[Moved] = field(default_factory=list)
    """They moved no further than others do where nothing has changed."""
    changed: list[str] = field(default_factory=list)
    """Files of ``impls`` that the commit before has otherwise."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def report(
    commits: Sequence[Commit], results: Path, machine: str, factor: float, root: Path
) -> list[CommitHistory]:
    """What the results folder holds of each commit, oldest first."""
    found: list[CommitHistory] = []
    before: dict[str, Value] = {}
    last: Commit | None = None
    for commit in commits:
        now = dict(_values(results, machine, commit.sha))
        found.append(_against(commit, before, now, factor))
        found[-1].changed = changed(last, commit, root) if last else []
        if now:
            before, last = now, commit
    alone: dict[str, float] = {}
    for one in found:
        for moved in (*one.slower, *one.faster) if not one.changed else ():
            alone[moved.kind] = max(alone.get(moved.kind, 0.0), moved.far)
    for one in found:  # what moved no further than something did where nothing had changed
        both = (*one.slower, *one.faster)
        one.by_itself = [m for m in both if m.far <= alone.get(m.kind, 0.0)]
        one.slower = [m for m in one.slower if m not in one.by_itself]
        one.faster = [m for m in one.faster if m not in one.by_itself]
    return found


def _against(
    commit: Commit, before: Mapping[str, Value], now: Mapping[str, Value], factor: float
) -> CommitHistory:
    failed = [name for name, value in now.items() if value.result is None]
    skipped = sum(value.skipped for value in now.values())
    slower, faster = [], []
    for name, b in now.items():
        a = before.get(name)
        if a is None or a.skipped or b.skipped or a.version != b.version:
            continue
        if not a.result or b.result is None:  # it failed, or was nought
            continue
        moved = Moved(name, a.result, b.result)
        if _better(a, b, factor):
            slower.append(moved)
        elif _better(b, a, factor):
            faster.append(moved)
    newly = [n for n in failed if n in before and before[n].result is not None]
    measured = len(now) - len(failed) - skipped
    return CommitHistory(commit, measured, skipped, failed, newly, slower, faster)


def _better(a: Value, b: Value, factor: float) -> bool:
    from asv.commands.compare import _is_result_better

    return bool(
        _is_result_better(a.result, b.result, (a.stats, a.samples), (b.stats, b.samples), factor)
    )


def _values(results: Path, machine: str, sha: str) -> Iterator[tuple[str, Value]]:
    """Each benchmark with its parameters, as ``name(a, b)``."""
    from asv.results import iter_results_for_machine_and_hash

    for result in iter_results_for_machine_and_hash(str(results), machine, sha):
        for key in result.get_all_result_keys():
            params = result.get_result_params(key)
            cells = list(product(*params))
            columns = (
                result.get_result_value(key, params),
                result.get_result_stats(key, params),
                result.get_result_samples(key, params),
            )
            rows = zip(*(each or [None] * len(cells) for each in columns), strict=True)
            version = str(result.benchmark_version.get(key))
            for cell, (value, stats, samples) in zip(cells, rows, strict=True):
                name = f"{key}({', '.join(cell)})" if cell else key
                yield name, Value(value, stats, samples, version)
