"""Where one of two overtakes the other, by bisection: a search that knows no variant.

Lengths lie on a ladder, sixteen rungs an octave: two neighbours are a bracket that is tight. The
search climbs by octaves first, since there may be several crossovers, or none; then it halves what
lies between two looks of which one says another thing than the other. That one of the two leads is
said where its lead is beyond the margin; between the lengths where they can't be told apart and
those where one leads it halves as well, so what comes of it is a bracket and the ties within.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import log
from time import monotonic

from attnbench.comparison import Comparison, Verdict, holm
from attnbench.record import Status

RUNGS = 16
"""An octave has so many."""
LEAST_STEP = 16
"""Tokens; nothing changes by less than a tile."""
TRIES = 2
"""Lengths between two looks that may fail before no other is tried there."""
GROW = (Status.OUT_OF_MEMORY, Status.TIMED_OUT)
"""What a longer one does not make better."""
CLIMB_SHARE = 1 / 3
"""Of what is left: an octave that takes more waits until what was seen is tight."""
STEEPEST = 2.5
"""A power of the length: the time of a look grows no faster."""
GRACE_S = 5.0
"""By how much the last look may be expected to be late."""
A, B, NEITHER = "a", "b", ""
"""Who leads."""


def ladder(shortest: int, longest: int) -> list[int]:
    """Both ends, and the rungs between them."""
    rungs, at = [shortest], shortest
    while at < longest:
        step = max(LEAST_STEP, (1 << (at.bit_length() - 1)) // RUNGS)
        at = min((at // step + 1) * step, longest)
        rungs.append(at)
    return rungs


def octaves(rungs: Sequence[int]) -> list[int]:
    """Of some rungs the first of each octave, and the last of all."""
    firsts = [next(some) for _, some in groupby(rungs, int.bit_length)]
    return list(dict.fromkeys([*firsts, rungs[-1]]))


@dataclass(frozen=True)
class Look:
    """What came of one length: b's time over a's, or why there is no such ratio."""

    length: int
    comparison: Comparison | None
    status: Status = Status.MEASURED
    why: str = ""
    """Who was stopped, and the reason."""
    a_s: float = 0.0
    b_s: float = 0.0
    """Medians of their calls."""
    took_s: float = 0.0
    """What the look cost."""

    @property
    def leader(self) -> str:
        """Who is faster by more than the margin."""
        leads = {Verdict.SLOWER: A, Verdict.FASTER: B}
        return leads.get(self.comparison.verdict, NEITHER) if self.comparison else NEITHER

    @property
    def decided(self) -> bool:
        """Whether the pairs came to a verdict."""
        return self.comparison is not None and self.comparison.verdict is not Verdict.INCONCLUSIVE


Ask = Callable[[int, float], Look | None]
"""Of a length, and of the seconds that are left; None where only the wall clock ended it."""


@dataclass(frozen=True)
class Gap:
    """Between two neighbouring looks that don't say the same, with rungs that nobody looked at."""

    rungs: tuple[int, ...]
    changes: bool
    """Whether it is part of a change of leader, or else only an edge of ties."""

    @property
    def middle(self) -> int:
        """Where to look."""
        return self.rungs[(len(self.rungs) - 1) // 2]


class Search:
    """Of two variants, over some lengths."""

    def __init__(self, rungs: Sequence[int]) -> None:
        self.rungs = list(rungs)
        self._octaves = octaves(self.rungs)
        self._looks: dict[int, Look] = {}
        self.cut: int | None = None
        """The length at which the wall clock was spent while it was looked at."""

    def hear(self, look: Look) -> None:
        """What came of a length."""
        self._looks[look.length] = look

    # ---- what is known -------------------------------------------------------------------------

    @property
    def looks(self) -> list[Look]:
        """Those with a ratio, by length; among many a difference stands as Holm's rule lets it."""
        some = sorted((x for x in self._looks.values() if x.comparison), key=lambda x: x.length)
        judged = holm([x.comparison for x in some if x.comparison])
        return [replace(look, comparison=each) for look, each in zip(some, judged, strict=True)]

    @property
    def failed(self) -> list[Look]:
        """Those without, by length."""
        bad = (x for x in self._looks.values() if x.comparison is None)
        return sorted(bad, key=lambda x: x.length)

    @property
    def end(self) -> Look | None:
        """The first that failed beyond all that did not: no longer one is tried."""
        longest = self._longest
        beyond = (x for x in self.failed if x.length > longest)
        return next((x for x in beyond if longest or x.status in GROW), None)

    @property
    def _longest(self) -> int:
        """The longest that has a ratio."""
        return max((x.length for x in self._looks.values() if x.comparison), default=0)

    def took_s(self, length: int) -> float:
        """Seconds that a look is expected to take, by the growth from one to the next of the two
        longest that are no longer; nothing where nobody has looked.
        """
        known = sorted(self._looks.values(), key=lambda x: x.length)
        shorter = [x for x in known if x.length <= length][-2:] or known[:1]
        if not shorter:
            return 0.0
        first, last = shorter[0], shorter[-1]
        power = 1.0
        if first is not last and first.took_s > 0 and last.took_s > 0:
            power = log(last.took_s / first.took_s) / log(last.length / first.length)
        grown = max(1.0, length / last.length) ** min(max(power, 1.0), STEEPEST)
        return last.took_s * grown

    # ---- where to look next --------------------------------------------------------------------

    def next(self, left_s: float = float("inf")) -> int | None:
        """The length to look at: an octave higher, or the middle of a gap where an octave would
        take more than its share of what is left. None where the search is over.
        """
        climb, gaps = self._climb(), self.gaps()
        if climb is not None and not (gaps and self.took_s(climb) > CLIMB_SHARE * left_s):
            return climb
        return gaps[0].middle if gaps else None

    def gaps(self) -> list[Gap]:
        """The ones that a change of leader lies in first, of them the widest, then the shortest."""
        found = [gap for gap in self._between() if gap.rungs]
        return sorted(found, key=lambda gap: (not gap.changes, -len(gap.rungs), gap.rungs[0]))

    def _climb(self) -> int | None:
        """The next octave; where one failed, halfway to it, as long as that holds."""
        end = self.end
        todo = [n for n in self._octaves if n not in self._looks]
        if end is None:
            return next(iter(todo), None)
        if todo := [n for n in todo if n < end.length]:
            return todo[0]
        between = self._unseen(self._longest, end.length)
        tried = sum(look.length > self._longest for look in self.failed)
        return Gap(between, False).middle if self._longest and between and tried < TRIES else None

    def _between(self) -> Iterator[Gap]:
        looks = self.looks
        for n, (one, other) in enumerate(pairwise(looks)):
            if one.leader == other.leader:
                continue
            before = next((x.leader for x in reversed(looks[: n + 1]) if x.leader), NEITHER)
            after = next((x.leader for x in looks[n + 1 :] if x.leader), NEITHER)
            changes = NEITHER not in (before, after) and before != after
            if changes or all(x.decided for x in (one, other)):
                yield Gap(self._unseen(one.length, other.length), changes)

    def _unseen(self, low: int, high: int) -> tuple[int, ...]:
        """Rungs between that may still be looked at."""
        between = [n for n in self.rungs if low < n < high]
        unseen = tuple(n for n in between if n not in self._looks)
        return unseen if len(between) - len(unseen) < TRIES else ()


def seek(search: Search, ask: Ask, seconds: float,
         now: Callable[[], float] = monotonic) -> Iterator[tuple[Look, float]]:  # fmt: skip
    """Look after look, each with the seconds left, until all is found or the wall clock is spent.

    None is begun that is expected to end too late.
    """
    until = now() + seconds
    while (length := search.next(left := until - now())) is not None:
        if left <= 0 or search.took_s(length) > left + GRACE_S:
            return
        began = now()
        look = ask(length, left)
        if look is None:
            search.cut = length
            return
        look = replace(look, took_s=now() - began)
        search.hear(look)
        yield look, max(0.0, until - now())
