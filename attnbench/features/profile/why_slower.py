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
MORE = 1.3  # work beyond this factor is mentioned
HARDLY = 0.02  # a share of the other's time: less than this is hardly running it

Profile = Mapping[str, Any]


def why_slower(one: Profile, other: Profile) -> list[str]:
    """Up to six sentences about the slower of two variants on one problem."""
    slow, fast = sorted((one, other), key=lambda p: -p["plain"]["total_s"])
    parts = (_compare_times, _compare_work, _compare_operators)
    return [text for part in parts for text in part(slow, fast)]


def _compare_times(slow: Profile, fast: Profile) -> Iterator[str]:
    times = [p["plain"]["total_s"] for p in (slow, fast)]
    peaks = [p["memory"]["peak_bytes"] for p in (slow, fast)]
    names = [name_and_kind(p["variant"], p["computes"]) for p in (slow, fast)]
    if times[0] < ALIKE * times[1]:
        text = f"{names[0]} and {names[1]} take about the same time: "
    else:
        text = f"{names[0]} takes {ratio(times[0] / times[1])} as long as {names[1]}: "
    yield text + f"{duration(times[0])} a call against {duration(times[1])}."
    if min(peaks) > 0:
        text = f"Its peak is {size(peaks[0])} against {size(peaks[1])}"
        scores = slow["memory"]["scores_bytes"]
        if peaks[0] >= scores > peaks[1]:
            text += f", and holds all scores ({size(scores)}), which the other never has at once"
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
    mine, theirs = _seconds_by_operator(slow), _seconds_by_operator(fast)
    whole, lesser = (sum(p["profiled_s"] for p in x["phases"]) for x in (slow, fast))
    for seconds, others, of, p, other in (
        (mine, theirs, whole, slow, fast),
        (theirs, mine, lesser, fast, slow),
    ):
        only = {n: s for n, s in seconds.items() if others[n] < HARDLY * s}
        if (share := sum(only.values()) / (of or 1.0)) >= LISTED:
            whose = "its time" if p is slow else f"that of {p['variant']}"
            largest = Counter(only).most_common(MOST_LISTED)
            words = [
                f"{short(plain(n), 36)} {percent(s / of)}" for n, s in largest if s >= LISTED * of
            ]
            listed = f" ({', '.join(words)})" if words else ""
            yield (
                f"{percent(share)} of {whose} goes to {p['phases'][0]['of']} that "
                f"{other['variant']} hardly runs, if at all{listed}."
            )
    both = {n: s - theirs[n] for n, s in mine.items() if theirs[n] >= HARDLY * s and s > theirs[n]}
    if whole > lesser and (most := sum(both.values())) >= 0.3 * (whole - lesser):
        names = [n for n, s in Counter(both).most_common(2) if s >= 0.1 * most]
        words = [
            f"{short(plain(n), 36)} ({duration(mine[n])} against {duration(theirs[n])})"
            for n in names
        ]
        yield f"Of what both run, {duration(most)} more: mostly {' and '.join(words)}."


def _seconds_by_operator(profile: Profile) -> Counter[str]:
    """Seconds by operator, both phases together."""
    seconds: Counter[str] = Counter()
    for phase in profile["phases"]:
        for row in phase["operators"]:
            seconds[row["name"]] += row["self_s"]
    return seconds
