"""How the variants of a regime stand, length by length: what a page opens with.

The ranking is of exact softmax alone. What is faster and computes something else is named beside
it with what it loses, and only where it still does a good part of what softmax does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from attnbench.answer.regimes import Regime, time_of
from attnbench.answer.verdict import MARGIN, Answer, answers
from attnbench.record import Record

SKILLED = 0.5
"""What does less than half of what softmax does beyond averaging is no substitute for it."""


@dataclass(frozen=True)
class Faster:
    """Something that is not exact softmax, and faster than the fastest that is."""

    variant: str
    computes: str
    speedup: float
    """The winner's median over its own."""
    distance: float | None
    skill: float | None


@dataclass(frozen=True)
class Standing:
    """One length of a regime."""

    length: int
    answer: Answer | None
    """None where nothing exact has a time."""
    timed: int
    """How many variants have one, exact or not."""
    faster: tuple[Faster, ...] = ()
    """What is not exact and faster than the winner, the fastest first."""

    @property
    def substitute(self) -> Faster | None:
        """The fastest of these that keeps enough of what softmax does."""
        return next((f for f in self.faster if f.skill is not None and f.skill >= SKILLED), None)

    @property
    def nearest(self) -> Faster | None:
        """The one of these that keeps most of it, be it little."""
        told = [f for f in self.faster if f.skill is not None]
        return max(told, key=lambda f: f.skill or 0.0, default=None)

    @property
    def leaders(self) -> tuple[str, ...]:
        """The winner and what can't be told from it."""
        return self.answer.leaders if self.answer else ()

    @property
    def sure(self) -> str:
        """How sure the answer is, in a word or two."""
        if self.answer is None:
            return "nothing exact was measured"
        if self.answer.flags:
            return "in doubt"
        if self.answer.equal:
            return f"a tie of {len(self.leaders)}"
        return "clear" if self.answer.next else "the only one measured"


@dataclass(frozen=True)
class Stretch:
    """Lengths next to each other at which the same variants lead."""

    standings: tuple[Standing, ...]

    @property
    def last(self) -> Standing:
        """The longest of them, which stands for all."""
        return self.standings[-1]

    @property
    def doubts(self) -> list[str]:
        """What was amiss, at any of these lengths."""
        return list(dict.fromkeys(f for s in self.standings if s.answer for f in s.answer.flags))

    @property
    def span(self) -> str:
        """``1,024 to 4,096``."""
        first, last = self.standings[0].length, self.last.length
        return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def standings(regime: Regime, margin: float = MARGIN) -> list[Standing]:
    """One for each length, the shortest first; a lead within the margin is none."""
    return [
        _standing(length, list(some.values()), margin, regime.records)
        for length, some in regime.cells.items()
    ]


def stretches(found: Sequence[Standing]) -> list[Stretch]:
    """The same, those next to each other together where the same variants lead."""
    together = groupby(found, key=lambda s: frozenset(s.leaders))
    return [Stretch(tuple(some)) for _, some in together]


def _standing(length: int, records: Sequence[Record], margin: float,
              among: Sequence[Record]) -> Standing:  # fmt: skip
    timed = [r for r in records if time_of(r)]
    answer = next(answers(timed, margin, among), None)
    faster = sorted(_faster(answer, timed), key=lambda f: -f.speedup) if answer else ()
    return Standing(length, answer, len(timed), tuple(faster))


def _faster(answer: Answer, records: Sequence[Record]) -> Iterator[Faster]:
    for record in records:
        time, distance = record.time, record.distance
        if record.computes == "softmax" or time is None or time.clock != answer.time.clock:
            continue
        if time.high_s * (1 + answer.margin) < answer.time.low_s:
            yield Faster(
                record.variant, record.computes, answer.time.median_s / time.median_s,
                distance.relative if distance else None, distance.skill if distance else None,
            )  # fmt: skip
