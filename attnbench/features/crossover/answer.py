"""Where one of two overtakes the other, in words: brackets and ties, never a point.

What a search has looked at falls into stretches: lengths next to each other of which all say the
same. A crossover lies between the last length where the one led by more than the margin and the
first where the other does; lengths between, where they can't be told apart, are its ties.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import log
from typing import Any

from attnbench.answer.ranking import torch_rank
from attnbench.features.crossover.search import A, CrossoverSearch, LengthRatio

BUDGET, STOPPED = "the budget was spent", "it was stopped"
"""Why a search ended that was not over."""
FURTHER = 16
"""So many times longer, or shorter, is where to look next."""


@dataclass(frozen=True)
class CrossoverStretch:
    """Lengths next to each other that say the same."""

    leader: str
    """A label; empty where the two can't be told apart."""
    looks: tuple[LengthRatio, ...]

    @property
    def first(self) -> int:
        """The shortest looked at."""
        return self.looks[0].length

    @property
    def last(self) -> int:
        """The longest looked at."""
        return self.looks[-1].length

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"leader": self.leader, "from": self.first, "to": self.last}


@dataclass(frozen=True)
class Crossover:
    """``before`` leads up to one length, ``after`` from another on."""

    before: str
    after: str
    low: int
    high: int
    ties: tuple[int, int] | None
    """The first and the last length between where they can't be told apart."""
    tight: bool
    """Whether no length is left that could narrow it."""

    def sentence(self, why: str) -> str:
        """``why``: what kept it from being tight, if it is not."""
        text = f"{self.after} overtakes {self.before} between {self.low:,} and {self.high:,}"
        return text if self.tight else f"{text}, and no tighter, for {why}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        ties = list(self.ties) if self.ties else None
        return {
            "before": self.before,
            "after": self.after,
            "low": self.low,
            "high": self.high,
            "ties": ties,
            "tight": self.tight,
        }


@dataclass(frozen=True)
class CrossoverAnswer:
    """What a search came to."""

    a: str
    b: str
    what: str
    """What a length counts: tokens, or keys."""
    asked: tuple[int, int]
    search: CrossoverSearch
    ended: str = ""
    """Why it ended; empty if it was over."""
    left_out: tuple[str, ...] = ()
    """What was not looked at, as sentences."""

    @property
    def looks(self) -> list[LengthRatio]:
        """Those that tell something, by length."""
        return self.search.looks

    def stretches(self) -> list[CrossoverStretch]:
        """All, by length."""
        grouped = groupby(self.looks, key=lambda look: look.leader)
        return [CrossoverStretch(self._label(leader), tuple(some)) for leader, some in grouped]

    def crossovers(self) -> list[Crossover]:
        """Each change of leader, by length."""
        return list(self._crossovers(self.stretches()))

    def sentence(self) -> str:
        """Who leads where, where that changes, and what it rests on."""
        if not self.looks:
            return f"{self.a} and {self.b} were compared at no length"
        pairs = sum(look.comparison.n for look in self.looks if look.comparison)
        lengths = len(self.looks)
        rests = f"({pairs:,} pairs at {lengths} length{'s' * (lengths > 1)})"
        why = self.ended or "lengths between could not be compared"
        said = [self._course(), *(one.sentence(why) for one in self.crossovers())]
        said += [self._advice(), self._beyond()]
        return f"{'. '.join(text for text in said if text)} {rests}"

    def notes(self) -> list[str]:
        """What else must be known."""
        end, looked = self.search.end, {x.length for x in self.looks}
        said = list(self.left_out)
        for look in self.search.failed:
            where = f"from {look.length:,} on" if look is end else f"at {look.length:,}"
            status = str(look.status).replace("_", " ")
            said.append(f"{where} they can't be compared: {status}: {look.why}")
        if self.search.cut is not None:
            said.append(f"{BUDGET} while {self.search.cut:,} was looked at")
        elif self.ended and self.search.rungs[-1] not in looked and end is None:
            said.append(f"{self.ended} before {self.search.rungs[-1]:,} was looked at")
        if undecided := [f"{x.length:,}" for x in self.looks if not x.decided]:
            said.append(f"at {', '.join(undecided)} the pairs did not decide")
        if len(self.looks) > 1:
            said.append("two crossovers within an octave of lengths would not be seen")
        return said

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        looks = sorted([*self.looks, *self.search.failed], key=lambda look: look.length)
        return {
            "a": self.a,
            "b": self.b,
            "range": list(self.asked),
            "stretches": [each.to_dict() for each in self.stretches()],
            "crossovers": [each.to_dict() for each in self.crossovers()],
            "looks": [self._plain(look) for look in looks],
            "ended": self.ended or "found",
            "notes": self.notes(),
            "sentence": self.sentence(),
        }

    # ---- crossovers ----------------------------------------------------------------------------

    def _label(self, leader: str) -> str:
        return "" if not leader else self.a if leader == A else self.b

    def _crossovers(self, stretches: Sequence[CrossoverStretch]) -> Iterator[Crossover]:
        ahead: CrossoverStretch | None = None
        ties: list[CrossoverStretch] = []
        for stretch in stretches:
            if not stretch.leader:
                ties.append(stretch)
                continue
            if ahead is not None and ahead.leader != stretch.leader:
                tied = (ties[0].first, ties[-1].last) if ties else None
                tight = all(self._next(x, y) for x, y in pairwise([ahead, *ties, stretch]))
                yield Crossover(
                    ahead.leader, stretch.leader, ahead.last, stretch.first, tied, tight
                )
            ahead, ties = stretch, []

    def _next(self, one: CrossoverStretch, other: CrossoverStretch) -> bool:
        """Whether no length lies between."""
        return not any(one.last < n < other.first for n in self.search.rungs)

    # ---- words ---------------------------------------------------------------------------------

    def _course(self) -> str:
        """Who leads where."""
        stretches = self.stretches()
        if len(stretches) > 1:
            return "; ".join(f"{self._where(one)} {self._leads(one)}" for one in stretches)
        (one,) = stretches
        where = self._where(one)
        if not one.leader:
            return f"{self.a} and {self.b} can't be told apart at {_margin(one.looks)}, {where}"
        ends = dict.fromkeys((one.looks[0], one.looks[-1]))
        taken = " and ".join(f"{self._taken(look)} at {look.length:,}" for look in ends)
        throughout = "throughout, " * (one.first < one.last)
        other = self.b if one.leader == self.a else self.a
        return f"{one.leader} is faster {throughout}{where}: it takes {taken} of {other}'s time"

    def _where(self, one: CrossoverStretch) -> str:
        what = f" {self.what}" * (one.first == self.looks[0].length)
        if one.first == one.last:
            return f"at {one.first:,}{what}"
        return f"from {one.first:,} to {one.last:,}{what}"

    def _leads(self, one: CrossoverStretch) -> str:
        if one.leader:
            return f"{one.leader} is faster"
        return f"they can't be told apart at {_margin(one.looks)}"

    def _advice(self) -> str:
        """Which to use where they tie; empty where neither is nearer to torch's own."""
        first, other = sorted((self.a, self.b), key=torch_rank)
        tie = any(not one.leader for one in self.stretches())
        return f"Where they tie, use {first}: it is torch's own" * (
            tie and torch_rank(first) < torch_rank(other)
        )

    def _taken(self, look: LengthRatio) -> str:
        """The leader's time over the other's."""
        c = look.comparison
        assert c is not None
        some = (c.ratio, c.low, c.high)
        ratio, low, high = some if look.leader != A else (1 / some[0], 1 / some[2], 1 / some[1])
        return f"{ratio:.3g} [{low:.3g}, {high:.3g}]"

    def _beyond(self) -> str:
        """Where there is no crossover: on which side one may lie."""
        looks, (low, high) = self.looks, self.asked
        if self.crossovers() or not any(look.leader for look in looks) or len(looks) < 2:
            return ""
        ways = []
        if _shrinks(looks) and looks[-1].length == high:
            ways.append(f"above {high:,} (--seq {high},{FURTHER * high})")
        elif _shrinks(looks):
            ways.append(f"above {looks[-1].length:,}, where they were not compared")
        if _shrinks(looks[::-1]) and looks[0].length == low > 1:
            ways.append(f"below {low:,} (--seq {max(1, low // FURTHER)},{low})")
        if ways:
            return f"The lead shrinks that way: a crossover may lie {' or '.join(ways)}"
        return "The lead shrinks towards neither end: no crossover is in sight"

    def _plain(self, look: LengthRatio) -> dict[str, Any]:
        compared = look.comparison is not None
        return {
            "length": look.length,
            "status": str(look.status),
            "why": look.why,
            "leader": self._label(look.leader) if compared else None,
            "median_s": {self.a: look.a_s, self.b: look.b_s} if compared else None,
            "took_s": look.took_s,
            "comparison": look.comparison and look.comparison.to_dict(),
        }


def _margin(looks: Sequence[LengthRatio]) -> str:
    """``1 %``, or ``1 to 3 %``."""
    said = {f"{100 * x.comparison.margin:.2g}" for x in looks if x.comparison}
    low, high = min(said, key=float), max(said, key=float)
    return f"{low} %" if low == high else f"{low} to {high} %"


def _shrinks(looks: Sequence[LengthRatio]) -> bool:
    """Whether the lead at the last is surely smaller than it is elsewhere, and no turn is seen."""
    leads = [_lead(look) for look in looks]
    (least, most), (_, before) = leads[-1], leads[-2]
    return most < max(low for low, _ in leads[:-1]) and least <= before


def _lead(look: LengthRatio) -> tuple[float, float]:
    """How small and how large the lead may be, as a logarithm."""
    assert look.comparison is not None
    low, high = log(look.comparison.low), log(look.comparison.high)
    least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return least, max(abs(low), abs(high))
