"""The answers in sentences: the headline that a page opens with, and each stretch of lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnbench.answer.standing import Standing, Stretch
from attnbench.record import Time
from attnbench.report.numbers import ms
from attnbench.report.page.beside import beside
from attnbench.report.scenes import Scene

HEADLINES = 2
"""So many stand above all; who reads on finds every regime."""
NAMED, DOUBTS = 3, 2
"""Of those that tie, and of what was amiss, so many are named; the rest is counted."""
TO_DO = {
    "train": "To train", "forward": "To run forward", "backward": "To run backward",
    "decode": "To decode",
}  # fmt: skip


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
