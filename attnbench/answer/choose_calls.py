"""The gain of a whole program whose attention calls are changed: Amdahl, with intervals.

A site is a place where a program calls attention, and its share is the part that it takes of a
step, as captured. Were its calls r times as long, a step would be shorter by the share times 1 - r.
r comes from pairs of the call as it is made and as it would be. The share comes from the program
itself, where caches are cold and other work runs beside.

There a call takes longer than alone, by as much as was captured. It is not known to pay in
proportion, as it would for a slower machine, nor as many seconds, as it would for tensors that both
calls have to fetch: so the interval of r reaches to both.

Intervals are carried through by interval arithmetic: each figure at the worse end of its own. A
bootstrap would be narrower only by supposing that what is wrong with one site is not wrong with the
next, and sites share a machine that drifts under all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from attnbench.core.format import percent, ratio
from attnbench.core.stats import LEAST_MARGIN, Interval
from impls.errors import CantBeDone

if TYPE_CHECKING:
    from attnbench.answer.mends import Priced
    from attnbench.core.call import CallForm

ELSEWHERE = 0.03
"""The distance of a ratio in a program from that of pairs, whose calls follow nothing else."""


@dataclass(frozen=True)
class SiteGain:
    """A site's share of a step, its call as it is made and as it would be. ``why``: why nothing is
    to be changed there.
    """

    site: str
    share: Interval | None
    uses: str
    now_s: float | None = None
    """Seconds of a call alone; in the program they are ``inside_s``."""
    inside_s: float | None = None
    takes: str = ""
    then_s: float | None = None
    ratio: Interval | None = None
    """Its time then over its time now, in the program."""
    besides: float = 1.0
    """All that is saved over what is saved of the share: more than one where a mend also saves what
    the program does before the call, as repeating heads."""
    mend: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    why: str = ""

    @property
    def saved(self) -> Interval:
        """The part of a step that is saved."""
        share, ratio = self.share, self.ratio
        if share is None or ratio is None:
            return Interval.exactly(0.0)
        ends = [s * (1 - r) for s in (share.low, share.high) for r in (ratio.low, ratio.high)]
        most = share.value * (1 - ratio.value) * self.besides
        return Interval(most, min(ends), max(ends) * self.besides)

    def unchanged(self) -> str:
        """The reason why it stays as it is; empty where it does not."""
        if self.ratio is None:
            return self.why or "there is no answer for it"
        return "" if self.share is not None else "its share was not measured"


def site_gain(
    site: str,
    share: Interval | None,
    form: CallForm,
    priced: Priced,
    inside_s: float | None = None,
) -> SiteGain:
    """A site with its call as it is made, and as it would be with what gains there."""
    uses = ", ".join([form.kernel or form.api, form.mask_words(), *form.words()])
    now, then = priced.now_s, priced.then_s
    if priced.ratio is None or now is None:
        return SiteGain(site, share, uses, now, inside_s, why=priced.why)
    inside = max(now, inside_s or 0.0)
    low, high = priced.ratio.low * (1 - ELSEWHERE), priced.ratio.high * (1 + ELSEWHERE)
    copies = form.repeated > 1 and "enable_gqa" in priced.keys
    return SiteGain(
        site,
        share,
        uses,
        now,
        inside_s,
        priced.variant or "; ".join(priced.words),
        then,
        # what makes it longer there, as pages that its scores fault in, may be gone by the mend
        Interval(priced.ratio.value, low * now / inside, max(high, 1 - (1 - high) * now / inside)),
        besides=max(1.0, now / inside_s) if inside_s and copies else 1.0,
        mend=priced.words,
        code=priced.code,
    )


@dataclass(frozen=True)
class Gain:
    """The change of a step's time, or of whatever the shares are ``of``; what saves most first."""

    sites: tuple[SiteGain, ...]
    of: str

    @property
    def share(self) -> Interval:
        """The part of a step that attention takes now."""
        some = [site.share for site in self.sites if site.share is not None]
        value, low, high = (sum(getattr(s, x) for s in some) for x in ("value", "low", "high"))
        return Interval(value, low, min(1.0, high))

    @property
    def factor(self) -> Interval:
        """A step's time then over its time now; no less than what attention itself takes then."""
        saved = [site.saved for site in self.sites]
        least = sum(
            site.share.low * (site.ratio.low if site.ratio else 1.0)
            for site in self.sites
            if site.share is not None
        )
        value, low, high = (1 - sum(getattr(s, x) for s in saved) for x in ("value", "high", "low"))
        if any(site.besides > 1 for site in self.sites):
            least = 0.0
        return Interval(max(least, value), max(least, low), high)

    @property
    def is_clear(self) -> bool:
        """True where it can be told from nothing."""
        return not self.factor.low <= 1 <= self.factor.high

    def sentence(self) -> str:
        """Attention's share of a step, and how the step's time changes."""
        if not any(site.share is not None for site in self.sites):
            return f"the gain of {self.of} is not known: no site's share of it was measured"

        s, f = self.share, self.factor
        interval = f" [{percent(s.low)}, {percent(s.high)}]" if s.low < s.high else ""
        text = f"attention is {percent(s.value)}{interval} of {self.of}; "
        change = (
            f"with the changes below, the whole takes {f.value:.2f} [{f.low:.2f}, {f.high:.2f}]"
        )
        if not any(site.ratio and site.share for site in self.sites):
            text += "there is nothing to change"
        elif not self.is_clear:
            text += f"no gain is shown: {change} of its time"
        else:
            way = f"{ratio(f.value)} slower" if f.value > 1 else f"{ratio(1 / f.value)} faster"
            if abs(f.value - 1) < LEAST_MARGIN:
                way = "less than a hundredth apart"
            free = f"with attention free, {1 - s.value:.2f}"
            text += f"{change} of its time ({way}; {free})"
        stay, many = sum(bool(site.unchanged()) for site in self.sites), len(self.sites)
        if 0 < stay < many:
            how = "stays as it is" if stay == 1 else "stay as they are"
            text += f"; {stay} of {many} sites {how}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        sites = [
            {
                **asdict(site),
                **{"mend": list(site.mend), "code": list(site.code)},
                **{"saved": asdict(site.saved), "unchanged": site.unchanged()},
            }
            for site in self.sites
        ]
        return {
            "of": self.of,
            "share": asdict(self.share),
            "factor": asdict(self.factor),
            "clear": self.is_clear,
            "sentence": self.sentence(),
            "sites": sites,
        }


def gain(sites: Sequence[SiteGain], of: str = "a step") -> Gain:
    """The gain of a whole program; raises CantBeDone for shares that can't be."""
    shares = [site.share for site in sites if site.share is not None]
    whole = sum(s.value for s in shares)
    if not all(0 <= s.low <= s.value <= s.high < math.inf for s in shares) or whole > 1 + 1e-6:
        raise CantBeDone(
            f"the shares {', '.join(map(str, shares))} can't be parts of {of}: together they are 1 "
            f"at the most, not {whole:.3g}; capture the program again"
        )
    return Gain(tuple(sorted(sites, key=lambda site: -site.saved.value)), of)
