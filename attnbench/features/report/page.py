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
from attnbench.features.report.cells import MOST, cards, cells_of, linked, packed
from attnbench.features.report.contents import AMISS, Contents, Missing, distinct_words, margins
from attnbench.report.figures import sheet
from attnbench.report.figures.sheet import Drawn
from attnbench.report.figures.style import Look
from attnbench.report.scenes import Scene
from attnbench.report.tables import Table, columns, to_html

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup


HERE = Path(__file__).parent
SECTIONS = (
    ("map", "Winners", "Who wins where",
     "The fastest exact variant at each length, and by how much; hatched where several can’t be "
     "told apart."),
    ("scaling", "Scaling", "How it grows",
     "Against the number of keys, both axes logarithmic. Bands are 95 % intervals."),
    ("tradeoffs", "Trade-offs", "What speed costs",
     "On the stepped line nothing else is better both ways. Full markers are exact softmax, half "
     "ones near it, hollow ones operators of their own."),
    ("roofline", "Roofline", "How much of the machine",
     "Under the ceilings measured on this machine at the start of the run."),
    ("closeness", "Only one", "If you may choose only one",
     "On how many of the problems each exact variant stays within so many times the best. Missing "
     "cells count against it."),
    ("memory", "Memory", "Where the memory goes", "Above the inputs, at the worst instant."),
    ("shares", "Operators", "Where the time goes", "By operator, from profiles of single calls."),
    ("attention", "Attention maps", "What each one looks at",
     "Who attends to whom in one sentence: rows look at columns."),
)  # fmt: skip
"""The sections with figures, in their order: id, name in the contents, heading, lead."""
CROSSED = "Shaded spans are where one variant overtakes another."
WIDE = ("map", "shares", "attention")
"""Sections whose figures are as wide as the page, and scroll where that is too narrow."""
UNITS = {"ms": "ms", "tflops": "TFLOP/s", "share": "% of ceiling", "baseline": "× baseline"}
HINTS = {
    "ratio": "its time over that of the fastest exact variant on the same problem",
    "worst error": "the largest relative error of its tensors, against what it says it computes",
    "keeps": "of what softmax does beyond giving every query the average; < 0: it is farther from "
    "softmax than the average is",
}
COMPARED = 400
INTERVAL = re.compile(r"\[([\d.,]+), ([\d.,]+)\]")
AXES = ("run", "phase", "mask", "dtype")


def render(contents: Contents) -> str:
    """The whole page."""
    cells = cells_of(contents)
    shown = cards(contents.scenes, contents.looks, cells)
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
        sections=[(*section[:3], *_lead_and_groups(contents, section)) for section in SECTIONS],
        colours=_colours(),
        facts=_facts(contents),
        wide=WIDE,
        choices=_choices(contents),
        units=UNITS,
        families=families,
        blob=packed(contents, list({c.number: c for c in (*linked(shown), *rows)}.values())),
        headlines=[_in_two(line, leaders) for line in contents.headlines],
        missing=_missing(contents.missing),
        differences=[(run, *_comparison(run)) for run in contents.comparisons],
        amiss=AMISS,
        margin=margins(contents.runs),
        floor=format.percent(MARGIN),
        hints=HINTS,
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


def _lead_and_groups(contents: Contents, section: tuple[str, ...]) -> tuple[str, Groups]:
    """The text above a section's figures, and the figures."""
    name, lead = section[0], section[3]
    by_regime: dict[int | None, list[Drawn]] = {}
    for figure in contents.figures:
        if figure.section == name:
            by_regime.setdefault(figure.regime, []).append(figure)
    scenes = {scene.number: scene for scene in contents.scenes}
    if name == "scaling" and any(scenes[n].crossings for n in by_regime if n is not None):
        lead = f"{lead} {CROSSED}"
    if by_regime and all(len(some) == 1 for some in by_regime.values()):
        return lead, [(None, list(chain(*by_regime.values())))]  # whose titles name the regime
    return lead, [(None if n is None else scenes[n], some) for n, some in by_regime.items()]


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
