"""A report on disk: the page, the summary and the data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnbench.core.disk import StoreError, writable_folder, write_whole
from attnbench.features.report.contents import Contents, contents_of
from attnbench.features.report.page import render, templates
from attnbench.report.scenes import ReportRun, gather
from attnbench.report.sentences import sentences, winners
from attnbench.report.tables import csv_of, markdown_text, to_markdown
from attnbench.report.tidy import measurements, names_of

INDEX = "index.html"
ERRORS = "backslashreplace"  # of a path that is not UTF-8


@dataclass(frozen=True)
class Report:
    """A report that was written."""

    index: Path
    files: Sequence[Path]
    contents: Contents


def make(runs: Sequence[Path], out: Path) -> Report:
    """A report of these runs in a folder; raises StoreError where there is nothing to report, or
    nothing can be written.
    """
    return report_on(gather(runs), out)


def report_on(runs: Sequence[ReportRun], out: Path) -> Report:
    """The same, of runs that were read. What has the same name is replaced, each whole or not.

    A report can be made again, so the disk need not be waited for.
    """
    try:
        writable_folder(out)  # before the work: where nothing can be written, it need not be done
        contents = contents_of(runs, out)
        texts = {INDEX: render(contents), "summary.md": summary(contents), "data.csv": data(runs)}
        for name, text in reversed(texts.items()):  # the page last: what it leads to is there then
            write_whole(out / name, text.encode(errors=ERRORS), sync=False)
    except OSError as error:
        raise StoreError(
            f"can't write the report to {out}: {error.strerror}; give another folder with --out"
        ) from None
    return Report(out / INDEX, [out / name for name in texts], contents)


# ---- the summary ---------------------------------------------------------------------------------

LIMIT = 60_000
"""Characters: a comment may hold 65,536."""
MOST = {"REGIMES": 24, "REASONS": 30, "VERDICTS": 20, "NAMES": 8}
CUT = "\n\n*… cut here: the rest is in index.html.*\n"


def summary(contents: Contents) -> str:
    """Answers, winners, what was not measured, and what may be believed: ``summary.md``, filled.

    Whatever is put into it is text; only what is of :class:`Markup` is Markdown.
    """
    from markupsafe import Markup

    runs, several = contents.runs, len(contents.runs) > 1
    timed = {run.number: [s for s in contents.scenes if s.run is run and s.timed] for run in runs}
    environment = templates(
        autoescape=False,
        finalize=lambda v: v if isinstance(v, Markup) else markdown_text(str(v)),
    )
    environment.filters.update(
        winners=lambda scenes: Markup(to_markdown(winners(scenes))), sentences=sentences
    )
    commands = dict.fromkeys(command for about in contents.abouts for command in about.commands)
    text = environment.get_template("summary.md").render(
        c=contents,
        several=several,
        on=lambda run: Markup(f" on {markdown_text(run.name)}" if several else ""),
        runs=[(a.run, a, timed[a.run.number]) for a in contents.abouts],
        commands=[Markup(" ".join(command.split())) for command in commands],
        **MOST,
    )
    text = re.sub(r"\n{3,}", "\n\n", text)
    return text if len(text) <= LIMIT else text[: text.rindex("\n", 0, LIMIT - len(CUT))] + CUT


# ---- the data ------------------------------------------------------------------------------------


def data(runs: Sequence[ReportRun]) -> str:
    """All measurements, a row each, with the line of each in its run's records."""
    rows = [
        {"run": run.header.get("run") or run.path.name, "machine": run.machine, "line": line} | row
        for run in runs
        for line, row in zip(run.lines, measurements(run), strict=True)
    ]
    names = names_of(rows)
    return csv_of([names, *([row.get(name) for name in names] for row in rows)])
