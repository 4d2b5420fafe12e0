"""A timeline as plain values: what is alive when by what allocated it, and each line's share."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from attnbench.measure.profile.timeline import Source, Step, Timeline
from impls.problem import Problem

MOST_MOMENTS = 1200
MOST_SOURCES = 8
"""Told apart for what they hold at the peak, and as many more for what they hold all along; the
rest are one."""
REST = Source("", "all the rest", False)
TINY = 64
"""Allocations of fewer bytes are scalars, and no line's worth in a list."""
ALIKE = 0.01


class Moment(NamedTuple):
    """An instant, and what is alive after it."""

    at_ns: int
    total: int
    alive: dict[Source, int]


def moments(steps: Sequence[Step], most: int) -> list[Moment]:
    """What is alive over time, at no more than some instants: the highest of each stretch, and its
    last.
    """
    totals = list(accumulate(step.nbytes for step in steps))
    kept = set(range(len(steps)))
    if len(steps) > most:
        length = -(-len(steps) // (most // 2))
        stretches = [range(i, min(i + length, len(steps))) for i in range(0, len(steps), length)]
        kept = {max(some, key=totals.__getitem__) for some in stretches}
        kept |= {some[-1] for some in stretches}
    found, alive = [], dict[Source, int]()
    for number, (at_ns, source, nbytes) in enumerate(steps):
        alive[source] = alive.get(source, 0) + nbytes
        if number in kept:
            there = {source: held for source, held in alive.items() if held}
            found.append(Moment(at_ns, totals[number], there))
    return found


def memory_values(timeline: Timeline, problem: Problem) -> dict[str, Any]:
    """The peak, and what is alive over time by the sources that had most."""
    found = moments(timeline.steps, MOST_MOMENTS)
    peak = max(found, key=lambda m: m.total, default=Moment(timeline.start_ns, 0, {}))
    turn = timeline.turn_ns
    before_turn = [m.total for m in found if turn is not None and m.at_ns < turn]

    def ms(at_ns: int) -> float:
        return (at_ns - timeline.start_ns) * 1e-6

    return {
        "peak_bytes": peak.total, "peak_ms": ms(peak.at_ns),
        "peak_phase": "backward" if turn is not None and peak.at_ns >= turn else "forward",
        "turn_ms": None if turn is None else ms(turn),
        "turn_bytes": None if turn is None else [0, *before_turn][-1],
        "end_ms": ms(timeline.end_ns), "scores_bytes": _scores_bytes(problem),
        "largest": _largest(timeline.steps), "at_ms": [ms(m.at_ns) for m in found],
        **_by_source(found, peak),
    }  # fmt: skip


def _by_source(found: Sequence[Moment], peak: Moment) -> dict[str, Any]:
    """The sources that hold most, and each one's bytes over time."""
    area: dict[Source, int] = {}
    for moment, then in zip(found, [*found[1:], *found[-1:]], strict=True):
        for source, nbytes in moment.alive.items():
            area[source] = area.get(source, 0) + nbytes * (then.at_ns - moment.at_ns)
    at_the_peak = sorted(peak.alive, key=lambda s: -peak.alive[s])[:MOST_SOURCES]
    others = sorted(area.keys() - set(at_the_peak), key=lambda s: -area[s])
    named, rest = at_the_peak + others[:MOST_SOURCES], others[MOST_SOURCES:]

    def row(alive: dict[Source, int]) -> list[int]:
        others = [sum(alive.get(s, 0) for s in rest)] * bool(rest)
        return [alive.get(s, 0) for s in named] + others

    rows, at_peak = [row(m.alive) for m in found], row(peak.alive)
    sources = [
        {"place": _place(s.place), "code": _code(s.place), "operator": s.operator,
         "backward": s.backward, "peak_bytes": at_peak[i], "most_bytes": max(r[i] for r in rows)}
        for i, s in enumerate([*named, *[REST] * bool(rest)])
    ]  # fmt: skip
    return {"sources": sources, "alive": rows}


def _scores_bytes(problem: Problem) -> int:
    """A number for each query, key and head, in the problem's dtype."""
    pairs = problem.batch * problem.heads * problem.q_len * problem.kv_len
    return pairs * problem.item_bytes


def _largest(steps: Iterable[Step]) -> dict[str, Any]:
    """The largest single allocation, and how many were as large (to a hundredth)."""
    taken = [step for step in steps if step.nbytes > 0]
    if not taken:
        return {"bytes": 0, "count": 0, "forward": 0}
    most = max(step.nbytes for step in taken)
    alike = [step for step in taken if step.nbytes >= (1 - ALIKE) * most]
    forward = sum(not step.source.backward for step in alike)
    return {"bytes": most, "count": len(alike), "forward": forward}


def line_values(timeline: Timeline, memory: dict[str, Any], *, timed: bool) -> list[dict[str, Any]]:
    """Each line's share of the time, with what its gradient takes, and the bytes it allocated."""
    ends = [*(span.start_ns for span in timeline.spans[1:]), timeline.end_ns]
    spent: dict[str, list[int]] = {}
    functions: dict[str, dict[str, int]] = {}
    for span, end in zip(timeline.spans, ends, strict=True):
        if span.place:
            length = max(0, end - span.start_ns)
            spent.setdefault(span.place, [0, 0])[span.backward] += length
            of = functions.setdefault(span.place, {})
            of[span.gradient] = of.get(span.gradient, 0) + length * span.backward
    taken: dict[str, int] = {}
    for _, source, nbytes in timeline.steps:
        if source.place and nbytes > TINY:
            taken[source.place] = taken.get(source.place, 0) + nbytes
    whole = max(1, timeline.end_ns - timeline.start_ns)
    at_peak: dict[str, int] = {}
    for source in memory["sources"]:
        at_peak[source["place"]] = at_peak.get(source["place"], 0) + source["peak_bytes"]
    found: list[dict[str, Any]] = [
        {"place": _place(place), "code": _code(place),
         "forward_share": forward / whole if timed else None,
         "backward_share": backward / whole if timed else None,
         "gradient": max(functions[place], key=functions[place].__getitem__) if backward else "",
         "allocated_bytes": taken.get(place, 0), "peak_bytes": at_peak.get(_place(place), 0)}
        for place, (forward, backward) in spent.items()
    ]  # fmt: skip
    kept = [x for x in found if x["allocated_bytes"] or (x["forward_share"] or 0) > 0.001]
    return sorted(kept, key=_share, reverse=True)


def _share(line: dict[str, Any]) -> float:
    return float((line["forward_share"] or 0.0) + (line["backward_share"] or 0.0))


def _place(place: str) -> str:
    """``einsum.py:22``"""
    return place.rpartition("/")[2]


def _code(place: str) -> str:
    """The line itself."""
    file, _, number = place.rpartition(":")
    return linecache.getline(file, int(number)).strip() if file else ""
