"""Calls that are alike, gathered: a place in the program stands for all lengths that it met.

A cache that grows by a token a call, or batches padded to their longest, would give a problem a
call. So at one place the problems that differ in lengths alone (of the queries, of the keys, and in
the numbers of the mask) are kept one by one while they are few; of more than ``FEW`` those of one
**octave** (the keys from 129 to 256, say, and the queries likewise) become one site. Its problem is
one that was met: that of the middle call, by length, or of those of which a sample was kept the
nearest to it. Calls and seconds are those of all, and the note says of how many lengths. At most
``MOST`` problems are told apart in an octave; a further one is counted with the nearest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from attnbench.models.calls import Site
from impls.problem import Problem

FEW = 4
"""Problems of a place that differ in lengths alone and are still told apart."""
MOST = 48


class Kind(NamedTuple):
    """What calls have in common that are gathered."""

    site: str
    via: str
    scale: float
    note: str
    faithful: bool
    problem: Problem
    """With the lengths of one, and without the mask's numbers."""
    kinds: str


@dataclass(slots=True)
class Sum:
    """Calls and their seconds."""

    calls: int = 0
    seconds: float = 0.0
    backward_s: float = 0.0
    samples: str = ""

    def add(self, other: Sum) -> None:
        """Those of another too."""
        self.calls += other.calls
        self.seconds += other.seconds
        self.backward_s += other.backward_s
        self.samples = self.samples or other.samples


Octave = tuple[int, int]


class Gathered:
    """Sums by place, kind and octave, bounded however long the program runs."""

    def __init__(self) -> None:
        self._sums: dict[Kind, dict[Octave, dict[Problem, Sum]]] = {}

    def add(self, site: Site) -> None:
        """Count these calls with those before."""
        octaves = self._sums.setdefault(_kind(site), {})
        some = octaves.setdefault(octave(site.problem), {})
        problem = site.problem
        if problem not in some and len(some) >= MOST:
            problem = min(some, key=lambda p: abs(p.kv_len - problem.kv_len))
        kept = site.samples if problem == site.problem else ""  # else it is of other lengths
        more = Sum(site.calls, site.seconds, site.backward_s, kept)
        some.setdefault(problem, Sum()).add(more)

    def add_all(self, sites: Iterable[Site]) -> Gathered:
        """All of these; gives itself back."""
        for site in sites:
            self.add(site)
        return self

    def sites(self) -> list[Site]:
        """Those of most seconds first, then those called most."""
        found = [s for kind, octaves in self._sums.items() for s in _told(kind, octaves)]
        return sorted(found, key=lambda s: (-(s.seconds + s.backward_s), -s.calls))

    def each(self) -> Iterator[Site]:
        """One by one, before octaves are made of them."""
        for kind, octaves in self._sums.items():
            for some in octaves.values():
                for problem, total in some.items():
                    yield _site(kind, problem, total, kind.note)


def _kind(site: Site) -> Kind:
    p = site.problem
    bare = p.with_(q_len=1, kv_len=1, mask=replace(p.mask, parts=()))
    names = str(p.mask) if any(m.file for m in p.mask.parts) else "+".join(p.mask.kinds)
    return Kind(site.site, site.via, site.scale, site.note, site.faithful, bare, names)


def octave(problem: Problem) -> Octave:
    """Which one its lengths are in."""
    return (problem.q_len - 1).bit_length(), (problem.kv_len - 1).bit_length()


def _told(kind: Kind, octaves: dict[Octave, dict[Problem, Sum]]) -> Iterator[Site]:
    """Each problem by itself while they are few, else one of each octave."""
    few = sum(map(len, octaves.values())) <= FEW
    for some in octaves.values():
        if few or len(some) == 1:
            for problem, total in some.items():
                yield _site(kind, problem, total, kind.note)
        else:
            yield _one(kind, some)


def _one(kind: Kind, some: dict[Problem, Sum]) -> Site:
    """One site of a whole octave."""
    total = Sum()
    for each in some.values():
        total.add(each)
    chosen = _middle(some)
    kept = some[chosen].samples
    keys = [p.kv_len for p in some]
    span = f"{min(keys)} to {max(keys)} keys" if min(keys) < max(keys) else f"{keys[0]} keys"
    said = f"stands for {len(some)} problems of {span}" + " and more" * (len(some) >= MOST)
    note = "; ".join(filter(None, (kind.note, said)))
    return replace(_site(kind, chosen, total, note), samples=kept)


def _middle(some: dict[Problem, Sum]) -> Problem:
    """The problem of the middle call by length, or the nearest to it that has a sample."""
    ordered = sorted(some, key=lambda p: (p.kv_len, p.q_len, str(p.mask)))
    left = sum(s.calls for s in some.values()) / 2
    at = -1
    while left > 0:
        at += 1
        left -= some[ordered[at]].calls
    at = max(at, 0)
    sampled = [n for n, p in enumerate(ordered) if some[p].samples]
    return ordered[min(sampled, key=lambda n: abs(n - at)) if sampled else at]


def _site(kind: Kind, problem: Problem, total: Sum, note: str) -> Site:
    return Site(
        problem, kind.site, kind.via, total.calls, total.seconds, total.backward_s,
        scale=kind.scale, samples=total.samples, note=note, faithful=kind.faithful,
    )  # fmt: skip
