"""Which exact variant to use on each problem: the fastest, or among those that can't be told from
it the one that :mod:`attnbench.answer.ties` prefers.

These are sentences about medians taken one after the other, so variants whose intervals come
within the margin of each other are said to be equal. Only exact softmax is ranked: another
operator is another answer to another question. So is what ran over more processes,
or on a machine of another kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mode
from typing import Any

from attnbench.answer.elsewhere import alike, griefs
from attnbench.answer.ties import preference
from attnbench.answer.twins import furthest
from attnbench.answer.unrest import unrest
from attnbench.record import Record, Time
from attnbench.store.skim import Seen

MARGIN = 0.05
"""Medians of blocks timed one after the other differ by this through drift alone, one time in
twenty: a smaller lead is not a lead. In a run whose twins differ by more, nor is one of that."""
FRUGAL = 0.5
"""A variant that needs less than this share of the winner's memory is worth a word."""


@dataclass(frozen=True)
class Answer:
    """The exact variant to use for one problem."""

    problem: dict[str, Any]
    winner: str
    time: Time
    equal: tuple[str, ...]
    """The others that can't be told from the fastest, up to the first that can: what is slower than
    that one and no better known is no choice."""
    next: str | None
    """The first that can."""
    lead: float | None
    """Its median over the winner's."""
    lead_low: float | None = None
    lead_high: float | None = None
    """How small and how large the lead may be: from the ends of both intervals."""
    memory_bytes: int | None = None
    """The winner's peak."""
    frugal: tuple[str, int, float] | None = None
    """The variant that needs least memory, how much, and its median over the winner's; None where
    the winner needs little more."""
    world: int | None = None
    """Over how many processes each of these variants ran; None of those that ran in one."""
    node: str = ""
    """The kind of machine that measured them, where the records are of several."""
    margin: float = MARGIN
    """What counted as no lead."""
    flags: tuple[str, ...] = ()
    """What was amiss while those were timed that lead, come next or might have led; and which
    leader came to grief at another length."""

    @property
    def leaders(self) -> tuple[str, ...]:
        """The winner and what can't be told from it."""
        return (self.winner, *self.equal)

    def sentence(self) -> str:
        """The answer with its interval."""
        t = self.time
        taken = f"{_ms(t.median_s)} [{_ms(t.low_s)}, {_ms(t.high_s)}] ms"
        alone = not self.equal and self.next is None
        rank = "the only exact variant measured" if alone else "the fastest exact variant"
        if self.equal:
            rank = f"the one to use of {len(self.leaders)} that tie"
        who = f"{self.winner} is {rank}, at {taken}"
        if self.memory_bytes is not None:
            who += f" and {_mib(self.memory_bytes)}"
        if self.equal:
            who += f", and {', '.join(self.equal)} can't be told from it"
        ahead = f"; {_lead(self)} ahead of {self.next}" if self.next else ""
        if self.frugal:
            name, peak, slower = self.frugal
            ahead += f"; {name} needs least memory, {_mib(peak)}, at {slower:.2f}x the time"
        doubt = f" (in doubt: {'; '.join(self.flags)})" if self.flags else ""
        over = f", over {self.world} processes" if self.world else ""
        where = f", on {self.node}" if self.node else ""
        return f"{regime(self.problem)}{over}{where}: {who}{ahead}{doubt}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, without the samples."""
        return {
            "problem": self.problem, "winner": self.winner, "median_s": self.time.median_s,
            "low_s": self.time.low_s, "high_s": self.time.high_s, "equal": list(self.equal),
            "next": self.next, "lead": self.lead, "lead_low": self.lead_low,
            "lead_high": self.lead_high, "memory_bytes": self.memory_bytes,
            "frugal": self.frugal and self.frugal[0], "world": self.world, "node": self.node,
            "margin": self.margin, "flags": list(self.flags),
            "sentence": self.sentence(),
        }  # fmt: skip


def regime(p: dict[str, Any]) -> str:
    """A problem in the words of a sentence: ``forward, mask causal, 1024 tokens, …``."""
    q, k = p["q_len"], p["kv_len"]
    length = f"{k} tokens" if q == k else f"{q} queries on {k} keys"
    width = f"d{p['head_dim']}" + f"/{p['v_head_dim']}" * (p["v_head_dim"] != p["head_dim"])
    words = [p["level"]] * (p["level"] != "core") + [p["phase"], f"mask {p['mask']}", length]
    words += [f"{p['inputs']} inputs"] * (p["inputs"] != "normal")
    words += [f"b{p['batch']} h{p['heads']}/{p['kv_heads']} {width} {p['dtype']}"]
    return ", ".join(words)


def margin_of(records: Sequence[Record | Seen]) -> float:
    """What counts as no lead among the records of one run."""
    twins = furthest(records)
    return max(MARGIN, twins.apart if twins else 0.0, unrest(records))


def margin_said(records: Sequence[Record | Seen]) -> str:
    """Why no smaller lead counts; empty where it is the usual margin."""
    twins, moved = furthest(records), unrest(records)
    if twins is not None and twins.apart > max(MARGIN, moved):
        return twins.sentence()
    if moved > MARGIN:
        return (
            f"leads up to {moved:.0%} are said to be none: the ruler's own canary was off by that "
            "much, one time in twenty, while this was measured"
        )
    return ""


def answers(records: Sequence[Record], margin: float | None = None,
            among: Sequence[Record] | None = None) -> Iterator[Answer]:  # fmt: skip
    """One answer a problem, in the order of the records; none where nothing exact was measured.

    What ran over several processes had as many devices, and unlike machines are unlike devices:
    each is ranked among its like. ``margin``: what counts as no lead; of these records if none.
    ``among``: all that is known of these variants, if that is more.
    """
    margin = margin_of(records) if margin is None else margin
    elsewhere = griefs(records if among is None else among)
    ranked: dict[tuple[str, int | None, str], list[Record]] = {}
    for record in records:
        world = record.ranks.world if record.ranks else None
        problem = json.dumps(record.problem, sort_keys=True)
        ranked.setdefault((problem, world, record.node), []).append(record)
    several = len({node for (_, _, node), some in ranked.items() if any(r.time for r in some)}) > 1
    for (_, world, node), some in ranked.items():
        exact = [r for r in some if r.computes == "softmax" and r.time]
        if exact:
            answer = _answer(some[0].problem, exact, margin)
            told = [elsewhere.get((alike(answer.problem), v)) for v in answer.leaders]
            yield replace(answer, world=world, node=node if several else "",
                          flags=(*answer.flags, *filter(None, told)))  # fmt: skip


def _answer(problem: dict[str, Any], exact: list[Record], margin: float) -> Answer:
    """Of those that most were timed by the same clock as; the others are named and not ranked."""
    clock = mode(r.time.clock for r in exact if r.time)
    timed = [(r.time, r.variant, r) for r in exact if r.time and r.time.clock == clock]
    apart = [
        f"{r.variant} is not ranked: it is timed by the clock {r.time.clock}, others by {clock}"
        for r in exact
        if r.time and r.time.clock != clock
    ]
    ranked = sorted(timed, key=lambda each: each[0].median_s)
    best = ranked[0][0]
    told = [t.low_s > best.high_s * (1 + margin) for t, _, _ in ranked[1:]]
    tied = told.index(True) if True in told else len(told)
    leaders = ranked[: 1 + tied]
    most_s = best.median_s * (1 + margin)
    taken, winner, record = min(
        leaders, key=lambda x: preference(x[1], _peak(x[2]), x[0].median_s, most_s)
    )
    equal = tuple(v for _, v, _ in leaders if v != winner)
    t, behind, _ = ranked[1 + tied] if tied < len(told) else (None, None, None)
    near = [(v, t) for t, v, _ in ranked if v in (winner, behind) or _may_win(t, best, margin)]
    own = _peak(record)
    sized = [(r.memory.peak_bytes, t.median_s, v) for t, v, r in ranked if r.memory]
    peak, slower, least = min(sized, default=(0, 0.0, ""))
    frugal = (least, peak, slower / taken.median_s) if own and peak <= FRUGAL * own else None
    return Answer(
        problem, winner, taken, equal,
        next=behind,
        lead=t.median_s / taken.median_s if t else None,
        lead_low=t.low_s / taken.high_s if t else None,
        lead_high=t.high_s / taken.low_s if t else None,
        memory_bytes=own,
        frugal=frugal,
        margin=margin,
        flags=(*(f"{v} {_amiss(t)}" for v, t in near if t.flags), *apart),
    )  # fmt: skip


def _peak(record: Record) -> int | None:
    return record.memory.peak_bytes if record.memory else None


def _may_win(time: Time, best: Time, margin: float) -> bool:
    """Whether its fastest call could have been the winner's: a slow one's doubts change nothing."""
    return time.min_s <= best.high_s * (1 + margin)


def _amiss(time: Time) -> str:
    kinds = dict.fromkeys(flag.split(":")[0].removeprefix("it ") for flag in time.flags)
    if "drifted" in kinds:  # of the whole machine; that the cell did so too adds nothing
        kinds.pop("drifting", None)
    return " and ".join(kinds)


def _lead(answer: Answer) -> str:
    return f"{answer.lead:.2f}x [{answer.lead_low:.2f}, {answer.lead_high:.2f}]"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.3g} MiB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"
