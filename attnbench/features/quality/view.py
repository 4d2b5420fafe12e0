"""Results of any task in sentences, tables, rows of CSV, and one picture: score × time, and beside
it, where memory was counted, score × memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.answer.regimes import frontier
from attnbench.core.evidence import Evidence
from attnbench.core.format import first_few, ms, name_and_kind
from attnbench.features.quality.task import (
    MARKS,
    Judgement,
    QualityFigure,
    Result,
    ResultGroup,
    status_words,
)
from attnbench.report import tidy
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, GRID, Plot, add_axes, finish, heading, sheet
from attnbench.report.tables import BAD, GOOD, Styled, Table, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED, BEATERS = 8, 2
"""Variants that a sentence names, and a cell of a table."""


def conclusions(groups: Sequence[ResultGroup]) -> list[str]:
    """The sentences of all settings."""
    return [f"{line[0].upper()}{line[1:]}." for group in groups for line in conclude(group)]


def conclude(group: ResultGroup) -> Iterator[str]:
    """Who keeps the level, the fastest of them, and the best of what is faster."""
    names: dict[Judgement, list[str]] = {judgement: [] for judgement in Judgement}
    judged = group.judged()
    for result in judged:
        score = result.scores[group.score]
        names[score.judge(group.level)].append(f"{result.variant} ({score})")
        if result.variant == group.baseline and score.judge(group.level) != Judgement.KEEPS:
            yield (
                f"{group.setting}: {group.baseline} itself is not known to keep {group.level:g}, "
                "so what the others lose can't be held against them"
            )
    parts = [f"{judgement}: {first_few(some, NAMED)}" for judgement, some in names.items() if some]
    if parts:
        yield f"{group.setting}, {group.score}: {group.level:g} {'; '.join(parts)}"
    others = [result for result in group.keepers(group.level) if result.variant != group.baseline]
    for result in others[:1]:
        gain = "" if result.faster else f", so none gains on {group.baseline}"
        yield f"the fastest other that keeps it is {_with_step(result)}{gain}"
    if best := [r.variant for r in group.results if r.memory and not r.beaten_by]:
        yield f"{group.setting}, in quality, time and memory: beaten by none: {', '.join(best)}"
    faster = [result for result in judged if result.faster and result not in others[:1]]
    for result in sorted(faster, key=lambda r: -r.scores[group.score].value)[:1]:
        yield (
            f"of those clearly faster than {group.baseline}, the best is "
            f"{_with_step(result)}, with {result.scores[group.score]}"
        )


def _with_step(result: Result) -> str:
    name = name_and_kind(result.variant, result.computes)
    return f"{name}, in {result.step.with_ends if result.step else ''} of the time"


def tables(groups: Sequence[ResultGroup]) -> list[Table]:
    """A table a setting."""
    return [_table(group) for group in groups]


def _table(group: ResultGroup) -> Table:
    shown = [r for r in group.results if group.score not in r.scores] + group.judged()
    scores = list(dict.fromkeys(name for r in shown for name in r.scores))
    timed = any(result.step for result in shown)
    more = list(dict.fromkeys(name for r in shown for name in r.more))
    caches = any(result.memory for result in shown)
    lines = []
    for result in shown:
        cells: list[Any] = [_score(result.scores.get(name), group.level) for name in scores]
        if timed:
            step, quick = result.step, GOOD if result.faster else ""
            cells += [result.step_s and ms(result.step_s), step and Styled(step.with_ends, quick)]
        cells += [_plain(result.more.get(name)) for name in more]
        if caches:
            cells += [_plain(result.memory), first_few(result.beaten_by, BEATERS) or "none"]
        lines.append((result.variant, result.computes, *cells))
    right = [*scores, *(("ms", "of the time") if timed else ()), *more]
    right += ["of the bytes"] if caches else []
    names = [*right, *(["beaten by"] if caches else [])]
    heads = columns("variant", "computes", *names, right=right, wrap=["computes", "beaten by"])
    return Table(f"{group.setting}: {group.score}, to keep {group.level:g}", heads, lines)


def _plain(x: QualityFigure | float | None) -> str | None:
    if isinstance(x, QualityFigure):
        digits = 3 if max(x.three) < 10 else 1
        value, low, high = (f"{y:.{digits}f}" for y in x.three)
        return value if low == high else f"{value} [{low}, {high}]"
    if x is None:
        return None
    return f"{x:,.0f}" if abs(x) >= 100 or x == round(x) else f"{x:.3g}"


def _score(score: QualityFigure | None, level: float) -> Styled | None:
    if score is None:
        return None
    judgement = score.judge(level)
    colour = {Judgement.KEEPS: GOOD, Judgement.LACKS: BAD}.get(judgement, "")
    return Styled(f"{score}{MARKS[judgement]}", colour)


def notes(evidence: Evidence) -> list[str]:
    """The variants without figures and why, and the meaning of the marks."""
    away = dict.fromkeys(r["variant"] for r in evidence.rows if r["status"] == "unavailable")
    whys = [
        f"! {row['variant']}: {why}"
        for row in evidence.rows
        if row["status"] != "unavailable"
        for why in [*([status_words(row)] if row["reason"] else []), *row.get("amiss", ())]
    ]
    return [
        *([f"not available here ('attnbench list' says why): {', '.join(away)}"] if away else []),
        *dict.fromkeys(whys),
        "± the farther end of the interval; ✓ all of it keeps the level, ? it lies across it or "
        "there is none",
    ]


def csv_rows(evidence: Evidence, groups: Sequence[ResultGroup]) -> Iterator[tidy.Row]:
    """A row a variant and a score in each setting, then those without one."""
    for group in groups:
        for result in group.results:
            about = {"variant": result.variant, "computes": result.computes}
            took = {**tidy.flat({"step_s": result.step_s}), **_ends("ratio", result.step)}
            more: tidy.Row = {}
            if result.memory:
                more |= {"memory": result.memory, "beaten_by": ", ".join(result.beaten_by)}
            for words, x in result.more.items():
                name = words.replace(" ", "_")
                more |= _ends(name, x) if isinstance(x, QualityFigure) else {name: x}
            for name in result.scores or [""]:
                at = {**about, "setting": group.setting, "score": name}
                score = _ends("value", result.scores.get(name))
                yield {**at, **score, **took, **more}
    shown = {result.variant for group in groups for result in group.results}
    for row in evidence.rows:
        if row["variant"] not in shown:
            names = ("variant", "computes", "status", "reason", "remedy")
            yield {name: row.get(name, "") for name in names}


def _ends(name: str, figure: QualityFigure | None) -> tidy.Row:
    """Three columns, with six digits."""
    ends = (figure.value, figure.low, figure.high) if figure else (None,) * 3
    names = (name, f"low_{name}", f"high_{name}")
    return {n: x if x is None else float(f"{x:.6g}") for n, x in zip(names, ends, strict=True)}


WIDE, HIGH = 360.0, 300.0
"""Points: of a panel."""
LEFT, RIGHT, ABOVE, BELOW = 52.0, 122.0, 52.0, 32.0
NAMES = 22
NEAREST = 1e-4
"""One minus a score: what is nearer to 1 lies at the top edge."""
TICKS = (0.9999, 0.999, 0.99, 0.95, 0.9, 0.8, 0.6, 0.4, 0.0)
RATIOS = (0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)


@dataclass(frozen=True)
class Panel:
    """A setting: its score against the time of a step, or against the memory of a cache."""

    group: ResultGroup
    memory: bool

    def across(self, result: Result) -> tuple[float, float, float] | None:
        """The time or the memory, over the baseline's, and the ends of its interval."""
        if self.memory:
            return (result.memory,) * 3 if result.memory else None
        return result.step.three if result.step else None

    @property
    def results(self) -> list[Result]:
        """Those that have both."""
        return [result for result in self.group.judged() if self.across(result)]

    @property
    def label(self) -> str:
        """Of the horizontal axis."""
        what = "bytes of the cache" if self.memory else "step time"
        return f"{what} over {self.group.baseline}'s (less is better)"


def draw(evidence: Evidence, groups: Sequence[ResultGroup]) -> Plot | None:
    """A panel a setting, or two: score × time, score × memory; None where nothing has both."""
    every = [Panel(group, memory) for group in groups for memory in (False, True)]
    panels = [panel for panel in every if panel.results]
    if not panels:
        return None
    wide = LEFT / 2 + WIDE * len(panels) + RIGHT
    axes_named = "quality × time"
    if any(panel.memory for panel in panels):
        axes_named += ", quality × memory"
    title = f"What a variant costs a model: {axes_named}"
    with sheet(wide / 72, (BELOW + HIGH + ABOVE) / 72) as figure:
        heading(figure, title, evidence.made["machine"]["name"])
        looks = style.looks([result for panel in panels for result in panel.results])
        scores = [r.scores[p.group.score].value for p in panels for r in p.results]
        worst, best = 1.4 * max(0.15, *map(_far, scores)), list[str]()
        for place, panel in enumerate(panels):
            left = LEFT + WIDE * place
            axes = add_axes(figure, (left, BELOW, left + WIDE - LEFT, BELOW + HIGH))
            best += _draw_panel(axes, panel, looks, worst)
        order = sorted(looks.values(), key=lambda look: look.variant not in best)
        style.legend(figure, order[:NAMES])
        words = f"Beaten by none both ways: {', '.join(dict.fromkeys(best))}"
        return finish(figure, title, words)


def _draw_panel(
    axes: Axes, panel: Panel, looks: Mapping[str, style.VariantLook], worst: float
) -> list[str]:
    """The points with both intervals; the variants that none beats both ways."""
    score = panel.group.score
    places = {r.variant: ends for r in panel.results if (ends := panel.across(r))}
    far = {r.variant: 1 - r.scores[score].value for r in panel.results}
    front = frontier({name: (x, far[name]) for name, (x, _, _) in places.items()})
    xs = style.limits([1.0, *(x for ends in places.values() for x in ends)], least=1.5)
    _draw_axes(axes, panel, xs, worst)
    for result in panel.results:
        x, low, high = places[result.variant]
        y, below, above = map(_far, result.scores[score].three)
        leads = result.variant in front
        more: dict[str, Any] = {"alpha": 1.0 if leads else 0.75, "zorder": 3}
        more |= looks[result.variant].marks(5.5 if leads else 4.5)
        across, up = [[x - low], [high - x]], [[y - above], [below - y]]
        axes.errorbar([x], [y], up, across, elinewidth=0.9, **more)
    return front


def _far(score: float) -> float:
    return max(NEAREST, 1 - score)


def _draw_axes(axes: Axes, panel: Panel, xs: tuple[float, float], worst: float) -> None:
    """With the corner of what is less and good enough."""
    group = panel.group
    top, inside = NEAREST / 1.5, [x for x in RATIOS if xs[0] <= x <= xs[1]]
    axes.set(xscale="log", xlim=xs, yscale="log", ylim=(worst, top))
    axes.set_xticks(inside, [f"{x:g}" for x in inside])
    ticks = [x for x in TICKS if 1 - x <= worst]
    axes.set_yticks([1 - x for x in ticks], [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.set_title(group.setting, loc="left", fontsize=8)
    axes.set_xlabel(panel.label, labelpad=1, fontsize=8)
    axes.set_ylabel(group.score, labelpad=2, fontsize=8)
    axes.fill_between([xs[0], 1.0], 1 - group.level, top, color=GRID, alpha=0.45, linewidth=0)
    axes.axvline(1.0, color=FAINT, linewidth=0.9)
