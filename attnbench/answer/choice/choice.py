"""What is said of one problem: the variant to use, how far it is ahead, or why nothing is said."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from attnbench.answer.choice.candidates import Candidate, Excluded, Why
from attnbench.answer.said import milliseconds, size
from attnbench.answer.verdict import MARGIN

if TYPE_CHECKING:
    from attnbench.answer.choice.wants import Wants
    from impls.problem import Problem


@dataclass(frozen=True)
class Lead:
    """By how much one is ahead of another: a factor and its interval."""

    factor: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.factor:.2f}× [{self.low:.2f}, {self.high:.2f}]"

    def to_dict(self) -> dict[str, float]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Choice:
    """What is said of one problem."""

    problem: Problem
    wants: Wants
    winner: Candidate | None
    equal: tuple[Candidate, ...] = ()
    """The others that can't be told from the fastest."""
    next: Candidate | None = None
    """The first that can."""
    lead: Lead | None = None
    """Over the next."""
    slower: tuple[Candidate, ...] = ()
    """What comes after that."""
    excluded: tuple[Excluded, ...] = ()
    why_not: str = ""
    """Why nothing is said, where nothing is."""
    relax: str = ""
    """Which limit would have to give way, and how far."""
    margin: float = MARGIN
    """What counts as no lead."""
    source: str = ""
    """The run that it rests on."""
    pairs: tuple[dict[str, Any], ...] = ()
    """Comparisons in pairs that it rests on besides."""
    settings: tuple[str, ...] = ()
    """What the run was told besides its grid, as the command line has it."""

    @property
    def ranked(self) -> list[Candidate]:
        """All that could be chosen: the winner, what ties with it, then the others by time."""
        after = [self.next] if self.next else []
        return [self.winner, *self.equal, *after, *self.slower] if self.winner else []

    @property
    def unknown(self) -> list[Excluded]:
        """Who might be faster, for all that is known."""
        unknown = [e for e in self.excluded if e.why in (Why.UNKNOWN, Why.ABSENT)]
        slowest = self.winner.high_s if self.winner else math.inf
        return [e for e in unknown if e.at_best_s is None or e.at_best_s < slowest]

    @property
    def pays_after(self) -> int | None:
        """Calls after which what the winner costs once has paid, against the runner-up."""
        other = self.next or (self.equal[0] if self.equal else None)
        if self.winner is None or other is None or self.winner.setup_s is None:
            return None
        once = self.winner.setup_s - (other.setup_s or 0.0)
        each = other.median_s - self.winner.median_s
        return None if each <= 0 else max(0, math.ceil(once / each))

    def sentence(self) -> str:
        """The answer."""
        where = f"{self.problem} ({', '.join(self.wants.words())})"
        if self.winner is None:
            return f"{where}: no answer: {self.why_not}" + f"; {self.relax}" * bool(self.relax)
        w = self.winner
        said = f"{where}: use {w.variant}, {_taken(w)}"
        said += f" and {size(w.memory_bytes)}" if w.memory_bytes is not None else ""
        if self.equal:
            names = ", ".join(c.variant for c in self.equal)
            said += f"; {names} can't be told from it"
        if self.next and self.lead:
            said += f"; {self.lead} ahead of {self.next.variant}" + ", in pairs" * bool(self.pairs)
        if len(self.ranked) == 1:
            said += "; the only one that is known"
        if w.flags:
            kinds = dict.fromkeys(flag.split(":")[0] for flag in w.flags)
            said += f" (in doubt: {' and '.join(kinds)})"
        return said

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "problem": self.problem.to_dict(), "wants": self.wants.words(),
            "winner": self.winner and self.winner.to_dict(),
            "equal": [c.to_dict() for c in self.equal], "next": self.next and self.next.to_dict(),
            "lead": self.lead and self.lead.to_dict(),
            "slower": [c.to_dict() for c in self.slower],
            "excluded": [e.to_dict() for e in self.excluded], "why_not": self.why_not,
            "relax": self.relax, "margin": self.margin, "pays_after_calls": self.pays_after,
            "source": self.source, "pairs": list(self.pairs), "sentence": self.sentence(),
        }  # fmt: skip


def _taken(c: Candidate) -> str:
    """``37.4 ms [32.3 ms, 43.3 ms]``"""
    said = f"{milliseconds(c.median_s)} [{milliseconds(c.low_s)}, {milliseconds(c.high_s)}]"
    return said if c.measured else f"predicted at {said}"
