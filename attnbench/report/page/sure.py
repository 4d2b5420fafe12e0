"""How sure the answers are; what to take if only one may be chosen; what the words mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from attnbench.answer.closeness import Closeness, advised, closeness
from attnbench.report import numbers
from attnbench.report.page.headlines import telling
from attnbench.report.scenes import Ran, Scene

FEWEST = 3
"""Of fewer problems nothing is said."""
AMISS = (
    ("drifting", "times moved within the cell"),
    ("drifted", "the machine was not what it was for most of the run"),
    ("not steady", "the warm-up ended before calls were evenly fast"),
    ("contended", "others had the processor"),
    ("waited", "the call slept of its own will"),
)
"""What may be amiss while a time is taken: the word, and what it means."""


@dataclass(frozen=True)
class Only:
    """The one exact variant that stays nearest to the best over all problems of a run."""

    run: Ran
    variant: str
    near: str
    """``within 1.25× of the best on 14 of 15 problems, at worst 2.13× (decode, 4,096 keys)``"""

    def __str__(self) -> str:
        return f"{self.variant}, {self.near}."


def how_sure(scenes: Sequence[Scene]) -> str:
    """``of 15 answers 1 is clear, 4 are ties, 10 are in doubt; 9 samples a time at the median; …``

    Empty where there is no answer.
    """
    answers = {id(s.answer.time): s.answer for scene in scenes for s in scene.standings if s.answer}
    times = {id(r.time): r.time for scene in scenes for r in scene.regime.records if r.time}
    if not answers:
        return ""
    doubted = sum(bool(a.flags) for a in answers.values())
    ties = sum(bool(a.equal) and not a.flags for a in answers.values())
    clear = sum(a.next is not None and not a.equal and not a.flags for a in answers.values())
    alone = len(answers) - doubted - ties - clear
    beside = "it" if alone == 1 else "them"
    counts = [
        _are(clear, "clear"), _are(ties, "ties" if ties > 1 else "a tie"),
        _are(doubted, "in doubt"), f"{alone} had nothing exact beside {beside}",
    ]  # fmt: skip
    said = ", ".join(c for c in counts if not c.startswith("0 "))
    amiss = sum(bool(time.flags) for time in times.values())
    disturbed = (
        f"something was amiss while {amiss:,} of {len(times):,} times were taken" if amiss
        else "nothing was amiss while times were taken"
    )  # fmt: skip
    samples = median(time.n for time in times.values())
    answered = f"of {len(answers)} answer{'s' * (len(answers) > 1)}"
    return f"{answered} {said}; {samples:,.0f} samples a time at the median; {disturbed}"


def _are(count: int, what: str) -> str:
    return f"{count} {'is' if count == 1 else 'are'} {what}"


def only(run: Ran, scenes: Sequence[Scene]) -> Only | None:
    """What to take if only one may be chosen; None where few problems have been measured."""
    own = [scene for scene in scenes if scene.run is run]
    found = closeness(scene.regime for scene in own)
    if not found or found[0].problems < FEWEST:
        return None
    first = advised(found)
    factor, count = first.mostly()
    near = f"within {factor:g}× of the best on {count} of {first.problems} problems"
    return Only(run, first.variant, near + _worst(first, own))


def _worst(of: Closeness, scenes: Sequence[Scene]) -> str:
    """How far from the best it is where it is farthest, and where it has no time at all."""
    missed = of.problems - len(of.ratios)
    without = f"; no time on {missed}" * bool(missed)
    ratio, where = max(_ratios(of.variant, scenes), default=(1.0, ""), key=lambda each: each[0])
    return (f", at worst {numbers.ratio(ratio)} ({where})" if ratio > 1 else "") + without


def _ratios(variant: str, scenes: Sequence[Scene]) -> Iterator[tuple[float, str]]:
    """Its median over the best's, problem by problem, with the words for the problem."""
    apart = telling(scenes)
    for scene in scenes:
        for length in scene.regime.lengths:
            exact = scene.regime.exact(length)
            if variant in exact:
                what = "keys" if scene.regime.phase == "decode" else "tokens"
                words = f"{apart[scene.number].replace(' · ', ', ')}, {length:,} {what}"
                yield exact[variant] / min(exact.values()), words


def margins(runs: Sequence[Ran]) -> str:
    """What a lead must be more than to be one: ``5 %``, or of several runs ``5 % to 7.2 %``."""
    found = sorted(run.margin for run in runs)
    return " to ".join(dict.fromkeys(numbers.percent(round(m, 3)) for m in (found[0], found[-1])))
