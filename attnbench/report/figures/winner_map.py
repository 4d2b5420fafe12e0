"""The winner map: for each regime and length the fastest exact variant, and by how much.

Colour is its family, depth its lead; hatched is a tie. A cell without a winner says why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.answer.ranking import Standing
from attnbench.core import format
from attnbench.core.record import NOT_TRIED, Record, Status
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import (
    DEEPEST,
    FAINT,
    GRID,
    Drawn,
    finish,
    sheet,
)
from attnbench.report.figures.style import Looks
from attnbench.report.scenes import ReportRun, Scene

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE = 504.0
ROW, ABOVE, BELOW = 42.0, 59.5, 8.0
LEAST, MOST = 60.0, 150.0
"""Points for the regimes, at the left."""
MOST_ROWS = 40
MOST_LENGTHS = 12
SIZE = 8.0
LINE = 11.0
"""Points from one line of a cell to the next."""
WORDS = {
    Status.UNSUPPORTED: "not supported", Status.UNAVAILABLE: "not available",
    Status.WRONG: "wrong results", Status.IMPLAUSIBLE: "not believed", Status.FAILED: "failed",
    Status.OUT_OF_MEMORY: "out of memory", Status.TIMED_OUT: "timed out",
    Status.CRASHED: "crashed",
}  # fmt: skip
"""Why there is no time, in two words."""


def draw(run: ReportRun, scenes: Sequence[Scene], looks: Looks) -> Drawn | None:
    """The map of a run's regimes; None where nothing exact was timed."""
    own = [scene for scene in scenes if scene.run.number == run.number]
    answered = [scene for scene in own if any(s.answer for s in scene.standings)]
    if not answered:
        return None
    shown = (answered + [scene for scene in own if scene not in answered])[:MOST_ROWS]
    shown.sort(key=lambda scene: scene.number)
    lengths = sorted({n for scene in shown for n in scene.regime.lengths})
    columns = lengths[-MOST_LENGTHS:]
    used = dict.fromkeys(s.answer.winner for scene in shown for s in scene.standings if s.answer)
    doubt = any(s.answer and s.answer.flags for scene in shown for s in scene.standings)
    items = _key(looks, used, run.margin, doubt=doubt)
    lines = style.lines(items, WIDE - 12)
    left_out = _left_out(own, shown, lengths, columns)
    below = BELOW + style.LINE * (len(lines) + bool(left_out)) + 4
    high = ABOVE + ROW * len(shown) + below
    title = "The fastest exact softmax attention, by regime and length"
    common = _common(shown)
    with sheet(WIDE / 72, high / 72) as figure:
        labels.heading(figure, title, ", ".join([*common, run.machine]), _finding(shown))
        style.put(figure, 6, BELOW - 2, lines)
        if left_out:
            labels.write(figure, 6, below - style.LINE, left_out, 7, color=FAINT)
        names = [_two_lines(_own(scene, common), MOST - 14) for scene in shown]
        left = min(MOST, max(LEAST, 14 + max(_wide(name) for name in names)))
        _heads(figure, columns, high, left)
        for number, (scene, name) in enumerate(zip(shown, names, strict=True)):
            bottom = high - ABOVE - ROW * (number + 1)
            _name(figure, name, bottom)
            _cells(figure, scene, columns, looks, bottom, left)
        title, rows = f"{title}, {run.name}", _rows(shown)
        return finish(figure, "map", f"map-{run.number}", title, _describe(shown), rows)


def depth(lead: float | None) -> float:
    """The opacity of a winner's colour, which grows up to a lead of three times."""
    if lead is None or not math.isfinite(lead) or lead <= 1:
        return 0.12
    return 0.12 + (DEEPEST - 0.12) * min(1.0, math.log(lead) / math.log(3))


def _finding(shown: Sequence[Scene]) -> str:
    """Which leads, alone or in a tie, on most problems; empty where there is only one answer."""
    answers = [s.answer for scene in shown for s in scene.standings if s.answer]
    leads = Counter(name for a in answers for name in (a.winner, *a.equal))
    alone = Counter(a.winner for a in answers if not a.equal)
    best = min(leads, key=lambda name: (-leads[name], name))
    if len(answers) < 2:
        return ""
    how = f"alone on {alone[best]}" if alone[best] else "never alone"
    return f"{best} is the fastest or ties with it on {leads[best]} of {len(answers)}, {how}"


def _common(shown: Sequence[Scene]) -> list[str]:
    """The words that all regimes share, which no row needs to repeat."""
    first, *rest = ([*scene.regime.words()] for scene in shown)
    return [word for word in first if all(word in other for other in rest)] if rest else []


def _left_out(
    own: Sequence[Scene], shown: Sequence[Scene], lengths: Sequence[int], columns: Sequence[int]
) -> str:
    parts = []
    if len(own) > len(shown):
        parts.append(f"{len(own) - len(shown)} more regimes")
    if len(lengths) > len(columns):
        parts.append(f"{len(lengths) - len(columns)} shorter lengths")
    return f"Not drawn: {' and '.join(parts)}; the table has all." if parts else ""


def _key(looks: Looks, used: Iterable[str], margin: float, *, doubt: bool) -> list[style.Item]:
    items = style.families_key({looks[name].family for name in used if name in looks}, 5)
    words = f"the deeper, the further ahead; hatched: a tie, within {format.percent(margin)}"
    if doubt:
        words += "; ?: in doubt"
    return [*items, (words, {"marker": "s", "markersize": 0, "color": FAINT})]


def _heads(figure: Figure, columns: Sequence[int], high: float, left: float) -> None:
    wide = (WIDE - left - 6) / len(columns)
    for number, length in enumerate(columns):
        x = left + wide * (number + 0.5)
        text = f"{length:,}"
        text = text if labels.width(text, SIZE) < wide - 2 else format.tokens(length)
        labels.write(
            figure, x, high - ABOVE + 5, labels.shorten(text, wide, SIZE), SIZE, ha="center"
        )
    labels.write(figure, 6, high - ABOVE + 5, "tokens", 7, color=FAINT)


def _own(scene: Scene, common: Sequence[str]) -> list[str]:
    """The words that distinguish a regime from the others of the map."""
    return [word for word in scene.regime.words() if word not in common] or [scene.regime.phase]


def _wide(name: tuple[str, str]) -> float:
    return max(labels.width(name[0], SIZE, "bold"), labels.width(name[1], 7))


def _name(figure: Figure, name: tuple[str, str], bottom: float) -> None:
    first, second = name
    middle = bottom + ROW / 2
    labels.write(figure, 6, middle + (1.5 if second else -3), first, SIZE, weight="bold")
    if second:
        labels.write(figure, 6, middle - 9, second, 7, color=FAINT)


def _cells(
    figure: Figure, scene: Scene, columns: Sequence[int], looks: Looks, bottom: float, start: float
) -> None:
    wide = (WIDE - start - 6) / len(columns)
    standings = {s.length: s for s in scene.standings}
    for number, length in enumerate(columns):
        box = (start + wide * number + 1, bottom + 1, wide - 2, ROW - 2)
        standing = standings.get(length)
        if standing is None or standing.answer is None:
            _empty(figure, box, _why(scene, length))
        else:
            _cell(figure, box, standing, looks)


def _two_lines(words: Sequence[str], room: float) -> tuple[str, str]:
    """The first word, with as many more as fit beside it, and the rest below."""
    taken = 1
    while taken < len(words) and labels.width(", ".join(words[: taken + 1]), SIZE, "bold") <= room:
        taken += 1
    first, rest = ", ".join(words[:taken]), ", ".join(words[taken:])
    return labels.shorten(first, room, SIZE, "bold"), labels.shorten(rest, room, 7)


Place = tuple[float, float, float, float]
"""Left, bottom, width and height."""


def _cell(figure: Figure, box: Place, standing: Standing, looks: Looks) -> None:
    answer = standing.answer
    assert answer is not None
    look = looks[answer.winner]
    words = f"{standing.length:,} tokens: {answer.sentence().partition(': ')[2]}"
    fill = {"facecolor": look.colour, "alpha": depth(answer.lead), "gid": look.gid(words)}
    _rectangle(figure, box, linewidth=0, **fill)
    if answer.equal:
        hatch = {"facecolor": "none", "edgecolor": look.colour, "alpha": 0.3, "hatch": "////"}
        _rectangle(figure, box, linewidth=0, **hatch)
    _words(figure, box, _cell_lines(standing, box[2] - 5), look.gid())


def _cell_lines(standing: Standing, room: float) -> list[str]:
    """The winner, its lead and its time; of a tie as many names as there is room for."""
    answer = standing.answer
    assert answer is not None
    doubt = " ?" if answer.flags else ""
    taken = format.seconds(answer.time.median_s)
    if answer.equal:
        names = labels.listed(standing.leaders, room, 7.0)
        return [f"tie of {len(standing.leaders)}{doubt}", names, taken]
    ahead = format.times(answer.lead) if answer.lead else "only one"
    return [answer.winner, ahead + doubt, taken]


def _empty(figure: Figure, box: Place, why: str) -> None:
    _rectangle(figure, box, facecolor="none", edgecolor=GRID, linewidth=0.8)
    _words(figure, box, why.split(", "), "", pale=True)


def _words(
    figure: Figure, box: Place, lines: Sequence[str], gid: str, *, pale: bool = False
) -> None:
    """Write lines one below the other in the middle of a cell, the first one bold."""
    left, bottom, wide, high = box
    more: dict[str, Any] = {"ha": "center", **({"gid": gid} if gid else {})}
    more |= {"color": FAINT} if pale else {}
    level = bottom + high / 2 + (len(lines) - 1) * LINE / 2 - 2.8
    for number, text in enumerate(lines):
        size, weight = (7.5, "bold") if number == 0 and not pale else (7.0, "normal")
        line = labels.shorten(text, wide - 5, size, weight)
        middle = left + wide / 2
        labels.write(figure, middle, level - number * LINE, line, size, weight=weight, **more)


def _rectangle(figure: Figure, box: Place, **more: Any) -> None:
    from matplotlib.patches import Rectangle

    wide, high = figure.get_size_inches() * 72
    left, bottom, across, up = box
    corner, size = (left / wide, bottom / high), (across / wide, up / high)
    figure.add_artist(Rectangle(corner, *size, transform=figure.transFigure, **more))


def _why(scene: Scene, length: int) -> str:
    """Why a length has no winner: of the exact variants, first those that were tried."""
    records = list(scene.regime.cells.get(length, {}).values())
    exact = [r for r in records if r.computes == "softmax"]
    if not records:
        return "not run"
    tried = [r for r in exact or records if r.status not in NOT_TRIED]
    words = _commonest(tried or exact or records)
    return words if exact or not any(r.time for r in records) else "nothing exact, others timed"


def _commonest(records: Sequence[Record]) -> str:
    status, _ = Counter(r.status for r in records).most_common(1)[0]
    return WORDS.get(status, "no usable time")


def _describe(shown: Sequence[Scene]) -> str:
    lines = []
    for scene in shown:
        spans = []
        for stretch in scene.stretches:
            answer, sure = stretch.last.answer, stretch.last.sure
            winner = f"{answer.winner} ({sure})" if answer else "no exact one"
            spans.append(f"{stretch.span} tokens {winner}")
        lines.append(f"{scene.regime}: {'; '.join(spans)}")
    return ". ".join(lines)


COLUMNS = ("regime", "length", "winner", "median_s", "tied with", "next")


def _rows(shown: Sequence[Scene]) -> Iterator[Sequence[object]]:
    yield *COLUMNS, "lead", "lead_low", "lead_high", "why none"
    for scene in shown:
        for standing in scene.standings:
            where, a = (str(scene.regime), standing.length), standing.answer
            if a is None:
                yield *where, *[""] * 7, _why(scene, standing.length)
                continue
            leads = ["" if n is None else f"{n:.4g}" for n in (a.lead, a.lead_low, a.lead_high)]
            names = " ".join(a.equal), a.next or ""
            yield *where, a.winner, style.number(a.time.median_s), *names, *leads, ""
