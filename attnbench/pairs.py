"""Pairs: two calls next to each other in time, in random order, each on fresh values.

What slows the machine slows both calls of a pair, so their ratio stands still while the machine
does not. Pairs are taken until they decide or the cap is reached, each time twice as many, and each
look at them costs its share of the confidence. Now and again both calls get tensors at other
addresses, since a place in memory is luck that would last a whole comparison.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

from attnbench.comparison import CONFIDENCE, LEAST_PAIRS, Comparison, Verdict, holm, paired

A_PLACE = 20
"""Pairs in one place in memory."""


@dataclass(frozen=True)
class Rule:
    """When to stop."""

    margin: float
    first: int = 2 * LEAST_PAIRS
    cap: int = 2560
    budget_s: float = 30.0
    """No new look begins after so long."""

    @property
    def looks(self) -> list[int]:
        """Pairs in all at each look: doubled from the first to the cap."""
        counts = [self.first]
        while counts[-1] < self.cap:
            counts.append(min(2 * counts[-1], self.cap))
        return counts

    @property
    def confidence(self) -> float:
        """Of each look, so that all of them together have the whole's."""
        return 1 - (1 - CONFIDENCE) / len(self.looks)


class Side(Protocol):
    """One of two calls."""

    def fresh(self) -> None:
        """Get ready for some pairs: tensors at other addresses, warmed up."""

    def sample(self) -> float:
        """Seconds of one call."""


@dataclass
class Pairs:
    """The pairs taken, and what they say."""

    comparison: Comparison
    a_s: list[float] = field(default_factory=list)
    b_s: list[float] = field(default_factory=list)
    stop: str = ""
    """``decided``, ``cap`` or ``budget``."""
    names: tuple[str, str] = ("a", "b")
    """Whose samples they are: of variants, or of commits."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values: ``samples_s`` holds the seconds of each by its name, a's first."""
        a, b = self.names
        b += " again" * (a == b)
        samples = {a: list(self.a_s), b: list(self.b_s)}
        return {"comparison": self.comparison.to_dict(), "samples_s": samples, "stop": self.stop}

    @classmethod
    def from_dict(cls, sent: Mapping[str, Any]) -> Pairs:
        """As it was sent or kept; older files hold the samples as ``a_s`` and ``b_s``."""
        samples = sent.get("samples_s") or {"a": sent["a_s"], "b": sent["b_s"]}
        (a, a_s), (b, b_s) = samples.items()
        comparison = Comparison.from_dict(sent["comparison"])
        return cls(comparison, a_s, b_s, sent["stop"], (a, b))


def compare(a: Side, b: Side, rule: Rule, chance: random.Random | None = None) -> Pairs:
    """Look after look, until the pairs decide."""
    chance, start = chance or random.SystemRandom(), perf_counter()
    found = Pairs(paired([0.0], rule.margin))
    for look in rule.looks:
        for first_a in _orders(look - len(found.a_s), chance):
            if len(found.a_s) % A_PLACE == 0:
                for side in chance.sample((a, b), 2):
                    side.fresh()
            one = (a, b) if first_a else (b, a)
            taken = {id(side): side.sample() for side in one}
            found.a_s.append(taken[id(a)])
            found.b_s.append(taken[id(b)])
        ratios = [math.log(y / x) for x, y in zip(found.a_s, found.b_s, strict=True)]
        found.comparison = paired(ratios, rule.margin, confidence=rule.confidence)
        if found.comparison.verdict is not Verdict.INCONCLUSIVE:
            found.stop = "decided"
            return found
        if perf_counter() - start >= rule.budget_s:
            found.stop = "budget"
            return found
    found.stop = "cap"
    return found


def corrected(taken: Sequence[Pairs | None]) -> Iterator[Pairs | None]:
    """Many cells' pairs with Holm's correction over all of them; None where a cell has none."""
    judged = iter(holm([pairs.comparison for pairs in taken if pairs is not None]))
    for pairs in taken:
        yield None if pairs is None else replace(pairs, comparison=next(judged))


def _orders(count: int, chance: random.Random) -> Iterator[bool]:
    """Who goes first: as often the one as the other, in random order."""
    orders = [i % 2 == 0 for i in range(count)]
    chance.shuffle(orders)
    return iter(orders)
