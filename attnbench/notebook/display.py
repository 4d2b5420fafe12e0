"""``attnbench.show(…)``: answers and figures, for the end of a notebook's cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from attnbench.core.evidence import selfcheck_said
from attnbench.notebook import lines
from attnbench.notebook.frames import behind
from attnbench.report import tables
from attnbench.report.figures.sheet import Plot
from attnbench.report.figures.style import looks
from attnbench.report.scenes import scenes
from attnbench.report.sentences import headlines, missing, sentences, winners
from impls.errors import CantBeDone

REGIMES = 8
"""The first that have times have figures."""


@dataclass(frozen=True)
class Shown:
    """Answers in sentences, and figures: shown as the last value of a cell."""

    headlines: Sequence[str]
    """One or two sentences that answer, for the longest lengths."""
    answers: Sequence[str]
    """For each stretch of lengths of each regime: what to use, by how much."""
    winners: tables.Table
    """What to use: a row a regime, a column a length."""
    figures: Sequence[Plot]
    missing: Sequence[str]
    notes: Sequence[str] = ()
    """Problems of a run, and the result of the self-check."""

    def __repr__(self) -> str:
        untimed = [f"not measured: {line}" for line in self.missing]
        return "\n".join([*self.headlines, *self.answers, *untimed, *self.notes])

    def _repr_html_(self) -> str:
        heads = "".join(f"<p><b>{escape(line)}</b></p>" for line in self.headlines)
        pictures = "".join(figure._repr_html_() for figure in self.figures)
        title = f"Not measured, by reason: {len(self.missing)}"
        untimed = f"<details><summary>{title}</summary>{_listed(self.missing)}</details>"
        return (
            f"{heads}{tables.to_html(self.winners)}{pictures}{_listed(self.answers)}"
            f"{untimed if self.missing else ''}{_listed(self.notes)}"
        )


def _listed(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def show(what: Any = "results", figures: str | Iterable[str] = "time") -> Shown:
    """The answers and figures of what was measured, for the end of a notebook's cell.

    ``what``: a DataFrame of ``run`` or ``load``, or rows of one, which are then all that is looked
    at; a run's folder; several folders. ``figures``: of time, memory and energy. In Python it has
    ``answers``, ``winners``, ``figures``, ``missing``; the whole report is ``attnbench report
    RUN``. Raises ``CantBeDone`` for what is no run or figure.

    >>> attnbench.show(df)                                                # doctest: +SKIP
    >>> attnbench.show(df[df["phase"] == "train"], "memory")              # doctest: +SKIP
    >>> attnbench.show("results/box/20261122-015809").figures[0].save("time.svg")  # doctest: +SKIP
    """
    names = [figures] if isinstance(figures, str) else list(figures)
    if unknown := [name for name in names if name not in lines.MEASURES]:
        there = ", ".join(lines.MEASURES)
        raise CantBeDone(f"there is no figure {', '.join(unknown)}; there are {there}")
    runs = behind(what)
    all_scenes = scenes(runs)
    timed = [scene for scene in all_scenes if scene.timed]
    look = looks(record for run in runs for record in run.records)
    plots = (lines.draw(scene, look, name) for name in names for scene in timed[:REGIMES])
    of = {run.name: f"{run.name}: " if len(runs) > 1 else "" for run in runs}
    answers = [
        f"{of[scene.run.name]}{scene.regime} · {line}"
        for scene in all_scenes
        for line in sentences(scene)
    ]
    untimed = (f"{', '.join(x.variants)} ({x.cells}): {x.reason}" for x in missing(all_scenes))
    return Shown(
        list(headlines(all_scenes, several_runs=len(runs) > 1)),
        answers,
        winners(timed),
        [plot for plot in plots if plot],
        list(untimed),
        [of[r.name] + note for r in runs for note in (*r.notes, selfcheck_said(r.header))],
    )
