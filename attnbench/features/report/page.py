"""The page: one file that needs no other, made from its template, its style and its script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.compare_runs import RunsComparison
from attnbench.answer.ranking import MARGIN
from attnbench.core import format
from attnbench.features.report.build import SECTIONS
from attnbench.features.report.cells import MOST, cards, cells_of, linked, packed
from attnbench.features.report.contents import Contents, Missing, distinct_words, margins
from attnbench.report.figures import sheet
from attnbench.report.figures.sheet import Drawn
from attnbench.report.figures.style import Look
from attnbench.report.scenes import Scene
from attnbench.report.tables import Table, columns, to_html

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup


HERE = Path(__file__).parent
COMPARED = 400
INTERVAL = re.compile(r"\[([\d.,]+), ([\d.,]+)\]")
AXES = ("run", "phase", "mask", "dtype")


def render(contents: Contents) -> str:
    """The whole page."""
    cells = cells_of(contents)
    shown = cards(contents.scenes, contents.looks, cells)
    scaled = {figure.regime for figure in contents.figures if figure.section == "scaling"}
    rows = sorted(cells, key=lambda cell: cell.order)[:MOST]
    leaders = {name for scene in contents.scenes for s in scene.standings for name in s.leaders}
    families: dict[str, list[Look]] = {}
    for look in contents.looks.values():
        families.setdefault(look.family, []).append(look)
    return _template().render(
        c=contents,
        cards=shown,
        apart=distinct_words(contents.scenes),
        cells=rows,
        all_cells=len(cells),
        figures={name: _groups(contents, name) for name in SECTIONS},
        crossed=any(scene.crossings for scene in contents.scenes if scene.number in scaled),
        colours=_colours(),
        facts=_facts(contents),
        choices=_choices(contents),
        families=families,
        blob=packed(contents, list({c.number: c for c in (*linked(shown), *rows)}.values())),
        headlines=[_in_two(line, leaders) for line in contents.headlines],
        missing=_missing(contents.missing),
        differences=[(run, *_comparison(run)) for run in contents.comparisons],
        margin=margins(contents.runs),
        floor=format.percent(MARGIN),
        untimed=[scene for scene in contents.scenes if not scene.timed],
    )


def templates(**how: Any) -> Environment:
    """What fills the templates beside this module."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    more: dict[str, Any] = {
        "trim_blocks": True,
        "lstrip_blocks": True,
        "undefined": StrictUndefined,
    }
    return Environment(loader=FileSystemLoader(HERE), **more, **how)


@cache
def _template() -> Template:
    from markupsafe import Markup

    made = templates(autoescape=True)
    made.filters["table"] = lambda table: Markup(to_html(table))
    made.filters["text_of"] = lambda name: Markup((HERE / name).read_text("utf-8"))
    for function in (format.ms, format.mib, format.figures, format.ratio, format.nbytes, family):
        made.filters[function.__name__] = function
    return made.get_template("page.html")


def family(look: Look) -> str:
    """The name of its colour: ``dense``, or ``other`` for a family that is not in our list."""
    return look.family if look.family in sheet.FAMILIES else "other"


def _colours() -> Markup:
    """Style rules for the palette, and for the colour of each family."""
    from markupsafe import Markup

    own = "".join(f".f-{name}{{--c:var(--{name})}}" for name in (*sheet.FAMILIES, "other"))
    return Markup(f"{sheet.css()}\n{own}")


Groups = list[tuple[Scene | None, list[Drawn]]]
"""A section's figures, those of one regime together; None for figures of several."""


def _groups(contents: Contents, section: str) -> Groups:
    by_regime: dict[int | None, list[Drawn]] = {}
    for figure in contents.figures:
        if figure.section == section:
            by_regime.setdefault(figure.regime, []).append(figure)
    scenes = {scene.number: scene for scene in contents.scenes}
    if by_regime and all(len(some) == 1 for some in by_regime.values()):
        return [(None, list(chain(*by_regime.values())))]  # whose titles name the regime
    return [(None if n is None else scenes[n], some) for n, some in by_regime.items()]


def _in_two(line: str, names: set[str]) -> tuple[Markup, Markup]:
    """The first sentence, with the recommended variants bold, and what follows it."""
    first, point, rest = line.partition(". ")
    advice, colon, why = first.partition(": ")
    bold = emphasised(advice, names) + emphasised(colon + why + point.strip(), set())
    return bold, emphasised(rest, set())


def emphasised(text: str, names: set[str]) -> Markup:
    """The text, escaped, the names in it bold; an interval stays on one line."""
    from markupsafe import Markup, escape

    text = INTERVAL.sub("[\\1,\N{NO-BREAK SPACE}\\2]", text)
    if not names:
        return escape(text)
    longest = sorted(map(re.escape, names), key=lambda name: (-len(name), name))
    found = re.split(rf"(?<![\w.?=-])({'|'.join(longest)})(?![\w?=-]|\.\w)", text)
    return Markup("").join(
        Markup("<b>{}</b>").format(part) if n % 2 else escape(part) for n, part in enumerate(found)
    )


def _facts(contents: Contents) -> dict[str, Any]:
    """What the script needs: scenes and variants by number, and the light colours."""
    return {
        "scenes": {s.number: {**_axes(s), "lengths": s.regime.lengths} for s in contents.scenes},
        "variants": [[x.variant, x.family, x.computes] for x in contents.looks.values()],
        "light": sheet.LIGHT,
    }


def _axes(scene: Scene) -> dict[str, str]:
    regime = scene.regime
    return dict(zip(AXES, (scene.run.name, regime.phase, regime.mask, regime.dtype), strict=True))


def _choices(contents: Contents) -> Iterator[tuple[str, str, list[str]]]:
    """For each axis that has several values: its name, its label, the values."""
    some = [_axes(scene) for scene in contents.scenes]
    lengths = sorted({n for scene in contents.scenes for n in scene.regime.lengths})
    computes = dict.fromkeys(look.computes for look in contents.looks.values() if look.computes)
    found = [(axis, axis, list(dict.fromkeys(each[axis] for each in some))) for axis in AXES]
    found += [("n", "length", list(map(str, lengths))), ("computes", "computes", list(computes))]
    yield from (each for each in found if len(each[2]) > 1)


def _missing(reasons: Sequence[Missing]) -> Table:
    heads = ["what happened", "why", "to which", "where", "cells"]
    rows = [
        (
            m.status.replace("_", " "),
            f"{m.reason}\n{m.remedy}" if m.remedy else m.reason,
            ", ".join(m.variants),
            "; ".join(m.where),
            m.cells,
        )
        for m in reasons
    ]
    return Table("What did not run", columns(*heads, right=["cells"]), rows)


def _comparison(found: RunsComparison) -> tuple[Table, Table]:
    """How two runs differ, and their verdicts cell by cell."""
    rows = [(d.what, d.a, d.b) for d in found.differences]
    heads = columns("the runs differ in", found.a, found.b)
    differences = Table("How the runs differ", heads, rows)
    compared = [(cell, c) for cell in found.cells if (c := cell.comparison) is not None]
    verdicts = []
    for cell, c in compared[:COMPARED]:
        p = cell.problem
        where = f"{p.phase} {p.mask} {p.dtype} {p.kv_len:,}"
        row = (cell.variant, where, c.verdict, f"{c.ratio:.3f}", f"{c.low:.3f}–{c.high:.3f}")
        verdicts.append(row)
    heads = columns(
        "variant", "where", "verdict", "time, b over a", "99 %", right=["time, b over a"]
    )
    return differences, Table("Cell by cell", heads, verdicts)
