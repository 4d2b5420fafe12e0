"""A report in sentences: the answers, how sure they are, and what is missing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from rich.text import Text

from attnbench.answer.layers import LayerChoice, together
from attnbench.answer.ranking import Answer, Candidate
from attnbench.answer.standings import FACTORS, ONLY, SKILLED, Standing, advise, closeness
from attnbench.core import format
from attnbench.core.format import mib, ms
from attnbench.core.record import FINDINGS, Record, Status
from attnbench.report.scenes import ReportRun, Scene
from attnbench.report.tables import BOLD, FAINT, GOOD, Styled, Table, columns, console

LEAST = 0.05
"""The least fidelity to softmax of a variant that is named."""
HEADLINES = 2
"""Sentences above all; the page has every regime further down."""
TIES, DOUBTS = 3, 2
"""Ties and doubts that are named; the others are counted."""
FEWEST = 3
TO_DO = {
    "train": "To train",
    "forward": "To run forward",
    "backward": "To run backward",
    "decode": "To decode",
}


class Beside(NamedTuple):
    """A sentence about what is not exact and faster, around the name of a variant."""

    before: str
    faster: Candidate | None = None
    after: str = ""
    short: str = ""
    """Words to use in place of ``before`` where it was said already."""

    def __str__(self) -> str:
        name = f" {self.faster.variant}, {self.after}" if self.faster else ""
        return f"{self.before}{name}."


def kept(share: float) -> str:
    """Of what selects keys: how much of softmax's weight lies on them."""
    return f"{format.percent(share)} of softmax's weight on what it selects"


def parts(record: Record) -> str:
    """The parts of its time, and what it selects; empty of a variant that has neither."""
    words = ", ".join(f"{name} {format.ms(s)} ms" for name, s in record.parts.items())
    share = record.distance.kept if record.distance else None
    return "; ".join(filter(None, [words, "" if share is None else kept(share)]))


def beside(standing: Standing) -> Beside | None:
    """The sentence beside an answer; None where there is no answer."""
    if standing.answer is None:
        return None
    best_s, nearest = standing.answer.time.median_s, standing.substitute or standing.nearest
    if nearest is not None:
        fidelity = format.percent(max(0.0, nearest.skill or 0.0))
        words = f"{format.ratio(best_s / nearest.median_s)} as fast, {fidelity} fidelity"
        more = "" if nearest.kept is None else f"; {kept(nearest.kept)}"
        if standing.substitute is not None:
            after = f"{words} to softmax ({nearest.computes}){more}"
            return Beside("Faster, but not exact:", nearest, after, "Faster, not exact:")
        if (nearest.skill or 0.0) < LEAST:
            return Beside(f"Nothing faster has even {format.percent(LEAST)} fidelity to softmax")
        before = f"Nothing faster has {format.percent(SKILLED)} fidelity to softmax. Nearest:"
        return Beside(before, nearest, words + more, "Not exact:")
    if not standing.faster:
        return Beside("Nothing else measured is clearly faster, exact or not")
    fastest = standing.faster[0]
    after = f"{format.ratio(best_s / fastest.median_s)} as fast ({fastest.computes})"
    before = "Faster, fidelity to softmax not measured:"
    return Beside(before, fastest, after, "Fidelity not measured:")


def usual_length(scenes: Sequence[Scene]) -> int | None:
    """The longest length that most regimes reached with most of their variants."""
    longest = sorted(n for scene in scenes if (n := scene.regime.longest()))
    return longest[len(longest) // 2] if longest else None


def standing_at(scene: Scene, length: int | None) -> Standing | None:
    """The ranking at a length, at the nearest below it, or else at the shortest; without a length
    at the longest that most reached. None where nothing has a time.
    """
    length = scene.regime.longest() if length is None else length
    timed = [standing for standing in scene.standings if standing.timed]
    below = [standing for standing in timed if length and standing.length <= length]
    return next(iter(below[-1:] or timed[:1]), None)


class Headline(NamedTuple):
    """The answer of one regime at one length, around the name of the variant to use."""

    before: str
    winner: str = ""
    after: str = ""
    beside: str = ""
    """What is faster and not exact."""
    scene: int = -1
    """The number of its regime."""

    def __str__(self) -> str:
        return f"{self.before}{self.winner}{self.after} {self.beside}".strip()


def headlines(
    scenes: Sequence[Scene], several_runs: bool, length: int | None = None
) -> list[Headline]:
    """The first phases of each run at a length, by default at the longest of each."""
    phases: dict[int, dict[str, list[tuple[Scene, Standing]]]] = defaultdict(dict)
    for scene in scenes:
        if (standing := standing_at(scene, length)) is not None:
            of_run = phases[scene.run.number]
            of_run.setdefault(scene.regime.phase, []).append((scene, standing))
    if not phases:
        return [Headline("Nothing was measured; reasons below.")]
    names = distinct_words(scenes)
    lines = []
    for of_run in phases.values():
        for some in list(of_run.values())[: 1 if several_runs else HEADLINES]:
            scene, standing = max(some, key=lambda each: each[1].length)
            on = f" on {scene.run.name}" if several_runs else ""
            words = ", ".join(names[scene.number].split(" · ")[1:])
            if len(some) > 1 and words:  # the phase has several regimes
                on += f" ({words})"
            doing = TO_DO.get(scene.regime.phase, f"For {scene.regime.phase}")
            winner = standing.answer.winner if standing.answer else ""
            text = advice(standing.answer)
            use = "use " if text.startswith("use ") else ""
            before = f"{doing} at {standing.length:,} {scene.regime.unit}{on}, {use}"
            after = f"{text[len(use) + len(winner) :]}."
            also = str(beside(standing) or "")
            lines.append(Headline(before, winner, after, also, scene.number))
    return lines


def advice(answer: Answer | None) -> str:
    """The variant to use, its time and lead, its ties, and what was noisy."""
    if answer is None:
        return "nothing that is exactly softmax has a time"
    t, doubts = answer.time, answer.flags
    time = format.time_interval(t.median_s, t.low_s, t.high_s)
    if answer.next is None and not answer.equal:
        text = f"{answer.name} takes {time}; it is the only exact variant measured"
    else:
        text = f"use {answer.name}: {time}"
        if answer.equal:
            ties, more = list(answer.equal[:TIES]), len(answer.equal) - TIES
            ties += [f"{more} more"] if more > 0 else []
            names = " and ".join(filter(None, [", ".join(ties[:-1]), ties[-1]]))
            text += f", tied with {names}"
        if answer.next is not None:
            text += "; " if answer.equal else ", "
            text += f"{answer.lead} faster than the next, {answer.next}"
    if doubts:
        text += f"; noisy: {', '.join(doubts[:DOUBTS])}"
        text += f", and {len(doubts) - DOUBTS} more" if len(doubts) > DOUBTS else ""
    return text


def distinct_words(scenes: Sequence[Scene]) -> dict[int, str]:
    """For each regime its phase, and the words that not all of them share."""
    shared = shared_words(scenes)
    words = {scene.number: scene.regime.words() for scene in scenes}
    return {
        number: " · ".join([some[0], *(word for word in some[1:] if word not in shared)])
        for number, some in words.items()
    }


def shared_words(scenes: Sequence[Scene]) -> list[str]:
    """The words of all regimes, but for the phase."""
    words = [scene.regime.words()[1:] for scene in scenes]
    return [word for word in words[0] if all(word in some for some in words)] if words else []


SURE = {"clear": "clear", "tie": "tied", ONLY: "of the only exact variant", "noisy": "noisy"}
"""How sure answers are, as their sum says it."""


def how_sure(scenes: Sequence[Scene]) -> str:
    """``of 15 answers 3 are clear, 2 are tied, 10 are noisy; 9 samples a timing at …``

    Each answer counts once, a noisy one as that; empty where there is none.
    """
    answers = {id(s.answer.time): s for scene in scenes for s in scene.standings if s.answer}
    times = {id(r.time): r.time for scene in scenes for r in scene.regime.records if r.time}
    if not answers:
        return ""
    counts = Counter(SURE.get(standing.sure, "tied") for standing in answers.values())
    kinds = [kind for kind in SURE.values() if counts[kind]]
    each = (f"{counts[kind]} {'is' if counts[kind] == 1 else 'are'} {kind}" for kind in kinds)
    noisy = sum(bool(time.doubts) for time in times.values())
    samples = median(time.n for time in times.values())
    return (
        f"of {format.counted(len(answers), 'answer')} {', '.join(each)}; {samples:,.0f} samples a "
        f"timing at the median; {noisy:,} of {len(times):,} timings were noisy"
    )


class Only(NamedTuple):
    """The one exact variant that stays nearest to the best over all problems of a run."""

    run: ReportRun
    variant: str
    near: str
    """``within 1.25× of the best on 14 of 15 problems, at worst 2.13× (decode, 4,096 keys)``"""


def only(run: ReportRun, scenes: Sequence[Scene]) -> Only | None:
    """The variant to take if only one may be chosen; None where few problems have been measured.

    It says how far that is from the best at worst, and on how many problems it has no time.
    """
    own = [scene for scene in scenes if scene.run is run]
    ranked = closeness(scene.regime for scene in own)
    if not ranked or ranked[0].problems < FEWEST:
        return None
    first = advise(ranked, (s for scene in own for s in scene.standings))
    names = distinct_words(own)
    ratios = {
        exact[first.variant] / min(exact.values()): (scene, length)
        for scene in reversed(own)
        for length in reversed(scene.regime.lengths)
        if first.variant in (exact := scene.regime.exact(length))
    }
    worst = max(ratios)
    scene, length = ratios[worst]
    where = f"{names[scene.number].replace(' · ', ', ')}, {length:,} {scene.regime.unit}"
    factor, count = first.mostly()
    missed = first.problems - len(first.ratios)
    near = f"within {factor:g}× of the best on {count} of {first.problems} problems"
    near += f", at worst {format.ratio(worst)} ({where})" if worst > FACTORS[0] else ""
    return Only(run, first.variant, near + (f"; no time on {missed}" if missed else ""))


class Missing(NamedTuple):
    """Cells that have no time, for one reason."""

    status: str
    reason: str
    remedy: str
    variants: Sequence[str]
    where: Sequence[str]
    """Their regimes, with the lengths: ``train, causal …: 2,048, 4,096``."""
    cells: int


NOT_RUN = "not run"
NO_RECORD = "there is no record of it: the run ended before it, or left it out"
GO_ON = "attnbench run --resume, with the run's folder, measures what is missing"
ONLY_CHECKED = "it passed its checks, and no time was taken"
NUMBER = re.compile(r"\d[\d,.]*")


def missing(scenes: Sequence[Scene]) -> list[Missing]:
    """All cells without a time, by reason; reasons that differ in numbers alone are one."""
    groups: dict[tuple[str, str, str], list[tuple[Scene, int, str, str, str]]] = defaultdict(list)
    for scene in scenes:
        variants = dict.fromkeys(r.variant for r in scene.regime.records)
        for length, cells in scene.regime.cells.items():
            for variant in variants:
                record = cells.get(variant)
                if record is None:
                    status, reason, remedy = NOT_RUN, NO_RECORD, GO_ON
                elif record.time is None:
                    status, remedy = str(record.status), record.remedy
                    reason = record.reason or record.note or ONLY_CHECKED
                else:
                    continue
                for name in (variant, variant.partition("?")[0]):  # so that equal reasons are one
                    reason, remedy = (x.removeprefix(f"{name} ") for x in (reason, remedy))
                key = status, NUMBER.sub("#", reason), NUMBER.sub("#", remedy)
                groups[key].append((scene, length, variant, reason, remedy))
    everywhere = sum(len(scene.regime.lengths) for scene in scenes)
    reasons = []
    for (status, *_), some in groups.items():
        _, _, _, reason, remedy = some[0]
        if any(texts != [reason, remedy] for _, _, _, *texts in some):
            reason += " (with other numbers elsewhere)"
        names = tuple(dict.fromkeys(variant for _, _, variant, _, _ in some))
        where = ["everywhere"] if len(some) == len(names) * everywhere else _places(scenes, some)
        reasons.append(Missing(status, reason, remedy, names, where, len(some)))
    last: dict[str, int] = {Status.UNSUPPORTED: 2, Status.UNAVAILABLE: 3}  # any machine lacks some
    rank: dict[str, int] = {**dict.fromkeys(FINDINGS, 0), **last}
    return sorted(reasons, key=lambda m: (rank.get(m.status, 1), -m.cells))


def _places(
    scenes: Sequence[Scene], cells: Sequence[tuple[Scene, int, str, str, str]]
) -> list[str]:
    """A phrase a regime, with the lengths."""
    several = len({scene.run.number for scene in scenes}) > 1
    phrases = []
    for scene in scenes:
        some = {length for other, length, *_ in cells if other is scene}
        whole = some == set(scene.regime.lengths)
        at = "all lengths" if whole else "; ".join(f"{n:,}" for n in sorted(some))
        run = f"{scene.run.name}: " if several else ""
        phrases += [f"{run}{scene.regime}: {at}"] if some else []
    return phrases


# ---- the layers of a model -----------------------------------------------------------------------

INDENT = 2
Kind = tuple[str, str, list[LayerChoice]]
"""How many layers are of it, its operator and shape, and its choices."""


def by_kind(choices: Sequence[LayerChoice]) -> Iterator[Kind]:
    """``full: 12 of 48 attention layers``, ``softmax · h8/1 d256 f32 causal``, and the choices."""
    kinds = {each.kind: each.layers for each in choices}
    for kind, layers in kinds.items():
        own = [each for each in choices if each.kind == kind]
        words = f"{kind}: {layers} of {sum(kinds.values())} attention layers"
        yield words, f"{own[0].choice.wants.operator} · {own[0].shape}", own


def _where(each: LayerChoice, first: LayerChoice) -> str:
    """The phase and the tokens, with the shape where that is not the first one's."""
    return each.where + ("" if each.shape == first.shape else f" ({each.shape})")


def layer_tables(choices: Sequence[LayerChoice]) -> Iterator[Table]:
    """A table a kind of layer: what to use of it, and by how much."""
    right = ("time, ms", "MiB")
    heads = columns("asked", "use", "time, ms", "95 %", "MiB", "against the others", right=right)
    for layers, about, own in by_kind(choices):
        rows = [[_where(each, own[0]), *_answer(each)] for each in own]
        yield Table(f"{layers} · {about}", heads, rows)


def _answer(each: LayerChoice) -> list[object]:
    """The cells of an answer."""
    if (ranking := each.choice.ranking) is None:
        return ["no answer", None, "", None, each.choice.why_not]
    best = ranking.winner
    words = [f"tied with {', '.join(x.name for x in ranking.equal)}"] if ranking.equal else []
    words += [f"{ranking.lead} ahead of {ranking.next.name}"] if ranking.next else []
    words += ["the only one that is known"] if len(ranking.all) == 1 else []
    words += ["noisy"] if best.flags else []
    interval = f"[{ms(best.low_s)}, {ms(best.high_s)}]"
    name = Styled(best.name, BOLD)
    return [name, ms(best.median_s), interval, mib(best.memory_bytes), "; ".join(words)]


def show_layers(title: str, choices: Sequence[LayerChoice], width: int | None = None) -> None:
    """Print the model, each kind of layer with its answers, and what all layers take."""
    out = console(width)
    out.print(Text(title, BOLD))
    for layers, about, own in by_kind(choices):
        out.print(Text(f"\n{layers}", BOLD), end="")
        out.print(Text(f" · {about}"))
        for each in own:
            style = GOOD if each.choice.ranking else FAINT
            answer = Text(f"{_where(each, own[0])}: ").append(each.choice.advice(), style)
            for line in answer.wrap(out, out.width - INDENT):
                out.print(Text(" " * INDENT).append_text(line))
    if totals := list(together(choices)):
        out.print()
    for total in totals:
        out.print(Text(total.sentence()))
