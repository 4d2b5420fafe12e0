"""What a whole program gains where its attention calls are changed: Amdahl, with intervals.

A site is a place where a program calls attention, and its share is what that takes of a step, as
captured. Were its calls r times as long, a step would be shorter by the share times 1 - r. r comes
from pairs of the call as it is made and as it would be; where it is not known how a call is made,
from two times measured alone. The share comes from the program itself, where caches are cold and
other work runs beside.

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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from attnbench.core.format import percent, ratio
from attnbench.core.stats import LEAST_MARGIN, Interval
from impls.errors import CantBeDone

if TYPE_CHECKING:
    from attnbench.answer.choose import Choice
    from attnbench.answer.mends import Priced
    from attnbench.answer.ranking import Candidate
    from attnbench.core.call import CallForm

USES = {"eager": "matmul", "flex": "flex", "sdpa": "sdpa", "mha": "sdpa"}
"""By a word of how a call was captured: the variant that it uses now."""


def variant_of(via: str) -> str:
    """The variant that does what a call does that was captured so; empty where none is known."""
    return next((name for word, name in USES.items() if word in via), "")


class NoGain(CantBeDone):
    """Figures that can't be shares."""


@dataclass(frozen=True)
class SiteTimes:
    """A site's share of a step, what it uses now and what it would take, with the times of calls
    alone; ``over`` is their ratio in pairs; ``inside_s`` is what a call took in the program.
    ``mend``: what to change, in words and as code. ``why``: why there is no answer.
    """

    site: str
    share: Interval | None
    uses: str
    now_s: Interval | None
    takes: str = ""
    then_s: Interval | None = None
    why: str = ""
    inside_s: float | None = None
    over: Interval | None = None
    besides: float = 1.0
    """What is saved, over what is saved of the share: more than one where a mend also saves what
    the program does before the call, as repeating heads."""
    mend: tuple[str, ...] = ()
    code: tuple[str, ...] = ()

    @property
    def ratio(self) -> Interval | None:
        """Its time then over its time now, in the program; None where nothing would change."""
        now, then = self.now_s, self.then_s
        if now is None or then is None or self.takes == self.uses:
            return None

        def either(now_s: float, then_s: float) -> tuple[float, float]:
            """In proportion, and with as many seconds more as a call takes in the program."""
            more = 0.0 if self.inside_s is None else max(0.0, self.inside_s - now_s)
            return then_s / now_s, (then_s + more) / (now_s + more)

        if (over := self.over) is not None:
            # what makes it longer there, as pages that its scores fault in, may be gone by the mend
            least = over.low * now.value / max(now.value, self.inside_s or 0.0)
            most = max(either(now.value, over.high * now.value))
            return Interval(over.value, min(over.low, least), most)
        low, high = min(either(now.high, then.low)), max(either(now.low, then.high))
        return Interval(sum(either(now.value, then.value)) / 2, low, high)

    @property
    def saved(self) -> Interval:
        """Of a step."""
        share, ratio = self.share, self.ratio
        if share is None or ratio is None:
            return Interval.exactly(0.0)
        ends = [s * (1 - r) for s in (share.low, share.high) for r in (ratio.low, ratio.high)]
        most = share.value * (1 - ratio.value) * self.besides
        return Interval(most, min(ends), max(ends) * self.besides)

    def unchanged(self) -> str:
        """Why it stays as it is; empty where it does not."""
        if self.then_s is not None and self.takes == self.uses:
            return f"it uses {self.uses} already"
        if self.ratio is None:
            return self.why or "there is no answer for it"
        return "" if self.share is not None else "its share was not measured"


@dataclass(frozen=True)
class Gain:
    """How a step's time changes, or what else the shares are ``of``; what saves most first."""

    sites: tuple[SiteTimes, ...]
    of: str

    @property
    def share(self) -> Interval:
        """What attention takes of a step now."""
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
        """Whether it can be told from nothing."""
        return not self.factor.low <= 1 <= self.factor.high

    def sentence(self) -> str:
        """Attention's share of a step, and how the step's time changes."""
        if not any(site.share is not None for site in self.sites):
            return f"what {self.of} gains can't be said: no site's share of it was measured"

        s, f = self.share, self.factor
        interval = f" [{percent(s.low)}, {percent(s.high)}]" if s.low < s.high else ""
        text = f"attention is {percent(s.value)}{interval} of {self.of}; "
        change = f"taking these, {self.of} takes {f.value:.2f} [{f.low:.2f}, {f.high:.2f}]"
        if not any(site.ratio and site.share for site in self.sites):
            text += "no site would take another variant"
        elif not self.is_clear:
            text += f"no gain is shown: {change} of its time"
        else:
            way = f"{ratio(f.value)} slower" if f.value > 1 else f"{ratio(1 / f.value)} faster"
            if abs(f.value - 1) < LEAST_MARGIN:
                way = "less than a hundredth apart"
            free = f"were attention free it would take {1 - s.value:.2f}"
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
                "ratio": site.ratio and asdict(site.ratio),
                "saved": asdict(site.saved),
                "unchanged": site.unchanged(),
                "mend": list(site.mend),
                "code": list(site.code),
            }
            for site in self.sites
        ]
        return {
            "of": self.of,
            "share": asdict(self.share),
            "factor": asdict(self.factor),
            "told": self.is_clear,
            "sentence": self.sentence(),
            "sites": sites,
        }


def gain(sites: Sequence[SiteTimes], of: str = "a step") -> Gain:
    """What a whole model gains; raises :class:`NoGain` for shares that can't be."""
    shares = [site.share for site in sites if site.share is not None]
    whole = sum(s.value for s in shares)
    if not all(0 <= s.low <= s.value <= s.high < math.inf for s in shares) or whole > 1 + 1e-6:
        spans = ", ".join(f"{s.value:.3g} [{s.low:.3g}, {s.high:.3g}]" for s in shares)
        raise NoGain(
            f"the shares {spans} can't be parts of {of}: each lies in its interval, and together "
            f"they are 1 at the most, not {whole:.3g}; capture the program again"
        )
    return Gain(tuple(sorted(sites, key=lambda site: -site.saved.value)), of)


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
    uses = variant_of(via)
    part = _share(share, off)
    if choice is None or choice.ranking is None:
        why = why or (choice.why_not if choice else "nothing was asked of it")
        return SiteTimes(site, part, uses or via, None, why=why)

    def span(c: Candidate) -> Interval:
        """Its time, and half of what may lie between two that were timed one after the other."""
        each = math.sqrt(1 + choice.margin)
        return Interval(c.median_s, c.low_s / each, c.high_s * each)

    ranking, winner = choice.ranking, choice.ranking.winner
    now = ranking.by_name.get(uses)
    if now is None:
        why_not = {e.variant: e.said for e in choice.excluded}.get(uses, "it was not measured")
        reason = f"how long what it takes now ({uses or via}) would take is not known: {why_not}"
        return SiteTimes(site, part, uses or via, None, winner.variant, span(winner), reason)
    takes = now if now in ranking.equal else winner  # a change that gains nothing is none
    name = uses if takes is now else takes.variant
    return SiteTimes(site, part, uses, span(now), name, span(takes), inside_s=inside_s)


def _share(share: float | None, off: tuple[float, float]) -> Interval | None:
    if share is None:
        return None
    return Interval(share, share * off[0], min(1.0, share * off[1]))


ELSEWHERE = 0.03
"""How far a ratio in a program may be from that of pairs, whose calls follow nothing else."""


def priced_times(
    site: str,
    share: float | None,
    form: CallForm,
    priced: Priced,
    *,
    off: tuple[float, float] = (1.0, 1.0),
    inside_s: float | None = None,
) -> SiteTimes:
    """A place with its call as it is made, and as it would be with what gains there."""
    part = _share(share, off)
    uses = ", ".join([form.kernel or form.api, form.mask_words(), *form.words()])
    now = None if priced.now_s is None else Interval.exactly(priced.now_s)
    if priced.ratio is None or priced.low is None or priced.high is None or priced.then_s is None:
        return SiteTimes(site, part, uses, now, why=priced.why, inside_s=inside_s)
    copies = form.repeated > 1 and "enable_gqa" in priced.keys
    return SiteTimes(
        site,
        part,
        uses,
        now,
        priced.variant or "; ".join(priced.words),
        Interval.exactly(priced.then_s),
        inside_s=inside_s,
        over=Interval(priced.ratio, priced.low * (1 - ELSEWHERE), priced.high * (1 + ELSEWHERE)),
        besides=max(1.0, priced.now_s / inside_s) if priced.now_s and inside_s and copies else 1.0,
        mend=priced.words,
        code=priced.code,
    )
