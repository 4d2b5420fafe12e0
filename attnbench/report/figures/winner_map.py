"""The winner map: for each regime and length the fastest exact variant, and by how much.

Colour is the winner, depth its lead; hatched is a tie. A cell without a winner says why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.answer.ranking import Answer
from attnbench.core import format
from attnbench.core.record import NOT_TRIED, Status
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import DEEPEST, FAINT, GRID, INK, Drawn, finish, sheet
from attnbench.report.figures.style import Looks
from attnbench.report.scenes import ReportRun, Scene

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE = 504.0
ROW, ABOVE, BELOW = 42.0, 59.5, 8.0
LEAST, MOST = 60.0, 150.0
MOST_ROWS = 40
MOST_LENGTHS = 12
SIZE = 8.0
WORDS = {
    Status.UNSUPPORTED: "not supported", Status.UNAVAILABLE: "not available",
    Status.WRONG: "wrong results", Status.IMPLAUSIBLE: "not believed", Status.FAILED: "failed",
    Status.OUT_OF_MEMORY: "out of memory", Status.TIMED_OUT: "timed out",
    Status.CRASHED: "crashed",
}  # fmt: skip


def draw(run: ReportRun, scenes: Sequence[Scene], looks: Looks) -> Drawn | None:
    """The map of a run's regimes; None where nothing exact was timed."""
    own = [scene for scene in scenes if scene.run.number == run.number]
    answered = [scene for scene in own if any(s.answer for s in scene.standings)]
    if not answered:
        return None
    shown = (answered + [scene for scene in own if scene not in answered])[:MOST_ROWS]
    shown.sort(key=lambda scene: scene.number)
    answers = [s.answer for scene in shown for s in scene.standings if s.answer]
    lengths = sorted({n for scene in shown for n in scene.regime.lengths})
    columns = lengths[-MOST_LENGTHS:]
    means = f"the deeper, the further ahead; hatched: a tie, within {format.percent(run.margin)}"
    means += "; ?: noisy" * any(a.flags for a in answers)
    lines = style.lines([(means, {"marker": "s", "markersize": 0, "color": FAINT})], WIDE - 12)
    rest = {"more regimes": len(own) - len(shown), "shorter lengths": len(lengths) - len(columns)}
    left_out = " and ".join(f"{count} {what}" for what, count in rest.items() if count)
    below = BELOW + style.LINE * (len(lines) + bool(left_out)) + 4
    high = ABOVE + ROW * len(shown) + below
    words = [scene.regime.words() for scene in shown]
    common = [w for w in words[0] if all(w in other for other in words)] if len(words) > 1 else []
    names = [_two_lines([w for w in some if w not in common] or some[:1]) for some in words]
    widest = max(max(labels.width(a, SIZE, "bold"), labels.width(b, 7)) for a, b in names)
    left = min(MOST, max(LEAST, 14 + widest))
    title = "The fastest exact softmax attention, by regime and length"
    with sheet(WIDE / 72, high / 72) as figure:
        labels.heading(figure, title, ", ".join([*common, run.machine]), _finding(answers))
        style.put(figure, 6, BELOW - 2, lines)
        if left_out:
            text = f"Not drawn: {left_out}; the table has all."
            labels.write(figure, 6, below - style.LINE, text, 7, color=FAINT)
        wide = (WIDE - left - 6) / len(columns)
        for number, length in enumerate(columns):
            text = f"{length:,}"
            text = text if labels.width(text, SIZE) < wide - 2 else format.tokens(length)
            text, x = labels.shorten(text, wide, SIZE), left + wide * (number + 0.5)
            labels.write(figure, x, high - ABOVE + 5, text, SIZE, ha="center")
        labels.write(figure, 6, high - ABOVE + 5, "tokens", 7, color=FAINT)
        for row, (scene, (first, second)) in enumerate(zip(shown, names, strict=True), 1):
            bottom = high - ABOVE - ROW * row
            level = bottom + ROW / 2 + (1.5 if second else -3)
            labels.write(figure, 6, level, first, SIZE, weight="bold")
            labels.write(figure, 6, bottom + ROW / 2 - 9, second, 7, color=FAINT)
            for number, length in enumerate(columns):
                box = (left + wide * number + 1, bottom + 1, wide - 2, ROW - 2)
                _cell(figure, box, scene, length, looks)
        name, title = f"map-{run.number}", f"{title}, {run.name}"
        return finish(figure, "map", name, title, _describe(shown), _rows(shown))


def depth(lead: float | None) -> float:
    """The opacity of a winner's colour, which grows up to a lead of three times."""
    if lead is None or not math.isfinite(lead) or lead <= 1:
        return 0.12
    return 0.12 + (DEEPEST - 0.12) * min(1.0, math.log(lead) / math.log(3))


def _finding(answers: Sequence[Answer]) -> str:
    """Which leads, alone or in a tie, on most problems; empty where there is only one answer."""
    leads = Counter(name for a in answers for name in a.leaders)
    best = min(leads, key=lambda name: (-leads[name], name))
    if len(answers) < 2:
        return ""
    alone = sum(a.winner == best and not a.equal for a in answers)
    how = f"alone on {alone}" if alone else "never alone"
    return f"{best} is the fastest or ties with it on {leads[best]} of {len(answers)}, {how}"


def _two_lines(words: Sequence[str]) -> tuple[str, str]:
    """The first word, with as many more as fit beside it, and the rest below."""
    taken, room = 1, MOST - 14
    while taken < len(words) and labels.width(", ".join(words[: taken + 1]), SIZE, "bold") <= room:
        taken += 1
    first, rest = ", ".join(words[:taken]), ", ".join(words[taken:])
    return labels.shorten(first, room, SIZE, "bold"), labels.shorten(rest, room, 7)


def _cell(
    figure: Figure,
    box: tuple[float, float, float, float],
    scene: Scene,
    length: int,
    looks: Looks,
) -> None:
    """The winner, its lead and its time, of a tie as many names as fit; or why there is none.

    ``box``: its left, bottom, width and height.
    """
    from matplotlib.patches import Rectangle

    def fill(**how: Any) -> None:
        page = figure.get_size_inches() * 72
        corner, size = box[:2] / page, box[2:] / page
        figure.add_artist(Rectangle(corner, *size, transform=figure.transFigure, **how))

    left, bottom, wide, high = box
    standing = next((s for s in scene.standings if s.length == length), None)
    more: dict[str, Any] = {"ha": "center", "color": FAINT}
    if standing and (answer := standing.answer):
        look = looks[answer.winner]
        factor = answer.lead.factor if answer.lead else None
        fill(linewidth=0, alpha=depth(factor), facecolor=look.colour)
        doubt = " ?" if answer.flags else ""
        lines = [answer.winner, (format.ratio(factor) if factor else "only one") + doubt]
        if answer.equal:
            fill(linewidth=0, facecolor="none", edgecolor=look.colour, alpha=0.3, hatch="////")
            names = labels.listed(standing.leaders, wide - 5, 7.0)
            lines = [f"tie of {len(standing.leaders)}{doubt}", names]
        lines.append(format.duration(answer.time.median_s))
        more["color"] = INK
    else:
        fill(facecolor="none", edgecolor=GRID, linewidth=0.8)
        lines = why_none(scene, length).split(", ")
    level = bottom + high / 2 + (len(lines) - 1) * 5.5 - 2.8
    for number, text in enumerate(lines):
        head = number == 0 and more["color"] == INK
        size, weight = (7.5, "bold") if head else (7.0, "normal")
        text, y = labels.shorten(text, wide - 5, size, weight), level - number * 11
        labels.write(figure, left + wide / 2, y, text, size, weight=weight, **more)


def why_none(scene: Scene, length: int) -> str:
    """Why a length has no winner: of the exact variants, first those that were tried."""
    records = list(scene.regime.cells.get(length, {}).values())
    exact = [r for r in records if r.computes == "softmax"]
    if not records:
        return "not run"
    if not exact and any(r.time for r in records):
        return "nothing exact, others timed"
    tried = [r for r in exact or records if r.status not in NOT_TRIED]
    statuses = Counter(r.status for r in tried or exact or records)
    return WORDS.get(statuses.most_common(1)[0][0], "no usable time")


def _describe(shown: Sequence[Scene]) -> str:
    lines = []
    for scene in shown:
        found = [(s.span, s.last.answer, s.last.sure) for s in scene.stretches]
        winners = (
            f"{n} tokens {f'{a.winner} ({s})' if a else 'no exact one'}" for n, a, s in found
        )
        lines.append(f"{scene.regime}: {'; '.join(winners)}")
    return ". ".join(lines)


def _rows(shown: Sequence[Scene]) -> Iterator[Sequence[object]]:
    columns = ("regime", "length", "winner", "median_s", "tied with", "next")
    yield *columns, "lead", "lead_low", "lead_high", "why none"
    for scene in shown:
        for standing in scene.standings:
            where, a = (str(scene.regime), standing.length), standing.answer
            if a is None:
                yield *where, *[""] * 7, why_none(scene, standing.length)
                continue
            lead = (a.lead.factor, a.lead.low, a.lead.high) if a.lead else ()
            leads = [f"{n:.4g}" for n in lead] or [""] * 3
            names = " ".join(a.equal), a.next or ""
            yield *where, a.winner, style.number(a.time.median_s), *names, *leads, ""
