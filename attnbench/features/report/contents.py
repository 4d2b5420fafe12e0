"""What a report says, before it is a page: answers, how sure they are, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from attnbench.answer.compare_runs import RunsComparison
from attnbench.answer.ranking import Closeness, Faster, Standing, advised, closeness
from attnbench.core import format
from attnbench.core.format import ms
from attnbench.core.record import Status, Time
from attnbench.features.report.evidence import Claims, ShownEvidence
from attnbench.report.figures.sheet import Drawn
from attnbench.report.figures.style import Look
from attnbench.report.scenes import ReportRun, Scene

LEAST = 0.05
"""What keeps less than this of softmax is not named."""
HEADLINES = 2
"""Sentences above all; the page has every regime further down."""
NAMED, DOUBTS = 3, 2
"""How many ties and doubts are named; the others are counted."""
FEWEST = 3
"""Problems from which the one best variant is named."""
TO_DO = {
    "train": "To train",
    "forward": "To run forward",
    "backward": "To run backward",
    "decode": "To decode",
}
AMISS = (
    ("drifting", "times moved within the cell"),
    ("drifted", "the machine was not what it was for most of the run"),
    ("not steady", "the warm-up ended before calls were evenly fast"),
    ("contended", "others had the processor"),
    ("waited", "the call slept of its own will"),
)
"""What may put a time in doubt: the flag, and what it means."""


@dataclass(frozen=True)
class Beside:
    """A sentence about what is not exact and faster, around the name of a variant."""

    before: str
    found: Faster | None = None
    after: str = ""
    short: str = ""
    """What may stand in place of ``before`` where it was said already."""

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.before}."
        return f"{self.before} {self.found.variant}, {self.after}."


def beside(standing: Standing) -> Beside | None:
    """The sentence beside an answer; None where there is no answer."""
    if standing.answer is None:
        return None
    if (found := standing.substitute) is not None:
        after = f"{_kept(found)} ({found.computes})"
        return Beside("Faster, but not exact:", found, after, "Faster, not exact:")
    if (found := standing.nearest) is not None:
        if (found.skill or 0.0) >= LEAST:
            before = "Nothing faster keeps half of what softmax does. Nearest:"
            return Beside(before, found, _kept(found), "Not exact:")
        return Beside(f"Nothing faster keeps even {format.share(LEAST)} of what softmax does")
    if standing.faster:
        found = standing.faster[0]
        after = f"{format.ratio(found.speedup)} as fast ({found.computes})"
        before = "Faster, and how far from softmax was not measured:"
        return Beside(before, found, after, "Of unknown distance:")
    return Beside("Nothing else that was measured is faster for sure, exact or not")


def _kept(found: Faster) -> str:
    kept = max(0.0, found.skill or 0.0)
    return f"{format.ratio(found.speedup)} as fast, keeps {format.share(kept)}"


def headlines(scenes: Sequence[Scene], several_runs: bool) -> list[str]:
    """The first phases of each run at their longest length."""
    phases: dict[tuple[int, str], list[tuple[Scene, Standing]]] = {}
    for scene in scenes:
        if (standing := _longest(scene)) is not None:
            phases.setdefault((scene.run.number, scene.regime.phase), []).append((scene, standing))
    if not phases:
        return ["Nothing was measured: why is said below, cell by cell."]
    names = distinct_words(scenes)
    per_run: dict[int, int] = {}
    lines = []
    for (run, _), some in phases.items():
        per_run[run] = per_run.get(run, 0) + 1
        if per_run[run] > (1 if several_runs else HEADLINES):
            continue
        scene, standing = max(some, key=lambda each: each[1].length)
        on = f" on {scene.run.name}" if several_runs else ""
        words, others = ", ".join(names[scene.number].split(" · ")[1:]), len(some) - 1
        if others and words:  # the phase has several regimes
            on += f" ({words}; {others} other{'s' if others > 1 else ''} below)"
        lines.append(headline(scene, standing, on))
    return lines


def headline(scene: Scene, standing: Standing, on: str = "") -> str:
    """``To train at 4,096 tokens, use X: 5.21 ms [5.2, 5.3], 1.31× … faster than Y.``"""
    regime = scene.regime
    doing = TO_DO.get(regime.phase, f"For {regime.phase}")
    length = f"{standing.length:,} {'keys' if regime.phase == 'decode' else 'tokens'}"
    return f"{doing} at {length}{on}, {advice(standing)}. {beside(standing) or ''}".strip()


def advice(standing: Standing, doubts: Sequence[str] | None = None) -> str:
    """Which variant to use, its time and lead, its ties, and what puts that in doubt.

    ``doubts``: those of several lengths, in place of this one's.
    """
    answer = standing.answer
    if answer is None:
        return "nothing that is exactly softmax has a time"
    taken = figures(answer.time)
    if answer.next is None and not answer.equal:
        text = f"{answer.winner} takes {taken}; it is the only exact variant measured"
    else:
        text = f"use {answer.winner}: {taken}"
        if answer.next is not None:
            text += f", {lead(standing)} faster than {answer.next}"
        if answer.equal:
            shown, more = list(answer.equal[:NAMED]), len(answer.equal) - NAMED
            shown += [f"{more} more"] if more > 0 else []
            names = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
            text += f"; {names} can't be told from it"
    doubts = answer.flags if doubts is None else doubts
    if doubts:
        text += f"; in doubt: {', '.join(doubts[:DOUBTS])}"
        text += f", and {len(doubts) - DOUBTS} more" if len(doubts) > DOUBTS else ""
    return text


def figures(time: Time) -> str:
    """``550 ms [466, 568]``"""
    return f"{ms(time.median_s)} ms [{ms(time.low_s)}, {ms(time.high_s)}]"


def lead(standing: Standing) -> str:
    """``1.31× [1.28, 1.34]``"""
    answer = standing.answer
    if answer is None or answer.lead is None or answer.lead_low is None or answer.lead_high is None:
        return ""
    return f"{answer.lead:.2f}× [{answer.lead_low:.2f}, {answer.lead_high:.2f}]"


def sentences(scene: Scene) -> Iterator[str]:
    """One for each stretch of lengths of a regime, the longest first; then what is beside them."""
    for stretch in reversed(scene.stretches):
        standing = stretch.last
        at = f"at {standing.length:,} " if len(stretch.standings) > 1 else ""
        yield f"{stretch.span}: {at}{advice(standing, stretch.doubts)}"
    if (longest := _longest(scene)) is not None and longest.answer is not None:
        yield f"at {longest.length:,} beside it: {beside(longest)}"
    if scene.crossings:
        yield "; ".join(str(crossing) for crossing in scene.crossings)


def _longest(scene: Scene) -> Standing | None:
    """The ranking at the longest length that most reached."""
    longest = scene.regime.longest()
    return next((s for s in scene.standings if s.length == longest), None)


def distinct_words(scenes: Sequence[Scene]) -> dict[int, str]:
    """For each regime its phase, and the words that not all of them share."""
    all_words = [scene.regime.words() for scene in scenes]
    shared = set.intersection(*map(set, all_words)) if all_words else set()
    return {
        scene.number: " · ".join(w for i, w in enumerate(words) if not i or w not in shared)
        for scene, words in zip(scenes, all_words, strict=True)
    }


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
    counts = []
    for count, word in ((clear, "clear"), (ties, "ties" if ties > 1 else "a tie")):
        counts += [f"{count} {'is' if count == 1 else 'are'} {word}"] if count else []
    if doubted:
        counts.append(f"{doubted} {'is' if doubted == 1 else 'are'} in doubt")
    if alone:
        counts.append(f"{alone} had nothing exact beside {'it' if alone == 1 else 'them'}")
    amiss = sum(bool(time.flags) for time in times.values())
    disturbed = "nothing was amiss while times were taken"
    if amiss:
        disturbed = f"something was amiss while {amiss:,} of {len(times):,} times were taken"
    samples = median(time.n for time in times.values())
    answered = f"of {len(answers)} answer{'s' if len(answers) > 1 else ''} {', '.join(counts)}"
    return f"{answered}; {samples:,.0f} samples a time at the median; {disturbed}"


@dataclass(frozen=True)
class Only:
    """The one exact variant that stays nearest to the best over all problems of a run."""

    run: ReportRun
    variant: str
    near: str
    """``within 1.25× of the best on 14 of 15 problems, at worst 2.13× (decode, 4,096 keys)``"""

    def __str__(self) -> str:
        return f"{self.variant}, {self.near}."


def only(run: ReportRun, scenes: Sequence[Scene]) -> Only | None:
    """What to take if only one may be chosen; None where few problems have been measured."""
    own = [scene for scene in scenes if scene.run is run]
    ranked = closeness(scene.regime for scene in own)
    if not ranked or ranked[0].problems < FEWEST:
        return None
    first = advised(ranked)
    factor, count = first.mostly()
    near = f"within {factor:g}× of the best on {count} of {first.problems} problems"
    return Only(run, first.variant, near + _worst(first, own))


def _worst(of: Closeness, scenes: Sequence[Scene]) -> str:
    """How far from the best it is at worst, and on how many problems it has no time."""
    text, missed = "", of.problems - len(of.ratios)
    ratio, where = max(_ratios(of.variant, scenes), default=(1.0, ""), key=lambda each: each[0])
    if ratio > 1:
        text = f", at worst {format.ratio(ratio)} ({where})"
    return text + (f"; no time on {missed}" if missed else "")


def _ratios(variant: str, scenes: Sequence[Scene]) -> Iterator[tuple[float, str]]:
    """Its median over the best's on each problem, with the words for the problem."""
    names = distinct_words(scenes)
    for scene in scenes:
        what = "keys" if scene.regime.phase == "decode" else "tokens"
        name = names[scene.number].replace(" · ", ", ")
        for length in scene.regime.lengths:
            exact = scene.regime.exact(length)
            if variant in exact:
                yield exact[variant] / min(exact.values()), f"{name}, {length:,} {what}"


def margins(runs: Sequence[ReportRun]) -> str:
    """The largest lead that counts as none: ``5 %``, or of several runs ``5 % to 7.2 %``."""
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
    """Their regimes, with the lengths: ``train, causal …: 2,048, 4,096``."""
    cells: int


@dataclass(frozen=True)
class About:
    """Where a run comes from and how far it can be trusted."""

    run: ReportRun
    machine_line: str
    """``AMD EPYC, 2 cores, 24 GiB · torch 2.13.0+cpu · 1 thread · 22 November 2026``"""
    trust: Sequence[str]
    """Sentences: the self-check, the noise floor, what was amiss while it ran."""
    facts: Sequence[tuple[str, str]]
    """Name and value of everything that numbers may depend on."""
    commands: Sequence[str]
    """Commands that repeat the run, and this report."""


@dataclass(frozen=True)
class Contents:
    """What the page, the summary and the files are made from."""

    title: str
    headlines: Sequence[str]
    """One or two sentences that answer, for the longest lengths."""
    sure: str
    """How sure all answers are, in a line; empty where there is none."""
    only: Sequence[Only]
    """For each run that measured enough, what to take if only one may be chosen."""
    runs: Sequence[ReportRun]
    abouts: Sequence[About]
    scenes: Sequence[Scene]
    looks: Mapping[str, Look]
    baseline: str
    """The variant that times are shown as multiples of; empty where there is none."""
    figures: Sequence[Drawn]
    absent: Mapping[str, Sequence[str]]
    """By section: sentences on what is not drawn there, and why."""
    missing: Sequence[Missing]
    comparisons: Sequence[RunsComparison]
    """Each other run against the first."""
    incomparable: Sequence[str]
    method: Sequence[str]
    to_run: Mapping[int, str]
    """By the number of a run: the path from the report to its folder."""
    claims: Sequence[Claims] = ()
    """For each machine that has any: the published claims that were tested on it."""
    model_cost: Sequence[ShownEvidence] = ()
    """What the evidence beside the runs says about the cost for a model."""


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


def missing(scenes: Sequence[Scene]) -> list[Missing]:
    """All cells without a time, by reason; reasons that differ in numbers alone are one."""
    groups: dict[tuple[str, str, str], list[tuple[Scene, int, str, str, str]]] = {}
    for scene in scenes:
        for length, variant, status, *texts in _untimed(scene):
            reason, remedy = (_without_name(text, variant) for text in texts)
            key = status, NUMBER.sub("#", reason), NUMBER.sub("#", remedy)
            groups.setdefault(key, []).append((scene, length, variant, reason, remedy))
    several = len({scene.run.number for scene in scenes}) > 1
    lengths = sum(len(scene.regime.lengths) for scene in scenes)
    found = []
    for (status, _, _), cells in groups.items():
        _, _, _, reason, remedy = cells[0]
        if any(texts != [reason, remedy] for _, _, _, *texts in cells):
            reason += " (with other numbers elsewhere)"
        variants = tuple(dict.fromkeys(variant for _, _, variant, _, _ in cells))
        where = _where(cells, several)
        if len(cells) == len(variants) * lengths:
            where = ("everywhere",)
        found.append(Missing(status, reason, remedy, variants, where, len(cells)))
    return sorted(found, key=lambda m: (ORDER.index(m.status), -m.cells))


def _untimed(scene: Scene) -> Iterator[tuple[int, str, str, str, str]]:
    """Length, variant, status, reason and remedy of each cell of a regime without a time."""
    variants = dict.fromkeys(r.variant for r in scene.regime.records)
    for length, cells in scene.regime.cells.items():
        for variant in variants:
            record = cells.get(variant)
            if record is None:
                yield length, variant, NOT_RUN, NO_RECORD, GO_ON
            elif record.time is None:
                reason = record.reason or record.note or ONLY_CHECKED
                yield length, variant, str(record.status), reason, record.remedy


def _without_name(text: str, variant: str) -> str:
    """``runs on cuda`` of ``sdpa.efficient runs on cuda``, so that equal reasons are one."""
    for name in (variant, variant.partition("?")[0]):
        if text.startswith(f"{name} "):
            return text[len(name) + 1 :]
    return text


def _where(
    cells: Sequence[tuple[Scene, int, str, str, str]], several_runs: bool
) -> tuple[str, ...]:
    by_number = {scene.number: scene for scene, *_ in cells}
    where = []
    for number, scene in by_number.items():
        some = sorted({length for other, length, *_ in cells if other.number == number})
        lengths = "; ".join(f"{n:,}" for n in some)
        if some == sorted(scene.regime.lengths):
            lengths = "all lengths"
        run = f"{scene.run.name}: " if several_runs else ""
        where.append(f"{run}{scene.regime}: {lengths}")
    return tuple(where)
