"""One search over sizes, of lengths or of batches, and several of them within one wall clock.

Sizes are the rungs of a ladder, sixteen to an octave. Each that was looked at lies on a side: who
leads there, or that it holds. Octaves are looked at first, then the gaps between two sides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import inf, log
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from attnbench.sweep.plan import here
from attnbench.sweep.start import find_preset
from impls.problem import InvalidProblem, Problem

if TYPE_CHECKING:
    from attnbench.core.machine import Machine
    from attnbench.sweep.presets import Preset

By = Literal["seq", "batch"]
Result = TypeVar("Result")
GRACE_S = 5.0
"""By how much the last look may be late."""
RUNGS = 16
"""Sizes to an octave."""
TRIES = 2
"""So many sizes between two looks may fail before no other is tried there."""
CLIMB_SHARE = 1 / 3
"""An octave that takes more than this share of the time left waits until the gaps are closed."""
LEAST_POWER, MOST_POWER, APART = 1.0, 2.5, 1.5
"""A cost grows with a power of the size between these, seen in sizes so far apart."""
GAP_LOOKS = 4
"""Looks that close a gap, as a rule."""
LEAP = 32
"""At most so many times the longest size is tried next."""
TURNS = 2
"""So many looks each search has in turn before the cheapest comes first."""


def ladder(shortest: int, longest: int, step: int) -> list[int]:
    """Both ends, and the rungs between them: multiples of a step, an octave's sixteenth or more."""
    rungs, at = [shortest], shortest
    while at < longest:
        width = max(step, (1 << (at.bit_length() - 1)) // RUNGS)
        at = min((at // width + 1) * width, longest)
        rungs.append(at)
    return rungs


def octaves(rungs: Sequence[int]) -> list[int]:
    """The first rung of each octave, and the last of all."""
    firsts = [next(group) for _, group in groupby(rungs, int.bit_length)]
    return list(dict.fromkeys([*firsts, rungs[-1]]))


class Growth(NamedTuple):
    """A cost as a power of the size."""

    size: int
    cost: float
    power: float

    def at(self, size: float) -> float:
        """The cost of a size."""
        return float(self.cost * (size / self.size) ** self.power)

    def reach(self, cost: float) -> float:
        """The size that costs so much."""
        return float(self.size * (cost / self.cost) ** (1 / self.power))


def growth(points: Iterable[tuple[int, float | None]], power: float = 1.0) -> Growth | None:
    """The growth through the longest of some points and one well below it; with one point alone, by
    the power. None without any.
    """
    costs = sorted((size, cost) for size, cost in points if cost)
    if not costs:
        return None
    size, cost = costs[-1]
    for other, less in costs:
        if other * APART <= size:
            power = log(cost / less) / log(size / other)
            power = min(max(power, LEAST_POWER), MOST_POWER)
    return Growth(size, cost, power)


@dataclass(frozen=True)
class Look(Generic[Result]):
    """The result of one size."""

    size: int
    result: Result
    side: str | None
    """The leader there, or that it holds; None where it failed."""
    grows: bool = True
    """Longer sizes share the failure, even where nothing shorter succeeded."""
    took_s: float = 0.0


class SizeSearch(Generic[Result]):
    """The looks at some sizes, and which size is next."""

    def __init__(self, rungs: Sequence[int], *, start: int = 0, tries: int = TRIES) -> None:
        """``start``: the first size; ``tries``: failures beyond the longest success that end it."""
        self.rungs, self.start, self.tries = list(rungs), start or rungs[0], tries
        self.looks: list[Look[Result]] = []
        self.usual = len(octaves(self.rungs)) + GAP_LOOKS
        """Looks that such a search takes, as a rule."""
        self.cut: int | None = None
        """The size at which it ended early, as the wall clock was spent or it can't go on."""

    @property
    def turn(self) -> int:
        """The fewer looks, the earlier it is its turn."""
        return min(len(self.looks), TURNS)

    def sides(self) -> list[Look[Result]]:
        """The looks that succeeded, by size."""
        return sorted((x for x in self.looks if x.side is not None), key=lambda x: x.size)

    @property
    def failures(self) -> list[Look[Result]]:
        """The looks that failed, by size."""
        return sorted((x for x in self.looks if x.side is None), key=lambda x: x.size)

    @property
    def longest(self) -> int:
        """The longest size that succeeded; 0 if none did."""
        return max((x.size for x in self.looks if x.side is not None), default=0)

    @property
    def end(self) -> Look[Result] | None:
        """The first failure beyond all successes: no longer size is tried."""
        longest = self.longest
        beyond = (x for x in self.failures if x.size > longest and (longest or x.grows))
        return next(beyond, None)

    def guess_s(self, size: int) -> float:
        """A guess at the seconds of a look, before any was taken."""
        raise NotImplementedError

    def ahead_s(self) -> float:
        """A guess at the seconds of all looks to come."""
        size, rest = self.next(), max(1, self.usual - len(self.looks))
        return 0.0 if size is None else rest * self.guess_s(size)

    def words(self, size: int) -> str:
        """A look in a few words, for the line of progress."""
        raise NotImplementedError

    @property
    def due(self) -> bool:
        """Is the next look taken however late it is?"""
        return False

    def aim(self) -> float | None:
        """The size up to which all is thought to succeed; None if unknown."""
        return None

    def expect_s(self, size: int) -> float:
        """Seconds that a look will take, as looks at shorter sizes took; 0 before the first."""
        points = [(x.size, x.took_s) for x in self.looks]
        by = growth([p for p in points if p[0] <= size] or sorted(points)[:1])
        return by.at(max(size, by.size)) if by else 0.0

    def next(self, left_s: float = inf) -> int | None:
        """The next size, or None when the search is over: beyond the longest, but the middle of a
        gap where that would take more than its share of the time left.
        """
        if self.cut is not None:
            return None
        gap, beyond = self._gap(), self._beyond()
        if beyond and not (gap and self.expect_s(beyond) > CLIMB_SHARE * left_s):
            return beyond
        return middle(gap) if gap else None

    def _beyond(self) -> int | None:
        """The next octave, or up to the aim; once a size failed, the aim or the middle below it."""
        end, longest, aim = self.end, self.longest, self.aim()
        if end is None:
            top = max((x.size for x in self.looks), default=0)
            above = [n for n in self.rungs if n > top]
            if not above or aim is None:
                firsts = octaves(self.rungs)
                return next((n for n in firsts if n > top and n >= self.start), None)
            most = min(aim, LEAP * top or self.start)
            return above[max(0, bisect_right(above, most) - 1)]
        between = self._untried(longest, end.size)
        if not between or sum(x.size > longest for x in self.failures) >= self.tries:
            return None
        if aim is None:
            return middle(between)
        keep = len(between) // 4  # the gap shrinks though the aim is noise
        return between[min(max(bisect_right(between, aim) - 1, keep), len(between) - 1 - keep)]

    def _gap(self) -> tuple[int, ...]:
        """The rungs between two neighbouring looks on different sides: of changes of the leader
        first, rather than edges of ties; of them the widest, then the shortest. Empty if none.
        """
        gaps, looks = [], self.sides()
        for n, (one, other) in enumerate(pairwise(looks)):
            if one.side == other.side:
                continue
            before = next((x.side for x in reversed(looks[: n + 1]) if x.side), "")
            after = next((x.side for x in looks[n + 1 :] if x.side), "")
            changes = bool(before and after) and before != after
            rungs = self._untried(one.size, other.size)
            if rungs and (changes or (self.decided(one) and self.decided(other))):
                gaps.append((not changes, -len(rungs), rungs))
        return min(gaps)[-1] if gaps else ()

    def decided(self, look: Look[Result]) -> bool:
        """Is the side of a look certain?"""
        return True

    def _untried(self, low: int, high: int) -> tuple[int, ...]:
        """The rungs between that may still be looked at."""
        between, sizes = [n for n in self.rungs if low < n < high], {x.size for x in self.looks}
        untried = tuple(n for n in between if n not in sizes)
        return untried if len(between) - len(untried) < TRIES else ()


def middle(rungs: Sequence[int]) -> int:
    """The middle of some rungs."""
    return rungs[(len(rungs) - 1) // 2]


Search = TypeVar("Search", bound=SizeSearch[Any])


def take_looks(
    searches: Sequence[Search],
    ask: Callable[[Search, int, float], Look[Any] | None],
    seconds: float,
    watch: Callable[[Search, int, float], None] = lambda search, size, left_s: None,
    now: Callable[[], float] = monotonic,
) -> Iterator[Search]:
    """Each search after each look, until all are over or the time is spent. Of searches whose turn
    it is, the cheapest comes first. No look is begun that is expected to end too late.

    ``ask``: the look at a size, given the seconds left; None where it gave no result. ``watch``
    gets the same before the look.
    """
    until = now() + seconds
    while True:
        left_s, ready = until - now(), []
        for number, search in enumerate(searches):
            size = search.next(left_s)
            if size is None:
                continue
            expected = search.expect_s(size)
            if search.due or (left_s > 0 and expected <= left_s + GRACE_S):
                ready.append((search.turn, expected, number, size))
        if not ready:
            return
        *_, number, size = min(ready)
        search, start = searches[number], now()
        watch(search, size, left_s)
        if (look := ask(search, size, left_s)) is not None:
            search.looks.append(replace(look, took_s=now() - start))
        yield search


def fresh_if_full(ask: Callable[[], Result], full: Callable[[Result], bool], engine: Any) -> Result:
    """An answer; where memory ran out that of a new worker, since what others left in the heap may
    have been in the way.
    """
    answer = ask()
    if full(answer):
        engine.close()
        answer = ask()
    return answer


def grid_for(
    changes: Mapping[str, Any], machine: Machine, start: Callable[[str], Mapping[str, Any]]
) -> Preset:
    """The preset from which a search starts on a kind of device, with what the user changed; a
    budget is the search's own. Raises CantBeDone for a device that is not there.
    """
    device = str(changes.get("device", machine.devices[-1]))
    here(device, machine)
    kind = device.split(":")[0]
    own = {name: value for name, value in changes.items() if name != "budget"}
    return find_preset(f"compare-{kind}", machine).with_(**start(kind)).with_(**own)


def refuse_several(grid: Preset, verb: str, axes: Sequence[str], searched: str) -> None:
    """Raise :class:`InvalidProblem` where a grid has several values of one of these axes, or
    captured inputs, which have one size.
    """
    if wide := [name for name in axes if len(getattr(grid, name)) > 1]:
        options = ", ".join("--" + name.replace("_", "-") for name in wide)
        raise InvalidProblem(f"{verb} takes one value of {options}: what is searched is {searched}")
    if any(inputs.startswith("captured:") for inputs in grid.inputs):
        raise InvalidProblem(f"captured inputs have one size; {verb} needs many: leave them out")


def sized(problem: Problem, by: By, size: int) -> Problem:
    """The same problem with another length, or another batch."""
    if by == "batch":
        return problem.with_(batch=size)
    if problem.phase == "decode":
        return problem.with_(kv_len=size)
    return problem.with_(q_len=size, kv_len=size)
