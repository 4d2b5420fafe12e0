"""Which exact variant was fastest on each problem, and which can't be told from it.

These are sentences about medians taken one after the other, so variants whose intervals come
within the margin of each other are said to be equal. Only exact softmax is ranked: another
operator is another answer to another question.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attnbench.record import Record, Time

MARGIN = 0.01
"""Less than this apart is no difference that anybody could act on."""


@dataclass(frozen=True)
class Answer:
    """The fastest exact variant of one problem."""

    problem: dict[str, Any]
    winner: str
    time: Time
    equal: tuple[str, ...]
    """Variants that can't be told from the winner."""
    next: str | None
    """The first that can."""
    lead: float | None
    """Its median over the winner's."""
    flags: tuple[str, ...] = ()
    """What was amiss while the variants of this problem were timed."""

    def sentence(self) -> str:
        """The answer with its interval."""
        t = self.time
        taken = f"{_ms(t.median_s)} [{_ms(t.low_s)}, {_ms(t.high_s)}] ms"
        alone = not self.equal and self.next is None
        rank = "the only exact variant measured" if alone else "the fastest exact variant"
        who = f"{self.winner} is {rank}, at {taken}"
        if self.equal:
            who += f", and {', '.join(self.equal)} can't be told from it"
        ahead = f"; {self.lead:.2f}x ahead of {self.next}" if self.next else ""
        doubt = f" (in doubt: {'; '.join(self.flags)})" if self.flags else ""
        return f"{regime(self.problem)}: {who}{ahead}{doubt}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, without the samples."""
        return {
            "problem": self.problem, "winner": self.winner, "median_s": self.time.median_s,
            "low_s": self.time.low_s, "high_s": self.time.high_s, "equal": list(self.equal),
            "next": self.next, "lead": self.lead, "flags": list(self.flags),
            "sentence": self.sentence(),
        }  # fmt: skip


def regime(p: dict[str, Any]) -> str:
    """A problem in the words of a sentence: ``forward, mask causal, 1024 tokens, …``."""
    q, k = p["q_len"], p["kv_len"]
    length = f"{k} tokens" if q == k else f"{q} queries on {k} keys"
    width = f"d{p['head_dim']}" + f"/{p['v_head_dim']}" * (p["v_head_dim"] != p["head_dim"])
    words = [p["phase"], f"mask {p['mask']}", length]
    words += [f"{p['inputs']} inputs"] * (p["inputs"] != "normal")
    words += [f"b{p['batch']} h{p['heads']}/{p['kv_heads']} {width} {p['dtype']}"]
    return ", ".join(words)


def answers(records: Iterable[Record]) -> Iterator[Answer]:
    """One answer a problem, in the order of the records; none where nothing exact was measured."""
    by_problem: dict[str, list[Record]] = {}
    for record in records:
        by_problem.setdefault(json.dumps(record.problem, sort_keys=True), []).append(record)
    for some in by_problem.values():
        exact = [(r.time, r.variant) for r in some if r.computes == "softmax" and r.time]
        if exact:
            ranked = sorted(exact, key=lambda e: e[0].median_s)
            yield _answer(some[0].problem, ranked)


def _answer(problem: dict[str, Any], ranked: list[tuple[Time, str]]) -> Answer:
    best, winner = ranked[0]
    equal = tuple(v for t, v in ranked[1:] if t.low_s <= best.high_s * (1 + MARGIN))
    rest = [(t, v) for t, v in ranked[1:] if v not in equal]
    lead = rest[0][0].median_s / best.median_s if rest else None
    busy = [variant for time, variant in ranked if time.flags]
    flags = (f"the machine was busy while {', '.join(busy)} ran",) if busy else ()
    return Answer(problem, winner, best, equal, rest[0][1] if rest else None, lead, flags)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"
