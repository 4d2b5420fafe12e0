"""The page: one file that needs no other, made from its template, its style and its script.

It has rows of a table, cards of the answer, and, packed as one word, the records behind them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.ranking import MARGIN
from attnbench.answer.standings import Stretch, closeness
from attnbench.core import format
from attnbench.features.report.contents import Contents
from attnbench.features.report.facts import (
    AXES,
    PageCell,
    axes_of,
    cells_of,
    drawing,
    lengths_of,
    packed,
    place,
)
from attnbench.report.figures.style import Look
from attnbench.report.scenes import ReportRun, Scene
from attnbench.report.sentences import beside, distinct_words, headlines, shared_words, standing_at
from attnbench.report.tables import Table, columns, to_html

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup


HERE = Path(__file__).parent
MOST = 2500
"""Rows of the table."""


def render(contents: Contents) -> str:
    """The whole page."""
    cells = cells_of(contents)
    by_record = {id(cell.record): cell for cell in cells}
    regimes, lines = (
        cards(contents.scenes, contents.looks, by_record),
        verdicts(contents, by_record),
    )
    rows = sorted(cells, key=place)[:MOST]
    answers = [row for card in regimes for row in card["rows"]]
    answers += [row for _, of_scene in lines for row in of_scene]
    linked = [cell for row in answers for cell in (*row["tied"], row["cell"]) if cell]
    leaders = {name for scene in contents.scenes for s in scene.standings for name in s.leaders}
    margins = sorted(round(run.margin, 3) for run in contents.runs)
    lengths = lengths_of(contents.scenes)
    by_length = {n: headlines(contents.scenes, len(contents.runs) > 1, n) for n in lengths}
    facts = drawing(contents, {key: cell.number for key, cell in by_record.items()})
    sections = _sections(facts)
    return _template().render(
        c=contents,
        cards=regimes,
        verdicts=lines,
        apart=distinct_words(contents.scenes),
        shared=shared_words(contents.scenes),
        cells=rows,
        all_cells=len(cells),
        sections=[name for name, there in sections.items() if there],
        absent=[why for name, why in WHY_NOT.items() if not sections[name]],
        closest=[(run, _closest(run, contents)) for run in contents.runs],
        facts=facts,
        lengths=lengths,
        choices=_choices(contents),
        blob=packed(contents, list({c.number: c for c in chain(linked, rows)}.values())),
        headlines={
            n: [(*_in_two(line, leaders), scene) for line, scene in some.items()]
            for n, some in (by_length or {0: dict.fromkeys(contents.headlines, -1)}).items()
        },
        missing=_missing(contents),
        margin=" to ".join(dict.fromkeys(map(format.percent, (margins[0], margins[-1])))),
        floor=format.percent(MARGIN),
        untimed=[scene for scene in contents.scenes if not scene.timed],
    )


WHY_NOT = {
    "memory": "no memory was measured",
    "energy": "no energy was measured; 'attnbench run --energy' does it",
}
"""The reason why the page has no figure of a section."""


def _sections(facts: Mapping[str, Any]) -> dict[str, bool]:
    """The sections of figures, and for each whether there is anything to draw."""
    scenes = facts["scenes"]
    cells = [dict(zip(facts["fields"], row, strict=True)) for row in facts["timed"]]
    return {
        "scaling": bool(cells),
        "tradeoffs": any(cell["peak"] or cell["distance"] for cell in cells),
        "memory": any(cell["peak"] for cell in cells),
        "energy": any(cell["joules"] for cell in cells),
        "map": any("use" in a for scene in scenes.values() for a in scene["answers"].values()),
    }


def templates(**how: Any) -> Environment:
    """The environment of the templates beside this module."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    more: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, **how}
    return Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, **more)


@cache
def _template() -> Template:
    from markupsafe import Markup

    environment = templates(autoescape=True)
    environment.filters["table"] = lambda table: Markup(to_html(table))
    environment.filters["text_of"] = lambda name: Markup((HERE / name).read_text("utf-8"))
    for function in (format.ms, format.mib, format.figures, format.ratio):
        environment.filters[function.__name__] = function
    return environment.get_template("page.html")


def _in_two(line: str, names: set[str]) -> tuple[Markup, Markup]:
    """The first sentence, with the recommended variants bold, and what follows it."""
    first, point, rest = line.partition(". ")
    advice, colon, why = first.partition(": ")
    bold = emphasised(advice, names) + emphasised(colon + why + point.strip(), set())
    return bold, emphasised(rest, set())


def emphasised(text: str, names: set[str]) -> Markup:
    """The text, escaped, the names in it bold; an interval stays on one line."""
    from markupsafe import Markup, escape

    text = re.sub(r"\[([\d.,]+), ([\d.,]+)\]", "[\\1,\N{NO-BREAK SPACE}\\2]", text)
    if not names:
        return escape(text)
    longest = sorted(map(re.escape, names), key=lambda name: (-len(name), name))
    parts = re.split(rf"(?<![\w.?=-])({'|'.join(longest)})(?![\w?=-]|\.\w)", text)
    return Markup("").join(
        Markup("<b>{}</b>").format(part) if n % 2 else escape(part) for n, part in enumerate(parts)
    )


def _choices(contents: Contents) -> Iterator[tuple[str, list[str]]]:
    """Each axis on which regimes differ, with its values."""
    axes = [axes_of(scene) for scene in contents.scenes]
    values = ((axis, list(dict.fromkeys(each[axis] for each in axes))) for axis in AXES)
    return (choice for choice in values if len(choice[1]) > 1)


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


def cards(
    scenes: Sequence[Scene], looks: Mapping[str, Look], by_record: Mapping[int, PageCell]
) -> list[dict[str, Any]]:
    """For each regime in which anything has a time its rows, the longest lengths first.

    They are what readers ask about. Beside them ``untimed``: how many of its cells have no time.
    """
    return [
        {
            "scene": scene,
            "rows": [_row(scene, stretch, looks, by_record) for stretch in scene.stretches[::-1]],
            "untimed": sum(r.time is None for r in scene.regime.records),
        }
        for scene in scenes
        if scene.timed
    ]


def verdicts(
    contents: Contents, by_record: Mapping[int, PageCell]
) -> list[tuple[Scene, list[dict[str, Any]]]]:
    """For each regime that has a time a line at each length; ``open``: it is shown first."""
    verdicts = []
    for scene in contents.scenes:
        first = standing_at(scene, contents.length)
        lines = [
            {**_row(scene, Stretch((s,)), contents.looks, by_record), "open": s is first}
            for s in scene.standings
            if s.timed
        ]
        verdicts += [(scene, lines)] if lines else []
    return verdicts


def _row(
    scene: Scene,
    stretch: Stretch,
    looks: Mapping[str, Look],
    by_record: Mapping[int, PageCell],
) -> dict[str, Any]:
    """One stretch of lengths: ``winner`` is None where nothing exact has a time.

    ``badges``, how sure it is at all lengths: marks (clear, tie, only, doubt) with their words.
    """
    last, answer, sentence = stretch.last, stretch.last.answer, beside(stretch.last)
    records = scene.regime.cells[last.length]
    leaders = [by_record[id(records[name])] for name in last.leaders]
    doubts, more = stretch.doubts, len(stretch.doubts) - DOUBTS
    badges, ahead, memory = list[tuple[str, str]](), "", ""
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
        if answer.memory_bytes is not None:
            memory = format.size(answer.memory_bytes)
            if answer.frugal:  # a variant that needs much less
                name, least, slower = answer.frugal
                memory += f" ({name}: {format.size(least)} at {format.ratio(slower)} the time)"
    return {
        "stretch": stretch,
        "winner": looks[answer.winner] if answer else None,
        "cell": leaders[0] if leaders else None,
        "tied": leaders[1 : TIES + 1],
        "more": max(0, len(leaders) - 1 - TIES),
        "badges": badges,
        "lead": ahead,
        "memory": memory,
        "peak": format.size(answer.memory_bytes) if answer and answer.memory_bytes else "",
        "doubts": "; ".join(doubts[:DOUBTS]) + (f"; {more} more" if more > 0 else ""),
        "beside": sentence,
        "other": looks[sentence.faster.variant] if sentence and sentence.faster else None,
    }
