"""``attnbench.show(…)``: the answers of what was measured, for the end of a notebook's cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from attnbench.core.evidence import selfcheck_said
from attnbench.notebook.frames import behind
from attnbench.report import tables
from attnbench.report.scenes import scenes
from attnbench.report.sentences import headlines, missing, sentences, winners


@dataclass(frozen=True)
class Shown:
    """Answers in sentences and a table: shown as the last value of a cell."""

    headlines: Sequence[str]
    """One or two sentences that answer, for the longest lengths."""
    answers: Sequence[str]
    """For each stretch of lengths of each regime: what to use, by how much."""
    winners: tables.Table
    """What to use: a row a regime, a column a length."""
    missing: Sequence[str]
    notes: Sequence[str] = ()
    """Problems of a run, and the result of the self-check."""

    def __repr__(self) -> str:
        untimed = [f"not measured: {line}" for line in self.missing]
        return "\n".join([*self.headlines, *self.answers, *untimed, *self.notes])

    def _repr_html_(self) -> str:
        heads = "".join(f"<p><b>{escape(line)}</b></p>" for line in self.headlines)
        title = f"Not measured, by reason: {len(self.missing)}"
        untimed = f"<details><summary>{title}</summary>{_listed(self.missing)}</details>"
        return (
            f"{heads}{tables.to_html(self.winners)}{_listed(self.answers)}"
            f"{untimed if self.missing else ''}{_listed(self.notes)}"
        )


def _listed(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def show(what: Any = "results") -> Shown:
    """The answers of what was measured, for the end of a notebook's cell.

    ``what``: a DataFrame of ``run`` or ``load``, or rows of one, which are then all that is looked
    at; a run's folder; several folders. In Python it has ``answers``, ``winners``, ``missing``;
    the whole report, with figures, is ``attnbench report RUN``. Raises ``CantBeDone`` for what is
    no run.

    >>> attnbench.show(df)                                                # doctest: +SKIP
    >>> attnbench.show(df[df["phase"] == "train"])                        # doctest: +SKIP
    >>> df.pivot_table("ms", "seq", "variant").plot(loglog=True)          # doctest: +SKIP
    """
    runs = behind(what)
    all_scenes = scenes(runs)
    of = {run.name: f"{run.name}: " if len(runs) > 1 else "" for run in runs}
    answers = [
        f"{of[scene.run.name]}{scene.regime} · {line}"
        for scene in all_scenes
        for line in sentences(scene)
    ]
    untimed = (f"{', '.join(x.variants)} ({x.cells}): {x.reason}" for x in missing(all_scenes))
    return Shown(
        list(map(str, headlines(all_scenes, several_runs=len(runs) > 1))),
        answers,
        winners([scene for scene in all_scenes if scene.timed]),
        list(untimed),
        [of[r.name] + note for r in runs for note in (*r.notes, selfcheck_said(r.header))],
    )
