"""What a notebook shows: ``attnbench.show(…)``, answers and figures; and where a verb is."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Any

from attnbench.command.arguments import BadWord
from attnbench.command.progress import Now, draw_with
from attnbench.core.disk import write_whole
from attnbench.core.evidence import selfcheck_said
from attnbench.features.report.build import baseline
from attnbench.notebook import lines
from attnbench.notebook.arguments import several
from attnbench.notebook.frames import behind
from attnbench.report import tables
from attnbench.report.figures.sheet import Plot
from attnbench.report.figures.style import looks
from attnbench.report.scenes import scenes
from attnbench.report.sentences import headlines, missing, sentences, winners

FIGURES = tuple(lines.MEASURES)
REGIMES = 8
"""The first that have times have figures."""
EVERY_S = 1.0
"""A line of progress is written anew."""


class Picture(Plot):
    """One figure: shown as the last value of a cell, written with ``save``."""

    def save(self, path: str | Path) -> None:
        """Into a file, .svg or .png; raises BadWord for other names."""
        kinds = {".svg": self.svg.encode(), ".png": self.png}
        if (suffix := Path(path).suffix) not in kinds:
            raise BadWord(f"{path}: a figure is written as .svg or .png, not as {suffix!r}")
        write_whole(Path(path), kinds[suffix], sync=False)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.title}. {self.description}>"

    def _repr_html_(self) -> str:
        """As an image, so that nothing in it affects the rest of the page."""
        data = base64.b64encode(self.svg.encode()).decode()
        words = escape(f"{self.title}. {self.description}")
        source = f"data:image/svg+xml;base64,{data}"
        return f'<img alt="{words}" src="{source}" style="max-width:100%;margin:4pt">'


@dataclass(frozen=True)
class Shown:
    """Answers in sentences, and figures: shown as the last value of a cell."""

    headlines: Sequence[str]
    """One or two sentences that answer, for the longest lengths."""
    answers: Sequence[str]
    """For each stretch of lengths of each regime: what to use, by how much."""
    winners: tables.Table
    """What to use: a row a regime, a column a length."""
    figures: Sequence[Picture]
    missing: Sequence[str]
    notes: Sequence[str] = ()
    """Problems of a run, and the result of the self-check."""

    def __repr__(self) -> str:
        lines = [*self.headlines, *(f"- {line}" for line in self.answers)]
        lines += [f"not measured: {line}" for line in self.missing]
        names = ", ".join(picture.name for picture in self.figures) or "none"
        return "\n".join([*lines, *self.notes, f"figures: {names}"])

    def _repr_html_(self) -> str:
        heads = "".join(f"<p><b>{escape(line)}</b></p>" for line in self.headlines)
        pictures = "".join(picture._repr_html_() for picture in self.figures)
        title = f"Not measured, by reason: {len(self.missing)}"
        untimed = f"<details><summary>{title}</summary>{_listed(self.missing)}</details>"
        return (
            f"<div>{heads}{tables.to_html(self.winners)}<div>{pictures}</div>"
            f"{_listed(self.answers)}"
            f"{untimed if self.missing else ''}{_listed(self.notes)}</div>"
        )


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
    names = several("figures", figures) if figures else ()
    if unknown := [name for name in names if name not in FIGURES]:
        raise BadWord(f"there is no figure {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    runs = behind(what)
    all_scenes = scenes(runs)
    timed = [scene for scene in all_scenes if scene.timed]
    several_runs = len(runs) > 1
    look, base = looks(record for run in runs for record in run.records), baseline(all_scenes)
    plots = [lines.draw(scene, look, base, name) for name in names for scene in timed[:REGIMES]]
    of = {run.name: f"{run.name}: " if several_runs else "" for run in runs}
    notes = []
    for run in runs:
        notes += [of[run.name] + note for note in (*run.notes, selfcheck_said(run.header))]
    return Shown(
        list(headlines(all_scenes, several_runs=several_runs)),
        [
            f"{of[scene.run.name]}{scene.regime} · {line}"
            for scene in all_scenes
            for line in sentences(scene)
        ],
        winners(timed),
        [Picture(**vars(each)) for each in plots if each],
        [
            f"{', '.join(each.variants)} ({each.cells}): {each.reason}"
            for each in missing(all_scenes)
        ],
        notes,
    )


class CellOutput(io.TextIOBase):
    """Standard error while a verb works in a notebook: what it says, and below that one line of
    progress, all in one output of the cell, which is written anew.
    """

    def __init__(self) -> None:
        self._lines, self._begun = list[str](), ""
        self._now: Now | None = None
        self._lock, self._over = RLock(), Event()
        self._output: Any = None

    def write(self, text: str) -> int:
        """Show the lines that are whole."""
        with self._lock:
            *whole, self._begun = (self._begun + text).split("\n")
            self._lines += whole
        if whole:
            self.refresh()
        return len(text)

    def draw(self, now: Now) -> CellOutput:
        """The progress that is shown from now on."""
        self._now = now
        return self

    def start(self) -> None:
        """Write the line anew each second, for the time left becomes less."""
        self._over = over = Event()
        self.refresh()

        def beat() -> None:
            while not over.wait(EVERY_S):
                self.refresh()

        Thread(target=beat, daemon=True).start()

    def stop(self) -> None:
        """Take the line away; what was said stays."""
        self._over.set()
        self._now = None
        self.refresh()

    def say(self, sentence: str, style: str) -> None:
        """Put a sentence above the line."""
        self.write(f"{sentence}\n")

    def refresh(self) -> None:
        """Show what is so now."""
        with self._lock:
            if self._output is None:
                show_in_cell = import_module("IPython.display").display
                self._output = show_in_cell(self, display_id=True)
            else:
                self._output.update(self)

    def __repr__(self) -> str:
        now = self._now
        return "\n".join([*self._lines, *([now()[1]] if now else [])])

    def _repr_html_(self) -> str:
        lines = "".join(f"<div>{escape(line)}</div>" for line in self._lines)
        if (now := self._now) is None:
            return lines
        share, words = now()
        return f'{lines}<div><progress value="{share:.3f}"></progress> {escape(words)}</div>'


@contextmanager
def cell_output(*, quiet: bool) -> Iterator[None]:
    """What a verb says on the way is dropped, or in a notebook shown in one output of the cell."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if quiet:
        with redirect_stderr(io.StringIO()):
            yield
    elif getattr(shell, "kernel", None) is not None:
        output = CellOutput()
        with redirect_stderr(output), draw_with(output.draw):
            yield
    else:
        yield


def _listed(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""
