"""What the answer says of the language model, its variants and its caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attnbench.core.evidence import Evidence
from attnbench.features.quality import caches, lm
from attnbench.features.quality.task import MARKS, Judgement, QualityFigure, Result

TOKENS = 4096
"""Of the passages."""


class LanguageModel:
    """What variants and caches cost the language model at :data:`TOKENS`."""

    def __init__(self, variants: Evidence, caches_: Evidence) -> None:
        groups = {group.setting: group for group in lm.results(variants)}
        self.passages = groups[f"passages of {TOKENS:,} tokens"]
        self.mixed = groups[f"hybrids, {TOKENS:,} tokens"].judged()
        self.needles = {r.variant: r for r in groups[f"needles in {TOKENS:,} tokens"].results}
        self.caches = next(g for g in caches.results(caches_) if f"{TOKENS:,}" in g.setting)

    def variants(self) -> Iterator[tuple[str, ...]]:
        """Each, what it computes, and its figures."""
        for r in (*self.passages.results[:1], *self.passages.judged()):
            yield f"`{r.variant}`", r.computes, *self._figures(r)

    def hybrids(self) -> Iterator[tuple[str, ...]]:
        """Each that leaves some layers exact, and its figures."""
        for r in self.mixed:
            yield f"`{r.variant}`", *self._figures(r)

    def _figures(self, r: Result) -> tuple[str, ...]:
        needles = lm_cell(self.needles[r.variant].scores["found"])
        return self._likelihood(r), needles, two(r.step), two(r.more.get("of a token"))

    def each_cache(self) -> Iterator[tuple[str, ...]]:
        """Each and its figures."""
        for r in (*self.caches.results[:1], *self.caches.judged()):
            needles, same = lm_cell(r.more["needles"]), f"{r.more['same'].value:.0f}"
            beaten = ", ".join(f"`{name}`" for name in r.beaten_by) or "none"
            cells = self._likelihood(r), needles, same, two(r.step)
            yield f"`{r.variant}`", *cells, f"{r.memory:.2f}", beaten

    @property
    def decoded(self) -> int:
        """Tokens of text after the prompt."""
        return min(caches.DECODED, TOKENS // 4)

    def first_screen(self) -> Iterator[tuple[str, ...]]:
        """Instead of softmax or the full cache: the variant, its gain, its loss, the verdict."""
        if nearest := best(self.faster(), lambda r: r.step.value if r.step else 1.0):
            found = self.needles[nearest.variant].scores["found"]
            gain = f"a pass in {two(nearest.step)} of the time"
            own = self.needles[lm.BASELINE].scores["found"]
            yield "another attention", *self._advice(nearest, gain, found, own)
        else:
            yield "another attention", f"none of {len(self.passages.results) - 1}", *["–"] * 3, "no"
        for what, family in (("a cache in few bits", "few bits"), ("eviction", "eviction")):
            nearest = best(self.smaller(family), lambda r: r.memory or 1.0)
            gain = f"{nearest.memory:.2f} of the bytes, a token in {two(nearest.step)} of the time"
            own = self.caches.results[0].more["needles"]
            yield what, *self._advice(nearest, gain, nearest.more["needles"], own)

    def _advice(
        self, r: Result, gain: str, found: QualityFigure, own: QualityFigure
    ) -> tuple[str, ...]:
        """``own``: the needles that the original finds."""
        slower = r.step is not None and r.step.value > 1
        yes = "yes, for its memory" if slower else "yes"
        words = {Judgement.KEEPS: yes, Judgement.OPEN: "not known", Judgement.LACKS: "no"}
        worth = words[r.scores["likelihood"].judge(lm.LEVEL)]
        if found.high is not None and found.high < own.value:
            worth = "no, it loses needles"
        return f"`{r.variant}`", gain, self._likelihood(r), lm_cell(found), worth

    def cache(self, name: str) -> Result:
        """One of them."""
        return next(r for r in self.caches.results if r.variant == name)

    def claims(self) -> Iterator[tuple[str, bool]]:
        """What the words say of caches and variants."""
        keeps = self.cache("int8").scores["likelihood"].judge(lm.LEVEL) is Judgement.KEEPS
        yield "int8 keeps the likelihood", keeps
        slower = self.cache("fp8").step
        yield "fp8 is slower", slower is not None and (slower.low or 0.0) > 1
        full = self.caches.results[0].more["needles"]
        own = self.needles[lm.BASELINE].scores["found"].value
        for r in (*self.passages.judged(), *self.mixed):
            if r.computes != "softmax":
                lacks = r.scores["likelihood"].judge(lm.LEVEL) is not Judgement.KEEPS
                yield f"{r.variant} is not known to keep the likelihood", lacks
        for r in self.faster():
            found = self.needles[r.variant].scores["found"].value
            yield f"{r.variant} is faster and loses needles", found < own
        for r in self.smaller("eviction"):
            yield f"{r.variant} finds fewer needles", r.more["needles"].value < full.value

    def _likelihood(self, r: Result) -> str:
        score = r.scores.get("likelihood")
        return "1" if score is None else f"{score}{MARKS[score.judge(lm.LEVEL)]}"

    def faster(self) -> list[Result]:
        """Variants that aren't exact and gain time by their mean, the most likely first."""
        some = [r for r in self.passages.judged() if r.computes != "softmax"]
        gain = [r for r in (*some, *self.mixed) if r.step and r.step.value < 1]
        return sorted(gain, key=lambda r: -r.scores["likelihood"].value)

    def smaller(self, family: str) -> list[Result]:
        """Caches of a family that hold fewer bytes, the most likely first."""
        return [r for r in self.caches.judged() if r.family == family and (r.memory or 1) < 1]


def best(some: Sequence[Result], cost: Callable[[Result], float]) -> Result | None:
    """The cheapest of what keeps the likelihood; the nearest of all where nothing is known to."""
    keep = [r for r in some if r.scores["likelihood"].judge(lm.LEVEL) is Judgement.KEEPS]
    return min(keep, key=cost) if keep else next(iter(some), None)


def lm_cell(share_found: QualityFigure) -> str:
    """``75 % [51, 90]``"""
    return "{:.0f} % [{:.0f}, {:.0f}]".format(*(100 * x for x in share_found.three))


def two(figure: QualityFigure | None) -> str:
    """``1.07 [1.04, 1.12]``"""
    if figure is None:
        return "–"
    return "{:.2f} [{:.2f}, {:.2f}]".format(*figure.three)
