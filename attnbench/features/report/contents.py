"""All that a report says, before it is a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from attnbench.answer.compare_runs import RunsComparison
from attnbench.answer.ranking import Closeness, Faster, Standing, Stretch, advised, closeness
from attnbench.core import format
from attnbench.core.format import ms
from attnbench.core.record import Record, Status, Time
from attnbench.features.report.evidence import Claims, ShownEvidence
from attnbench.report.figures.sheet import Drawn
from attnbench.report.figures.style import Look
from attnbench.report.scenes import ReportRun, Scene

LEAST = 0.05
"""What keeps less than this keeps nothing worth its name here."""


@dataclass(frozen=True)
class NameSentence:
    """A sentence around a name."""

    before: str
    found: Faster | None = None
    after: str = ""
    short: str = ""
    """What may stand for ``before`` where that has been said already."""

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.before}."
        return f"{self.before} {self.found.variant}, {self.after}."


def beside(standing: Standing) -> NameSentence | None:
    """What is to be said beside an answer; None where there is no answer."""
    if standing.answer is None:
        return None
    if (found := standing.substitute) is not None:
        told = f"{_kept(found)} ({found.computes})"
        return NameSentence("Faster, but not exact:", found, told, "Faster, not exact:")
    if (found := standing.nearest) is not None:
        if (found.skill or 0.0) >= LEAST:
            before = "Nothing faster keeps half of what softmax does. Nearest:"
            return NameSentence(before, found, _kept(found), "Not exact:")
        return NameSentence(f"Nothing faster keeps even {format.share(LEAST)} of what softmax does")
    if standing.faster:
        found = standing.faster[0]
        told = f"{format.ratio(found.speedup)} as fast ({found.computes})"
        before = "Faster, and how far from softmax was not measured:"
        return NameSentence(before, found, told, "Of unknown distance:")
    return NameSentence("Nothing else that was measured is faster for sure, exact or not")


def _kept(found: Faster) -> str:
    kept = max(0.0, found.skill or 0.0)
    return f"{format.ratio(found.speedup)} as fast, keeps {format.share(kept)}"


HEADLINES = 2
"""So many stand above all; who reads on finds every regime."""
NAMED, DOUBTS = 3, 2
"""Of those that tie, and of what was amiss, so many are named; the rest is counted."""
TO_DO = {
    "train": "To train",
    "forward": "To run forward",
    "backward": "To run backward",
    "decode": "To decode",
}


def headlines(scenes: Sequence[Scene], several_runs: bool) -> list[str]:
    """One for each phase of a run at its longest length, training first; the rest is below."""
    found: dict[tuple[int, str], list[tuple[Scene, Standing]]] = {}
    for scene in scenes:
        if (standing := _longest(scene)) is not None:
            found.setdefault((scene.run.number, scene.regime.phase), []).append((scene, standing))
    if not found:
        return ["Nothing was measured: why is said below, cell by cell."]
    apart = telling(scenes)
    per_run: dict[int, int] = {}
    kept = []
    for (run, _), some in found.items():
        per_run[run] = per_run.get(run, 0) + 1
        if per_run[run] <= (1 if several_runs else HEADLINES):
            scene, standing = max(some, key=lambda each: each[1].length)
            on = f" on {scene.run.name}" * several_runs
            kept.append(headline(scene, standing, on + _which(apart[scene.number], len(some) - 1)))
    return kept


def _which(words: str, others: int) -> str:
    """Where a phase has several regimes: which of them this is."""
    told = ", ".join(words.split(" · ")[1:])
    return f" ({told}; {others} other{'s' * (others > 1)} below)" if others and told else ""


def headline(scene: Scene, standing: Standing, on: str = "") -> str:
    """``To train at 4,096 tokens, use X: 5.21 ms [5.2, 5.3], 1.31× … faster than Y.``"""
    regime = scene.regime
    doing = TO_DO.get(regime.phase, f"For {regime.phase}")
    length = f"{standing.length:,} {'keys' if regime.phase == 'decode' else 'tokens'}"
    return f"{doing} at {length}{on}, {told(standing)}. {beside(standing) or ''}".strip()


def told(standing: Standing, doubts: Sequence[str] | None = None) -> str:
    """Which to use, how long it takes, what it is faster than, what ties with it, what is amiss.

    ``doubts``: where they are of more lengths than this one.
    """
    answer = standing.answer
    if answer is None:
        return "nothing that is exactly softmax has a time"
    taken = figures(answer.time)
    if answer.next is None and not answer.equal:
        said = f"{answer.winner} takes {taken}; it is the only exact variant measured"
    else:
        ahead = f", {lead(standing)} faster than {answer.next}" * (answer.next is not None)
        said = f"use {answer.winner}: {taken}{ahead}{_tied(answer.equal)}"
    doubts = answer.flags if doubts is None else doubts
    return said + (f"; in doubt: {_and_more(doubts)}" if doubts else "")


def figures(time: Time) -> str:
    """``550 ms [466, 568]``"""
    return f"{ms(time.median_s)} ms [{ms(time.low_s)}, {ms(time.high_s)}]"


def _tied(names: Sequence[str]) -> str:
    if not names:
        return ""
    shown, more = list(names[:NAMED]), len(names) - NAMED
    shown += [f"{more} more"] * (more > 0)
    listed = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
    return f"; {listed} can't be told from it"


def _and_more(flags: Sequence[str]) -> str:
    more = len(flags) - DOUBTS
    return ", ".join(flags[:DOUBTS]) + f", and {more} more" * (more > 0)


def lead(standing: Standing) -> str:
    """``1.31× [1.28, 1.34]``"""
    answer = standing.answer
    if answer is None or answer.lead is None or answer.lead_low is None or answer.lead_high is None:
        return ""
    return f"{answer.lead:.2f}× [{answer.lead_low:.2f}, {answer.lead_high:.2f}]"


def sentences(scene: Scene) -> Iterator[str]:
    """One for each stretch of lengths of a regime, the longest first; then what is beside them."""
    for stretch in reversed(scene.stretches):
        yield f"{stretch.span}: {_stretch(stretch)}"
    if (longest := _longest(scene)) is not None and longest.answer is not None:
        yield f"at {longest.length:,} beside it: {beside(longest)}"
    if scene.crossings:
        yield f"{'; '.join(str(crossing) for crossing in scene.crossings)}"


def _stretch(stretch: Stretch) -> str:
    standing = stretch.last
    at = f"at {standing.length:,} " * (len(stretch.standings) > 1)
    return f"{at}{told(standing, stretch.doubts)}"


def _longest(scene: Scene) -> Standing | None:
    """How they stand at the longest length that most reached."""
    longest = scene.regime.longest()
    return next((s for s in scene.standings if s.length == longest), None)


def telling(scenes: Sequence[Scene]) -> dict[int, str]:
    """Of each regime, the words that not all of them share; the phase in any case."""
    said = [scene.regime.words() for scene in scenes]
    shared = set.intersection(*map(set, said)) if said else set()
    return {
        scene.number: " · ".join(w for i, w in enumerate(words) if not i or w not in shared)
        for scene, words in zip(scenes, said, strict=True)
    }


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

    run: ReportRun
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
        _are(clear, "clear"),
        _are(ties, "ties" if ties > 1 else "a tie"),
        _are(doubted, "in doubt"),
        f"{alone} had nothing exact beside {beside}",
    ]
    said = ", ".join(c for c in counts if not c.startswith("0 "))
    amiss = sum(bool(time.flags) for time in times.values())
    disturbed = (
        f"something was amiss while {amiss:,} of {len(times):,} times were taken"
        if amiss
        else "nothing was amiss while times were taken"
    )
    samples = median(time.n for time in times.values())
    answered = f"of {len(answers)} answer{'s' * (len(answers) > 1)}"
    return f"{answered} {said}; {samples:,.0f} samples a time at the median; {disturbed}"


def _are(count: int, what: str) -> str:
    return f"{count} {'is' if count == 1 else 'are'} {what}"


def only(run: ReportRun, scenes: Sequence[Scene]) -> Only | None:
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
    return (f", at worst {format.ratio(ratio)} ({where})" if ratio > 1 else "") + without


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


def margins(runs: Sequence[ReportRun]) -> str:
    """What a lead must be more than to be one: ``5 %``, or of several runs ``5 % to 7.2 %``."""
    found = sorted(run.margin for run in runs)
    return " to ".join(dict.fromkeys(format.percent(round(m, 3)) for m in (found[0], found[-1])))


@dataclass(frozen=True)
class Missing:
    """Cells that have no time, for one reason."""

    status: str
    reason: str
    remedy: str
    variants: Sequence[str]
    where: Sequence[str]
    """Of the regimes, with the lengths: ``train, causal …: 2,048, 4,096``."""
    cells: int


@dataclass(frozen=True)
class About:
    """Where a run comes from and what it may be trusted for."""

    run: ReportRun
    machine_line: str
    """``AMD EPYC, 2 cores, 24 GiB · torch 2.13.0+cpu · 1 thread · 22 November 2026``"""
    trust: Sequence[str]
    """Sentences: the ruler's self-check, the noise floor, what was amiss while it ran."""
    facts: Sequence[tuple[str, str]]
    """Name and value of everything numbers may depend on."""
    commands: Sequence[str]
    """That repeat the run, and this report."""


@dataclass(frozen=True)
class Contents:
    """What the page, the summary and the files are made from."""

    title: str
    headlines: Sequence[str]
    """One or two sentences that answer, for the longest lengths."""
    sure: str
    """How sure all answers are, in a line; empty where there is none."""
    only: Sequence[Only]
    """Of each run that measured enough, what to take if only one may be chosen."""
    runs: Sequence[ReportRun]
    abouts: Sequence[About]
    scenes: Sequence[Scene]
    looks: Mapping[str, Look]
    baseline: str
    """The variant that times are told as multiples of; empty where there is none."""
    figures: Sequence[Drawn]
    absent: Mapping[str, Sequence[str]]
    """By section: sentences on what is not drawn there, and why."""
    missing: Sequence[Missing]
    comparisons: Sequence[RunsComparison]
    """Each other run against the first."""
    incomparable: Sequence[str]
    method: Sequence[str]
    to_run: Mapping[int, str]
    """Of each run by its number: the path from the report to its folder."""
    claims: Sequence[Claims] = ()
    """Of each machine that has any: the claims of others that were put to the test on it."""
    model_cost: Sequence[ShownEvidence] = ()
    """What was found beside the runs of what a variant costs a model."""


NOT_RUN = "not run"
NO_RECORD = "there is no record of it: the run ended before it, or left it out"
GO_ON = "attnbench run --resume, with the run's folder, measures what is missing"
ONLY_CHECKED = "it passed its checks, and no time was taken"
NUMBER = re.compile(r"\d[\d,.]*")
ORDER = [
    Status.WRONG, Status.IMPLAUSIBLE, Status.FAILED, Status.CRASHED, Status.TIMED_OUT,
    Status.OUT_OF_MEMORY, NOT_RUN, Status.MEASURED, Status.UNSUPPORTED, Status.UNAVAILABLE,
]  # fmt: skip
"""What says most about a variant comes first, what any machine lacks comes last."""


@dataclass
class _Group:
    """Cells that one reason stopped, while they are collected."""

    reason: str
    remedy: str
    alike: bool = True
    """Whether all said the same to the letter; else numbers in the reasons differ."""
    variants: dict[str, None] = field(default_factory=dict)
    lengths: dict[int, dict[int, None]] = field(default_factory=dict)
    """By the number of a regime."""
    cells: int = 0


def missing(scenes: Sequence[Scene]) -> list[Missing]:
    """All cells without a time, by reason."""
    groups: dict[tuple[str, str, str], _Group] = {}
    for scene in scenes:
        for length, variant, status, reason, remedy in _untimed(scene):
            said = _without_name(reason, variant)
            cured = _without_name(remedy, variant)
            key = status, NUMBER.sub("#", said), NUMBER.sub("#", cured)
            group = groups.setdefault(key, _Group(said, cured))
            group.alike &= (group.reason, group.remedy) == (said, cured)
            group.variants[variant] = None
            group.lengths.setdefault(scene.number, {})[length] = None
            group.cells += 1
    found = [_made(key[0], group, scenes) for key, group in groups.items()]
    return sorted(found, key=lambda m: (ORDER.index(m.status), -m.cells))


def _untimed(scene: Scene) -> Iterator[tuple[int, str, str, str, str]]:
    """Length, variant, status, reason and remedy of each cell of a regime that has no time."""
    variants = dict.fromkeys(r.variant for r in scene.regime.records)
    for length, cells in scene.regime.cells.items():
        for variant in variants:
            record = cells.get(variant)
            if record is None:
                yield length, variant, NOT_RUN, NO_RECORD, GO_ON
            elif record.time is None:
                yield length, variant, str(record.status), _reason(record), record.remedy


def _reason(record: Record) -> str:
    return record.reason or record.note or ONLY_CHECKED


def _without_name(text: str, variant: str) -> str:
    """``runs on cuda`` of ``sdpa.efficient runs on cuda``: others may say the same."""
    for name in (variant, variant.partition("?")[0]):
        if text.startswith(f"{name} "):
            return text[len(name) + 1 :]
    return text


def _made(status: str, group: _Group, scenes: Sequence[Scene]) -> Missing:
    reason = group.reason + " (with other numbers elsewhere)" * (not group.alike)
    several = len({scene.run.number for scene in scenes}) > 1
    by_number = {scene.number: scene for scene in scenes}
    where = [
        (f"{by_number[number].run.name}: " * several) + _where(by_number[number], lengths)
        for number, lengths in group.lengths.items()
    ]
    if group.cells == len(group.variants) * sum(len(s.regime.lengths) for s in scenes):
        where = ["everywhere"]
    return Missing(status, reason, group.remedy, tuple(group.variants), tuple(where), group.cells)


def _where(scene: Scene, lengths: Iterable[int]) -> str:
    some = sorted(lengths)
    if some == sorted(scene.regime.lengths):
        return f"{scene.regime}: all lengths"
    return f"{scene.regime}: {'; '.join(f'{n:,}' for n in some)}"
