"""What a whole model gains where its attention calls take other variants: Amdahl, with intervals.

A site is a place where a program calls attention, and its share is what that takes of a step, as
captured. Were its calls r times as long, a step would be shorter by the share times 1 - r. r comes
from two times measured alone, of what the site would take and of what it uses now; the share comes
from the program itself, where caches are cold and other work runs beside.

There a call takes longer than alone, by as much as was captured of what the site uses now. What it
would take instead is not known to pay in proportion, as it would for a slower machine, nor as many
seconds, as it would for tensors that both have to fetch: one lies within the other's reach, so r
spans both and its value is the middle.

Intervals are carried through by interval arithmetic: each figure at the worse end of its own. A
bootstrap would be narrower only by supposing that what is wrong with one site is not wrong with the
next, and sites share both: one problem's times serve all the sites that have it, and a machine that
drifts does so under all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from attnbench.core.stats import LEAST_MARGIN
from impls.asked import CantBeDone

if TYPE_CHECKING:
    from attnbench.answer.choose import Choice
    from attnbench.answer.ranking import Candidate


ROUNDING = 1e-6
"""By so much shares may add up to more than a whole."""


class NoGain(CantBeDone):
    """Figures that can't be shares or times."""


@dataclass(frozen=True)
class GainInterval:
    """A figure and its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> GainInterval:
        """Without an interval."""
        return cls(value, value, value)

    def over(self, other: GainInterval) -> GainInterval:
        """This divided by another, both above nought."""
        return GainInterval(self.value / other.value, self.low / other.high, self.high / other.low)

    def or_else(self, other: GainInterval) -> GainInterval:
        """One of the two, and it is not known which."""
        middle = (self.value + other.value) / 2
        return GainInterval(middle, min(self.low, other.low), max(self.high, other.high))

    def saved(self, ratio: GainInterval) -> GainInterval:
        """Of this share what is gained where its time becomes so many times as long."""
        ends = [s * (1 - r) for s in (self.low, self.high) for r in (ratio.low, ratio.high)]
        return GainInterval(self.value * (1 - ratio.value), min(ends), max(ends))

    def sound(self, least: float) -> bool:
        """Whether it is a figure within its interval, from ``least`` on."""
        known = all(map(isfinite, (self.low, self.value, self.high)))
        return known and least <= self.low <= self.value <= self.high


@dataclass(frozen=True)
class SiteTimes:
    """A site, what it uses now and what it would take."""

    site: str
    share: GainInterval | None
    """Of a step; None where it was not measured."""
    uses: str
    now_s: GainInterval | None
    takes: str = ""
    then_s: GainInterval | None = None
    """None where there is no answer."""
    why: str = ""
    """Why there is no answer."""
    inside_s: float | None = None
    """What a call took in the program; the times above are of calls alone. None if unknown."""

    @property
    def ratio(self) -> GainInterval | None:
        """Its time then over its time now, in the program; None where nothing would change."""
        if self.now_s is None or self.then_s is None or self.takes == self.uses:
            return None
        alone = self.then_s.over(self.now_s)
        if self.inside_s is None:
            return alone
        return alone.or_else(_with_as_many_seconds_more(self.now_s, self.then_s, self.inside_s))

    @property
    def saved(self) -> GainInterval:
        """Of a step."""
        if self.share is None or self.ratio is None:
            return GainInterval.exactly(0.0)
        return self.share.saved(self.ratio)

    def unchanged(self) -> str:
        """Why it stays as it is; empty where it does not."""
        if self.then_s is not None and self.takes == self.uses:
            return f"it uses {self.uses} already"
        if self.ratio is None:
            return self.why or "there is no answer for it"
        return "" if self.share is not None else "its share was not measured"


@dataclass(frozen=True)
class Gain:
    """How a step's time changes."""

    sites: tuple[SiteTimes, ...]
    """Those that save most first."""
    of: str
    """``a step``, or what else the shares are of."""

    @property
    def share(self) -> GainInterval:
        """What attention takes of a step now."""
        some = [site.share for site in self.sites if site.share is not None]
        return GainInterval(
            sum(s.value for s in some),
            sum(s.low for s in some),
            min(1.0, sum(s.high for s in some)),
        )

    @property
    def factor(self) -> GainInterval:
        """A step's time then over its time now; no less than what attention itself takes then."""
        saved = [site.saved for site in self.sites]
        least = sum(
            site.share.low * (site.ratio.low if site.ratio else 1.0)
            for site in self.sites
            if site.share is not None
        )
        return GainInterval(
            1 - sum(s.value for s in saved),
            max(least, 1 - sum(s.high for s in saved)),
            1 - sum(s.low for s in saved),
        )

    @property
    def told(self) -> bool:
        """Whether it can be told from nothing."""
        factor = self.factor
        return not factor.low <= 1 <= factor.high

    def sentence(self) -> str:
        """Attention's share of a step, and how the step's time changes."""
        if not any(site.share is not None for site in self.sites):
            return f"what {self.of} gains can't be said: no site's share of it was measured"
        return "; ".join(filter(None, [self._share(), self._taken(), self._stay()]))

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "of": self.of,
            "share": asdict(self.share),
            "factor": asdict(self.factor),
            "told": self.told,
            "sentence": self.sentence(),
            "sites": [_plain(site) for site in self.sites],
        }

    def _share(self) -> str:
        s = self.share
        interval = f" [{_percent(s.low)}, {_percent(s.high)}]" if s.low < s.high else ""
        return f"attention is {_percent(s.value)} %{interval} of {self.of}"

    def _taken(self) -> str:
        factor = self.factor
        if not any(site.ratio and site.share for site in self.sites):
            return "no site would take another variant"
        taken = f"{factor.value:.2f} [{factor.low:.2f}, {factor.high:.2f}] of its time"
        if not self.told:
            return (
                f"what is gained can't be told from nothing: taking these, {self.of} takes {taken}"
            )
        if abs(factor.value - 1) < LEAST_MARGIN:
            more = "less than a hundredth apart"
        elif factor.value > 1:
            more = f"{factor.value:.2f}× slower"
        else:
            more = f"{1 / factor.value:.2f}× faster"
        bound = f"were attention free it would take {1 - self.share.value:.2f}"
        return f"taking these, {self.of} takes {taken} ({more}; {bound})"

    def _stay(self) -> str:
        stay = sum(bool(site.unchanged()) for site in self.sites)
        if not stay or stay == len(self.sites):
            return ""
        how = "stays as it is" if stay == 1 else "stay as they are"
        return f"{stay} of {len(self.sites)} sites {how}"


def gain(sites: Sequence[SiteTimes], of: str = "a step") -> Gain:
    """What a whole model gains; raises :class:`NoGain` for figures that can't be."""
    for site in sites:
        _refuse(site, of)
    found = Gain(tuple(sorted(sites, key=lambda site: -site.saved.value)), of)
    whole = sum(site.share.value for site in sites if site.share is not None)
    if whole > 1 + ROUNDING:
        raise NoGain(
            f"the shares of {len(sites)} sites add up to {whole:.3g} of {of}, and there is no more "
            "than one: capture the program again"
        )
    return found


def _with_as_many_seconds_more(
    now: GainInterval, then: GainInterval, inside_s: float
) -> GainInterval:
    """The ratio of both times, each with as much more as a call takes in the program."""

    def ratio(now_s: float, then_s: float) -> float:
        more = max(0.0, inside_s - now_s)
        return (then_s + more) / (now_s + more)

    return GainInterval(
        ratio(now.value, then.value), ratio(now.high, then.low), ratio(now.low, then.high)
    )


def _refuse(site: SiteTimes, of: str) -> None:
    if site.share is not None and not (site.share.sound(0.0) and site.share.value <= 1 + ROUNDING):
        raise NoGain(
            f"{site.site}: {_said(site.share)} is no share of {of}: it lies between 0 and 1, in "
            "its interval; capture the program again"
        )
    inside = None if site.inside_s is None else GainInterval.exactly(site.inside_s)
    for label, time in (
        (site.uses, site.now_s),
        (site.takes, site.then_s),
        (f"{site.uses} in the program", inside),
    ):
        if time is not None and not (time.sound(0.0) and time.low > 0):
            raise NoGain(
                f"{site.site}: {_said(time)} s is no time of {label}: it is above 0, and in its "
                "interval; measure it again"
            )


def _said(span: GainInterval) -> str:
    return f"{span.value:.3g} [{span.low:.3g}, {span.high:.3g}]"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.1 or share == 0 else f"{100 * share:.2g}"


def _plain(site: SiteTimes) -> dict[str, Any]:
    return {
        **asdict(site),
        "ratio": site.ratio and asdict(site.ratio),
        "saved": asdict(site.saved),
        "unchanged": site.unchanged(),
    }


USES = {"eager": "matmul", "flex": "flex", "sdpa": "sdpa", "mha": "sdpa"}
"""By a word of how a call was captured: the variant that it uses now."""


def site_times(
    site: str,
    share: float | None,
    via: str,
    choice: Choice | None,
    *,
    off: tuple[float, float] = (1.0, 1.0),
    inside_s: float | None = None,
    why: str = "",
) -> SiteTimes:
    """A place with what it uses now and what it would take.

    ``off``: by what factors its share may be smaller and larger; ``inside_s``: what a call of it
    took in the program.
    """
    uses = next((name for word, name in USES.items() if word in via), "")
    part = None if share is None else GainInterval(share, share * off[0], min(1.0, share * off[1]))
    if choice is None or choice.winner is None:
        why = why or (choice.why_not if choice else "nothing was asked of it")
        return SiteTimes(site, part, uses or via, None, why=why)
    by_name: Mapping[str, Candidate] = {c.variant: c for c in choice.ranked}
    now = by_name.get(uses)
    if now is None:
        why_not = {e.variant: e.said for e in choice.excluded}.get(uses, "it was not measured")
        said = f"how long what it takes now ({uses or via}) would take is not known: {why_not}"
        then = _span(choice.winner, choice.margin)
        return SiteTimes(site, part, uses or via, None, choice.winner.variant, then, said)
    takes = now if now in choice.equal else choice.winner  # a change that gains nothing is none
    return SiteTimes(
        site,
        part,
        uses,
        _span(now, choice.margin),
        takes.variant,
        _span(takes, choice.margin),
        inside_s=inside_s,
    )


def _span(c: Candidate, margin: float) -> GainInterval:
    """Its time, and half of what may lie between two that were timed one after the other."""
    each = math.sqrt(1 + margin)
    return GainInterval(c.median_s, c.low_s / each, c.high_s * each)
