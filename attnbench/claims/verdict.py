"""What may be said of a claim: four verdicts, each computed from its points.

    REPRODUCED            every point holds
    NOT_REPRODUCED        a point does not hold, or it can't be told: the points say which
    NEEDS_OTHER_HARDWARE  this machine is not what the figures are of
    NOT_RUN               there is no figure for a point, with the reason and what to do

A point holds where the whole interval of our figure lies in the rule's region, and does not where
none of it does. Of an interval across the region's edge nothing can be told.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from attnbench.claims.claim import Claim, Point
from attnbench.claims.figures import Figure


class Verdict(StrEnum):
    """Of a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NEEDS_OTHER_HARDWARE = "needs other hardware"
    NOT_RUN = "not run"


class Held(StrEnum):
    """Of a point."""

    HOLDS = "holds"
    FAILS = "does not hold"
    CANT_TELL = "can't tell"
    NO_FIGURE = "no figure"


def held(point: Point, figure: Figure | None) -> Held:
    """Whether a point holds, by its rule and our figure."""
    if figure is None or figure.value is None:
        return Held.NO_FIGURE
    low, high = figure.interval
    if any(math.isnan(x) for x in (figure.value, low, high)):
        return Held.FAILS
    least, most = point.region
    if least <= low and high <= most:
        return Held.HOLDS
    return Held.FAILS if high < least or low > most else Held.CANT_TELL


def judged(claim: Claim, figures: Mapping[str, Figure]) -> tuple[Verdict, str]:
    """The verdict on a claim that was run, and why where it is not reproduced."""
    states = {point.name: held(point, figures.get(point.name)) for point in claim.points}
    count = Counter(states.values())
    if count[Held.FAILS]:
        return Verdict.NOT_REPRODUCED, _said(states, Held.FAILS)
    if count[Held.NO_FIGURE]:
        whys = dict.fromkeys(f.why for f in figures.values() if f.value is None and f.why)
        return Verdict.NOT_RUN, "; ".join([_said(states, Held.NO_FIGURE), *whys])
    if count[Held.CANT_TELL]:
        return Verdict.NOT_REPRODUCED, _said(states, Held.CANT_TELL)
    return Verdict.REPRODUCED, ""


def _said(states: Mapping[str, Held], state: Held) -> str:
    """``2 of 5 points do not hold: query, value``"""
    some = [name for name, each in states.items() if each is state]
    one = len(some) == 1
    what = {
        Held.FAILS: "does not hold" if one else "do not hold",
        Held.CANT_TELL: "can't be told, for the interval holds the limit",
        Held.NO_FIGURE: "has no figure" if one else "have no figure",
    }[state]
    more = f" and {len(some) - 3} more" * (len(some) > 3)
    points = f"point{'s' * (len(states) != 1)}"
    return f"{len(some)} of {len(states)} {points} {what}: {', '.join(some[:3])}{more}"
