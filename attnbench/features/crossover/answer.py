"""Where one of two variants overtakes the other: brackets and ties, never a point.

The lengths fall into stretches: neighbouring lengths with the same leader. A crossover lies between
the last length where the one led by more than the margin and the first where the other does;
lengths between, where they can't be told apart, are its ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from attnbench.answer.ranking import torch_rank
from attnbench.core.format import counted
from attnbench.features.crossover.search import A, B, CrossoverSearch, LengthRatio

BUDGET, STOPPED = "the budget was spent", "it was stopped"
"""Why a search ended before it was over."""


class CrossoverStretch(NamedTuple):
    """Neighbouring lengths with the same leader; an empty one where they can't be told apart."""

    leader: str
    first: int
    last: int
    looks: Sequence[LengthRatio]


class Crossover(NamedTuple):
    """``before`` leads up to the length ``low``, ``after`` from ``high`` on; from the first to the
    last of ``ties`` they can't be told apart. It is tight where no length is left to narrow it.
    """

    before: str
    after: str
    low: int
    high: int
    ties: tuple[int, int] | None
    tight: bool


@dataclass(frozen=True)
class CrossoverAnswer:
    """The result of a search. ``what`` a length counts: tokens, or keys; ``ended``: why it ended
    before it was over; ``left_out``: sentences about lengths that were left out.
    """

    a: str
    b: str
    what: str
    asked: tuple[int, int]
    search: CrossoverSearch
    ended: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def all_looks(self) -> list[LengthRatio]:
        """All results, by length."""
        return sorted([*self.search.looks, *self.search.failed], key=lambda look: look.length)

    def stretches(self) -> list[CrossoverStretch]:
        """All, by length."""
        found = []
        for leader, group in groupby(self.search.looks, key=lambda look: look.leader):
            looks = tuple(group)
            ends = looks[0].length, looks[-1].length
            found.append(CrossoverStretch(self._label(leader), *ends, looks))
        return found

    def crossovers(self) -> list[Crossover]:
        """Each change of leader, by length."""
        found: list[Crossover] = []
        ahead: CrossoverStretch | None = None
        ties: list[CrossoverStretch] = []
        for stretch in self.stretches():
            if not stretch.leader:
                ties.append(stretch)
                continue
            if ahead is not None and ahead.leader != stretch.leader:
                tied = (ties[0].first, ties[-1].last) if ties else None
                tight = not any(
                    one.last < length < other.first
                    for one, other in pairwise([ahead, *ties, stretch])
                    for length in self.search.rungs
                )
                ends = ahead.last, stretch.first
                found.append(Crossover(ahead.leader, stretch.leader, *ends, tied, tight))
            ahead, ties = stretch, []
        return found

    def _label(self, leader: str) -> str:
        return {A: self.a, B: self.b}.get(leader, "")

    # ---- words ---------------------------------------------------------------------------------

    def sentence(self) -> str:
        """Which one leads where, where that changes, and how many pairs it rests on."""
        looks = self.search.looks
        if not looks:
            return f"{self.a} and {self.b} were compared at no length"
        pairs = sum(look.comparison.n for look in looks if look.comparison)
        loose = f", and no tighter, for {self.ended or 'lengths between could not be compared'}"
        texts = [self._course()]
        for c in self.crossovers():
            between = f"{c.after} overtakes {c.before} between {c.low:,} and {c.high:,}"
            texts.append(between if c.tight else between + loose)
        first, other = sorted((self.a, self.b), key=torch_rank)
        tie = any(not one.leader for one in self.stretches())
        if tie and torch_rank(first) != torch_rank(other):
            texts.append(f"Where they tie, use {first}: it is torch's own")
        return f"{'. '.join(texts)} ({pairs:,} pairs at {counted(len(looks), 'length')})"

    def _course(self) -> str:
        """Which one leads where."""

        def margin(looks: Sequence[LengthRatio]) -> str:
            """``1 %``, or ``1 to 3 %``."""
            margins = {f"{100 * x.comparison.margin:.2g}" for x in looks if x.comparison}
            return f"{' to '.join(sorted(margins, key=float)[:: max(1, len(margins) - 1)])} %"

        apart = "can't be told apart at"
        places: list[str] = []
        for one in self.stretches():
            where = f"from {one.first:,} to {one.last:,}"
            where = where if one.first < one.last else f"at {one.first:,}"
            where += "" if places else f" {self.what}"
            tied = f"{where} they {apart} {margin(one.looks)}"
            places.append(f"{where} {one.leader} is faster" if one.leader else tied)
        if len(places) > 1:
            return "; ".join(places)
        if not one.leader:
            return f"{self.a} and {self.b} {apart} {margin(one.looks)}, {where}"
        shares = []
        for look in dict.fromkeys((one.looks[0], one.looks[-1])):  # the leader's of the other's
            if (c := look.comparison) is not None:
                ends = (c.ratio, c.low, c.high)
                if look.leader == A:
                    ends = (1 / c.ratio, 1 / c.high, 1 / c.low)
                ratio, low, high = (f"{x:.3g}" for x in ends)
                shares.append(f"{ratio} [{low}, {high}] at {look.length:,}")
        throughout = "throughout, " if one.first < one.last else ""
        taken, other = " and ".join(shares), self.b if one.leader == self.a else self.a
        return f"{one.leader} is faster {throughout}{where}: it takes {taken} of {other}'s time"

    def notes(self) -> list[str]:
        """What else must be known."""
        search, end, longest = self.search, self.search.end, self.search.rungs[-1]
        looks, notes = search.looks, list(self.left_out)
        for look in search.failed:
            where = f"from {look.length:,} on" if look is end else f"at {look.length:,}"
            status = str(look.status).replace("_", " ")
            notes.append(f"{where} they can't be compared: {status}: {look.why}")
        if search.cut is not None:
            notes.append(f"{BUDGET} while {search.cut:,} was looked at")
        elif self.ended and end is None and not any(x.length == longest for x in looks):
            notes.append(f"{self.ended} before {longest:,} was looked at")
        if undecided := [f"{look.length:,}" for look in looks if not look.decided]:
            notes.append(f"at {', '.join(undecided)} the pairs did not decide")
        if len(looks) > 1:
            notes.append("two crossovers within an octave of lengths would not be seen")
        return notes

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        crossovers = [each._asdict() for each in self.crossovers()]
        return {
            "a": self.a,
            "b": self.b,
            "range": list(self.asked),
            "stretches": [
                {"leader": each.leader, "from": each.first, "to": each.last}
                for each in self.stretches()
            ],
            "crossovers": [{**c, "ties": c["ties"] and list(c["ties"])} for c in crossovers],
            "looks": [
                {
                    "length": look.length,
                    "status": str(look.status),
                    "why": look.why,
                    "leader": self._label(look.leader) if look.comparison else None,
                    "median_s": look.comparison and {self.a: look.a_s, self.b: look.b_s},
                    "took_s": look.took_s,
                    "comparison": look.comparison and look.comparison.to_dict(),
                }
                for look in self.all_looks
            ],
            "ended": self.ended or "found",
            "notes": self.notes(),
            "sentence": self.sentence(),
        }
