"""A report on disk: its page, one file that needs no other, and a summary and the data beside it.

It has rows of a table, cards of the answer, and, packed as one word, the records behind them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.layers import together
from attnbench.answer.ranking import MARGIN
from attnbench.answer.standings import Standing, closeness
from attnbench.core import format
from attnbench.core.disk import StoreError, writable_folder, write_whole
from attnbench.features.report.contents import (
    AXES,
    Contents,
    PageCell,
    axes_of,
    cells_of,
    contents_of,
    drawing,
    lengths_of,
    pack,
    place,
)
from attnbench.report.scenes import ReportRun, Scene, gather
from attnbench.report.sentences import (
    advice,
    beside,
    distinct_words,
    headlines,
    layer_tables,
    shared_words,
    standing_at,
)
from attnbench.report.tables import (
    BOLD,
    Styled,
    Table,
    columns,
    markdown_text,
    to_html,
    to_markdown,
)
from attnbench.report.tidy import csv_of, measurements

if TYPE_CHECKING:
    from jinja2 import Environment, Template


HERE = Path(__file__).parent
MOST = 2500
"""Rows of the table."""


def render(contents: Contents) -> str:
    """The whole page."""
    cells, scenes, several = cells_of(contents), contents.scenes, len(contents.runs) > 1
    by_record = {id(cell.record): cell for cell in cells}
    answers = [
        (scene, [_row(scene, s, contents, by_record) for s in scene.standings if s.timed])
        for scene in scenes
        if scene.timed
    ]
    rows = sorted(cells, key=place)[:MOST]
    linked = [row for _, some in answers for row in some]
    shown = [cell for row in linked for cell in (*row["tied"], row["cell"]) if cell]
    timed = [cell.record for cell in cells if cell.record.time]
    sections = {
        "scaling": bool(timed),
        "tradeoffs": any(r.memory or r.distance for r in timed),
        "memory": any(r.memory for r in timed),
        "energy": any(r.energy and r.energy.joules for r in timed),
        "map": any(s.answer for scene in scenes for s in scene.standings),
    }
    lengths = lengths_of(scenes)
    axes = [axes_of(scene) for scene in scenes]
    choices = {axis: list(dict.fromkeys(each[axis] for each in axes)) for axis in AXES}
    margins = sorted(round(run.margin, 3) for run in contents.runs)
    return _template().render(
        c=contents,
        answers=answers,
        apart=distinct_words(scenes),
        shared=shared_words(scenes),
        cells=rows,
        all_cells=len(cells),
        sections=[name for name, there in sections.items() if there],
        closest=[(run, _closest(run, contents)) for run in contents.runs],
        facts=drawing(contents, {key: cell.number for key, cell in by_record.items()}),
        lengths=lengths,
        choices=[choice for choice in choices.items() if len(choice[1]) > 1],
        blob=pack(contents, list({c.number: c for c in chain(shown, rows)}.values())),
        headlines={n: headlines(scenes, several, n) for n in lengths} or {0: contents.headlines},
        missing=_missing(contents),
        margin=" to ".join(dict.fromkeys(map(format.percent, (margins[0], margins[-1])))),
        floor=format.percent(MARGIN),
        untimed=[scene for scene in scenes if not scene.timed],
    )


def templates(**how: Any) -> Environment:
    """The environment of the templates beside this module."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    more: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, **how}
    environment = Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, **more)
    environment.filters |= {"layer_tables": layer_tables, "together": together}
    return environment


@cache
def _template() -> Template:
    from markupsafe import Markup

    environment = templates(autoescape=True)
    environment.filters["table"] = lambda table: Markup(to_html(table))
    environment.filters["text_of"] = lambda name: Markup((HERE / name).read_text("utf-8"))
    for function in (format.ms, format.mib, format.figures, format.ratio):
        environment.filters[function.__name__] = function
    return environment.get_template("page.html")


CLOSEST = 12
"""Rows of the table of what stays near the best."""


def _closest(run: ReportRun, contents: Contents) -> Table | None:
    """The share of problems on which each exact variant of a run stays near the best."""
    ranked = closeness(s.regime for s in contents.scenes if s.run is run)
    if not ranked:
        return None
    factors = (1.05, 1.25, 1.5, 2.0)
    heads = [f"within {factor:g}×" for factor in factors]
    rows = [
        (of.variant, *(format.percent(of.share(x)) for x in (1.0, *factors)), format.ratio(of.mean))
        for of in ranked[:CLOSEST]
    ]
    right = ["fastest", *heads, "mean"]
    more = f"; {len(ranked) - CLOSEST} more in data.csv" if len(ranked) > CLOSEST else ""
    on = f" on {run.name}" if len(contents.runs) > 1 else ""
    title = f"Share of {format.counted(ranked[0].problems, 'problem')}{on}{more}"
    return Table(title, columns("variant", *right, right=right), rows)


def _missing(contents: Contents) -> Table:
    rows = [
        (
            m.status.replace("_", " "),
            f"{m.reason}\n{m.remedy}" if m.remedy else m.reason,
            ", ".join(m.variants),
            "; ".join(m.where),
            m.cells,
        )
        for m in contents.missing
    ]
    heads = columns("what happened", "why", "to which", "where", "how many", right=["how many"])
    return Table("Reasons", heads, rows)


TIES, DOUBTS = 3, 3
"""Ties and doubts of a line that are named; the rest is counted."""


def _row(
    scene: Scene, standing: Standing, contents: Contents, by_record: Mapping[int, PageCell]
) -> dict[str, Any]:
    """A regime's answer at a length: ``winner`` is None where nothing exact has a time.

    ``badges``, how sure it is: marks (clear, tie, only, doubt) with their words.
    """
    answer, sentence, looks = standing.answer, beside(standing), contents.looks
    records = scene.regime.cells[standing.length]
    leaders = [by_record[id(records[name])] for name in standing.leaders]
    doubts = answer.flags if answer else ()
    more = len(doubts) - DOUBTS
    badges, ahead, frugal = list[tuple[str, str]](), "", ""
    if answer:
        if answer.equal:
            badges = [("tie", f"tie of {len(answer.leaders)}")]
            ahead = "nothing exact is clearly slower"
        elif answer.next is None:
            badges, ahead = [("only", "the only one")], "no other exact variant measured"
        if doubts:
            badges.append(("doubt", "noisy"))
        badges = badges or [("clear", "clear")]
        if answer.next is not None:
            ahead = f"{answer.lead} faster than the next, {answer.next}"
        if answer.frugal:  # a variant that needs much less
            name, least, slower = answer.frugal
            frugal = f"{name} needs {format.size(least)}, at {format.ratio(slower)} the time"
    return {
        "length": standing.length,
        "open": standing is standing_at(scene, contents.length),
        "answer": answer,
        "winner": looks[answer.winner] if answer else None,
        "cell": leaders[0] if leaders else None,
        "tied": leaders[1 : TIES + 1],
        "more": max(0, len(leaders) - 1 - TIES),
        "badges": badges,
        "lead": ahead,
        "frugal": frugal,
        "peak": format.size(answer.memory_bytes) if answer and answer.memory_bytes else "",
        "doubts": "; ".join(doubts[:DOUBTS]) + (f"; {more} more" if more > 0 else ""),
        "beside": sentence,
        "other": looks[sentence.faster.variant] if sentence and sentence.faster else None,
    }


# ---- the files ----------------------------------------------------------------------------------

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
COUNTS = {"REGIMES": 24, "REASONS": 30, "NAMES": 8}
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
    environment.filters |= {
        "winners": lambda scenes: Markup(to_markdown(winners(scenes))),
        "rows_of": lambda table: Markup(to_markdown(replace(table, title=""))),
        "sentences": sentences,
        "first_few": format.first_few,
        "counted": format.counted,
    }
    commands = dict.fromkeys(command for run in runs for command in run.commands)
    text = environment.get_template("summary.md").render(
        c=contents,
        several=several,
        on=lambda run: Markup(f" on {markdown_text(run.name)}" if several else ""),
        runs=[(run, timed[run.number]) for run in runs],
        commands=[Markup(" ".join(command.split())) for command in commands],
        **COUNTS,
    )
    text = re.sub(r"\n{3,}", "\n\n", text)
    return text if len(text) <= LIMIT else text[: text.rindex("\n", 0, LIMIT - len(CUT))] + CUT


TIED = 4
"""Names of a tie in a cell."""


def winners(scenes: Sequence[Scene]) -> Table:
    """The variants to use: a row a regime, a column a length; a cell without a winner says why."""
    lengths = sorted({length for scene in scenes for length in scene.regime.lengths})
    names = distinct_words(scenes)
    rows = []
    for scene in scenes:
        row: list[Any] = [names[scene.number]]
        for standing in ({s.length: s for s in scene.standings}.get(n) for n in lengths):
            if standing is None or standing.answer is None:
                row.append("nothing exact has a time" if standing else "not asked")
                continue
            answer, leaders = standing.answer, standing.leaders
            doubt = " (noisy)" if answer.flags else ""
            if answer.equal:
                some = ", ".join([*leaders[:TIED], *["…"] * (len(leaders) > TIED)])
                row.append(f"tie of {len(leaders)}: {some}{doubt}")
            else:
                row.append(Styled(answer.winner, BOLD, f"{answer.lead or 'alone'}{doubt}"))
        rows.append(row)
    return Table("", columns("regime", *(f"{n:,}" for n in lengths)), rows)


def sentences(scene: Scene) -> Iterator[str]:
    """Its answer at the longest length that most variants reached, what is beside that, and where
    the lead changes.
    """
    if (longest := standing_at(scene, None)) is not None:
        yield f"at {longest.length:,}: {advice(longest.answer)}"
        if longest.answer is not None:
            yield f"at {longest.length:,}: {beside(longest)}"
    if scene.crossings:
        yield "; ".join(map(str, scene.crossings))


# ---- the data ------------------------------------------------------------------------------------


def data(runs: Sequence[ReportRun]) -> str:
    """All measurements, a row each, with the line of each in its run's records."""
    rows = [
        {"run": run.header.get("run") or run.path.name, "machine": run.machine, "line": line} | row
        for run in runs
        for line, row in zip(run.lines, measurements(run), strict=True)
    ]
    return csv_of(rows)
