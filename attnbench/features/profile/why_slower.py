"""Sentences on why one of two variants is slower, computed from their profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from attnbench.core.format import (
    billions,
    duration,
    name_and_kind,
    percent,
    plain,
    ratio,
    short,
    size,
)

ALIKE = 1.05  # times within this factor differ too little for a profile to explain
LISTED, MOST_LISTED = 0.03, 4
"""Operators below this share of the time are not named, nor more than so many."""
AS_LARGE = 0.99
"""A tensor from this share of all scores' bytes to twice as much holds a score matrix."""
MORE = 1.3  # work beyond this factor is mentioned
DOUBT = 1.4  # plain and profiled ratios further apart than this contradict each other
HARDLY = 0.02  # a share of the other's time: less than this is hardly running it

Profile = Mapping[str, Any]


def why_slower(one: Profile, other: Profile) -> list[str]:
    """Up to six sentences about the slower of two variants on one problem."""
    slow, fast = sorted((one, other), key=lambda p: -p["plain"]["total_s"])
    parts = (_compare_times, _compare_work, _compare_operators, _compare_allocations)
    return [text for part in parts for text in part(slow, fast)]


def _compare_times(slow: Profile, fast: Profile) -> Iterator[str]:
    times = [p["plain"]["total_s"] for p in (slow, fast)]
    apart = times[0] / max(times[1], 1e-12)
    peaks = [p["memory"]["peak_bytes"] for p in (slow, fast)]
    names = [name_and_kind(p["variant"], p["computes"]) for p in (slow, fast)]
    if times[0] < ALIKE * times[1]:
        text = f"{names[0]} and {names[1]} take about the same time: "
    else:
        text = f"{names[0]} takes {ratio(apart)} as long as {names[1]}: "
    text += f"{duration(times[0])} a call against {duration(times[1])}"
    if min(peaks) > 0:
        text += f"; its peak is {size(peaks[0])} against {size(peaks[1])}"
        text += f" ({ratio(peaks[0] / peaks[1])})"
    traced = [profiled_seconds(p) for p in (slow, fast)]
    if min(*times, *traced) > 0:  # where the two disagree, one of them was disturbed
        then = traced[0] / traced[1]
        if not 1 / DOUBT < apart / then < DOUBT:
            text += (
                f". Beware: while they were profiled it was {ratio(then)} as long; something "
                "disturbed one of the two, so ask again when the machine is quiet"
            )
    yield text + "."


def _compare_work(slow: Profile, fast: Profile) -> Iterator[str]:
    if not slow["cost"] or not fast["cost"]:
        return
    needed, less = slow["cost"]["flops"], fast["cost"]["flops"]
    done = sum(row["flops"] or 0 for phase in slow["phases"] for row in phase["operators"])
    if needed > MORE * less > 0:
        yield (
            f"Its mathematics takes {billions(needed)}, {ratio(needed / less)} the "
            f"{billions(less)} of {fast['variant']}."
        )
    if done > MORE * needed > 0:
        yield f"Its operators do {billions(done)} where its mask asks for {billions(needed)}."


def _compare_operators(slow: Profile, fast: Profile) -> Iterator[str]:
    """The operators that only one of them runs, and those of both that take longer."""
    mine, theirs = seconds_by_operator(slow), seconds_by_operator(fast)
    whole, lesser = (sum(p["profiled_s"] for p in x["phases"]) for x in (slow, fast))
    only = {n: s for n, s in mine.items() if theirs[n] < HARDLY * s}
    if whole > 0 and sum(only.values()) >= LISTED * whole:
        of = slow["phases"][0]["of"]
        text = f"{percent(sum(only.values()) / whole)} of its time goes to {of} that "
        text += f"{fast['variant']} hardly runs, if at all{_list_largest(only, whole)}"
        others = {n: s for n, s in theirs.items() if mine[n] < HARDLY * s}
        if lesser > 0 and sum(others.values()) >= LISTED * lesser:
            text += (
                f"; {fast['variant']} spends {percent(sum(others.values()) / lesser)} in its own"
            )
            text += _list_largest(others, lesser)
        yield text + "."
    longer = {n: s - theirs[n] for n, s in mine.items() if n not in only and s > theirs[n]}
    if whole > lesser and (most := sum(longer.values())) >= 0.3 * (whole - lesser):
        names = [n for n, s in Counter(longer).most_common(2) if s >= 0.1 * most]
        words = " and ".join(
            f"{short(plain(n), 36)} ({duration(mine[n])} against {duration(theirs[n])})"
            for n in names
        )
        yield f"Of what both run, {duration(most)} more: mostly {words}."


def _list_largest(seconds: Mapping[str, float], whole: float) -> str:
    large = [(n, s) for n, s in Counter(seconds).most_common(MOST_LISTED) if s >= LISTED * whole]
    words = ", ".join(f"{short(plain(n), 36)} {percent(s / whole)}" for n, s in large)
    return f" ({words})" if words else ""


def _compare_allocations(slow: Profile, fast: Profile) -> Iterator[str]:
    mine, theirs = slow["memory"]["largest"], fast["memory"]["largest"]
    if mine["bytes"] > ALIKE * theirs["bytes"] > 0:
        scores = slow["memory"]["scores_bytes"]
        alike = AS_LARGE * scores <= mine["bytes"] <= 2 * scores / AS_LARGE
        size_words = ", the size of all scores" if alike else ""
        count = f"{mine['count']} times" if mine["count"] > 1 else "once"
        yield (
            f"It allocates {size(mine['bytes'])} at once{size_words}, {count}, and "
            f"{fast['variant']} never more than {size(theirs['bytes'])}."
        )


def profiled_seconds(profile: Profile) -> float:
    """Seconds under the profiler of what the plain calls time: without forward where that is not
    part of the phase.
    """
    alone = profile["problem"]["phase"] == "backward"
    return float(
        sum(p["profiled_s"] for p in profile["phases"] if p["name"] == "backward" or not alone)
    )


def seconds_by_operator(profile: Profile) -> Counter[str]:
    """Seconds by operator, both phases together."""
    seconds: Counter[str] = Counter()
    for phase in profile["phases"]:
        for row in phase["operators"]:
            seconds[row["name"]] += row["self_s"]
    return seconds
