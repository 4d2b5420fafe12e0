"""The page: one file that needs no other, made from its template, its style and its script.

It has rows of a table, cards of the answer, and, packed as one word, the records behind them.
"""

from __future__ import annotations

import base64
import json
import math
import re
import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.answer.compare_runs import RunsComparison
from attnbench.answer.paste import words_of
from attnbench.answer.ranking import MARGIN, Stretch
from attnbench.core import format
from attnbench.core.record import Record
from attnbench.features.report.build import SECTIONS
from attnbench.features.report.contents import Contents, beside, distinct_words, figures
from attnbench.report.figures import sheet
from attnbench.report.figures.sheet import Drawn
from attnbench.report.figures.style import Look
from attnbench.report.scenes import ReportRun, Scene
from attnbench.report.tables import Table, columns, to_html
from attnbench.sweep.presets import PRESETS

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup


HERE = Path(__file__).parent
MOST = 2500
"""Rows of the table."""
COMPARED = 400
AXES = ("run", "phase", "mask", "dtype")


def render(contents: Contents) -> str:
    """The whole page."""
    cells = cells_of(contents)
    shown = cards(contents.scenes, contents.looks, cells)
    scaled = {figure.regime for figure in contents.figures if figure.section == "scaling"}
    rows = sorted(cells, key=_place)[:MOST]
    linked = (c for card in shown for row in card["rows"] for c in (*row["tied"], row["cell"]) if c)
    leaders = {name for scene in contents.scenes for s in scene.standings for name in s.leaders}
    families: dict[str, list[Look]] = {}
    for look in contents.looks.values():
        families.setdefault(look.family, []).append(look)
    margins = sorted(round(run.margin, 3) for run in contents.runs)
    return _template().render(
        c=contents,
        cards=shown,
        apart=distinct_words(contents.scenes),
        cells=rows,
        all_cells=len(cells),
        figures={name: _groups(contents, name) for name in SECTIONS},
        crossed=any(scene.crossings for scene in contents.scenes if scene.number in scaled),
        colours=_colours(),
        facts={
            "scenes": {
                s.number: {**_axes(s), "lengths": s.regime.lengths} for s in contents.scenes
            },
            "variants": [[x.variant, x.family, x.computes] for x in contents.looks.values()],
            "light": sheet.LIGHT,
        },
        choices=_choices(contents),
        families=families,
        blob=packed(contents, list({c.number: c for c in chain(linked, rows)}.values())),
        headlines=[_in_two(line, leaders) for line in contents.headlines],
        missing=_missing(contents),
        differences=[(run, *_comparison(run)) for run in contents.comparisons],
        margin=" to ".join(dict.fromkeys(map(format.percent, (margins[0], margins[-1])))),
        floor=format.percent(MARGIN),
        untimed=[scene for scene in contents.scenes if not scene.timed],
    )


def templates(**how: Any) -> Environment:
    """What fills the templates beside this module."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    more: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, **how}
    return Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, **more)


@cache
def _template() -> Template:
    from markupsafe import Markup

    made = templates(autoescape=True)
    made.filters["table"] = lambda table: Markup(to_html(table))
    made.filters["text_of"] = lambda name: Markup((HERE / name).read_text("utf-8"))
    made.filters["family"] = lambda look: look.family if look.family in sheet.FAMILIES else "other"
    for function in (format.ms, format.mib, format.figures, format.ratio, format.nbytes):
        made.filters[function.__name__] = function
    return made.get_template("page.html")


def _colours() -> Markup:
    """Style rules for the palette, and for the colour of each family."""
    from markupsafe import Markup

    own = "".join(f".f-{name}{{--c:var(--{name})}}" for name in (*sheet.FAMILIES, "other"))
    return Markup(f"{sheet.css()}\n{own}")


def _groups(contents: Contents, section: str) -> list[tuple[Scene | None, list[Drawn]]]:
    """A section's figures, those of one regime together; None for figures of several."""
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

    text = re.sub(r"\[([\d.,]+), ([\d.,]+)\]", "[\\1,\N{NO-BREAK SPACE}\\2]", text)
    if not names:
        return escape(text)
    longest = sorted(map(re.escape, names), key=lambda name: (-len(name), name))
    found = re.split(rf"(?<![\w.?=-])({'|'.join(longest)})(?![\w?=-]|\.\w)", text)
    return Markup("").join(
        Markup("<b>{}</b>").format(part) if n % 2 else escape(part) for n, part in enumerate(found)
    )


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
    heads = columns("what happened", "why", "to which", "where", "cells", right=["cells"])
    return Table("What did not run", heads, rows)


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
    ratio = "time, b over a"
    heads = columns("variant", "where", "verdict", ratio, "99 %", right=[ratio])
    return differences, Table("Cell by cell", heads, verdicts)


# ---- cells ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageCell:
    """One record and its place in the report."""

    number: int
    record: Record
    run: ReportRun
    line: int
    """Its line in the run's records.jsonl, counted from 1."""
    scene: Scene | None
    """None for a cell that was measured again later in its run."""
    look: Look
    to_best: float | None = None
    """Its median over that of the fastest exact variant at its length."""
    to_baseline: float | None = None

    @property
    def status(self) -> str:
        """``out of memory``"""
        return str(self.record.status).replace("_", " ")

    @property
    def units(self) -> dict[str, str]:
        """Its time in words, by unit."""
        time, cost = self.record.time, self.record.cost
        return {
            "ms": format.ms(time.median_s if time else None),
            "tflops": format.figures(cost.flops / time.median_s / 1e12 if time and cost else None),
            "share": format.share(self.record.share_of_ceiling if time else None),
            "baseline": format.ratio(self.to_baseline),
        }

    @property
    def kept(self) -> str:
        """What it keeps of what softmax does beyond averaging: all of it, if it is softmax."""
        skill = 1.0 if self.look.exact and self.record.time else None
        if self.record.distance is not None:
            skill = self.record.distance.skill
        return format.share(skill) if skill is None or skill > -0.005 else "< 0"

    @property
    def error(self) -> float | None:
        """The largest relative error of its tensors, against its definition."""
        errors = (self.record.error or {}).values()
        return max((e.relative for e in errors if e.relative is not None), default=None)


def cells_of(contents: Contents) -> list[PageCell]:
    """All cells, run by run in the order of their files."""
    scenes = {id(r): scene for scene in contents.scenes for r in scene.regime.records}
    medians: dict[tuple[int, int], tuple[float | None, float | None]] = {}
    for scene in contents.scenes:  # of the fastest exact variant and of the baseline
        for length in scene.regime.lengths:
            base = scene.regime.timed(length).get(contents.baseline)
            best = min(scene.regime.exact(length).values(), default=None)
            both = best, base.time.median_s if base and base.time else None
            medians[scene.number, length] = both
    cells: list[PageCell] = []
    for run in contents.runs:
        for record, line in zip(run.records, run.lines, strict=True):
            found, over = scenes.get(id(record)), list[float | None]()
            if found and (time := record.time):
                others = medians[found.number, record.problem.kv_len]
                over = [time.median_s / other if other else None for other in others]
            look = contents.looks[record.variant]
            cells.append(PageCell(len(cells), record, run, line, found, look, *over))
    return cells


def _place(cell: PageCell) -> tuple[float, ...]:
    """In the table: by regime, the longest first, by kind, the fastest first, the untimed last."""
    kinds = {"softmax": 0, "softmax on its own pattern": 1, "approximates softmax": 1}
    time, kind = cell.record.time, kinds.get(cell.look.computes, 2)
    rank = (kind, time.median_s) if time else (math.inf, math.inf)
    return (cell.scene.number if cell.scene else math.inf, -cell.record.problem.kv_len, *rank)


NAMED, DOUBTS = 3, 3
"""How many ties and doubts of a card are named; the rest is counted."""


def cards(
    scenes: Sequence[Scene], looks: Mapping[str, Look], cells: Sequence[PageCell]
) -> list[dict[str, Any]]:
    """For each regime in which anything has a time its rows, the longest lengths first.

    They are what readers ask about. Beside them ``untimed``: how many of its cells have no time.
    """
    by_record = {id(cell.record): cell for cell in cells}
    return [
        {
            "scene": scene,
            "rows": [_row(scene, stretch, looks, by_record) for stretch in scene.stretches[::-1]],
            "untimed": sum(r.time is None for r in scene.regime.records),
        }
        for scene in scenes
        if scene.timed
    ]


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
            badges = [("tie", f"a tie of {len(answer.leaders)}")]
            ahead = "none that is exact is slower for sure"
        elif answer.next is None:
            badges, ahead = [("only", "the only one")], "nothing exact beside it"
        badges += [("doubt", "in doubt")] * bool(doubts)
        badges = badges or [("clear", "clear")]
        ahead = f"{answer.lead} faster than {answer.next}" if answer.next is not None else ahead
        if answer.memory_bytes is not None:
            memory = format.nbytes(answer.memory_bytes)
            if answer.frugal:  # a variant that needs much less
                name, least, slower = answer.frugal
                memory += f" ({name}: {format.nbytes(least)} at {format.ratio(slower)} the time)"
    return {
        "stretch": stretch,
        "winner": looks[answer.winner] if answer else None,
        "cell": leaders[0] if leaders else None,
        "tied": leaders[1 : NAMED + 1],
        "more": max(0, len(leaders) - 1 - NAMED),
        "badges": badges,
        "lead": ahead,
        "memory": memory,
        "doubts": "; ".join([*doubts[:DOUBTS], *[f"{more} more"] * (more > 0)]),
        "beside": sentence,
        "other": looks[sentence.found.variant] if sentence and sentence.found else None,
    }


# ---- what the page holds packed ------------------------------------------------------------------

FIGURES = 7
"""How many figures of a number the page keeps; the file that it names has them all."""
STOPS = {
    "budget": "stopped by its budget",
    "plateau": "stopped when its interval narrowed no more",
    "converged": "stopped when its interval was within 1\N{NO-BREAK SPACE}%",
}


def packed(contents: Contents, cells: Sequence[PageCell]) -> str:
    """``cells`` by their numbers; ``csv`` and ``svg`` by the names of figures: as one word."""
    records = {}
    for cell in cells:
        p = cell.record.problem
        where = cell.scene.regime if cell.scene else p.phase
        records[cell.number] = {
            "title": f"{cell.record.variant} at {p.kv_len:,} tokens: {where}",
            "file": f"{contents.to_run[cell.run.number]}/records.jsonl",
            "line": cell.line,
            "summary": summarize(cell),
            "repeat": repeats(cell.record, cell.run.header),
            "record": _short(cell.record.to_dict()),
        }
    data = {
        "cells": records,
        "csv": {figure.name: figure.csv for figure in contents.figures},
        "svg": {f.name: f.inline for f in contents.figures if f.unit not in ("", "ms")},
    }
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()


def _short(value: Any) -> Any:
    """The value with shorter numbers, and without the samples of a time."""
    if isinstance(value, float):
        return float(f"{value:.{FIGURES}g}")
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items() if key != "samples_s"}
    return [_short(inner) for inner in value] if isinstance(value, list) else value


def summarize(cell: PageCell) -> str:
    """A record in a line: ``550 ms [466, 568] · 9 samples, stopped by …``"""
    record, time = cell.record, cell.record.time
    if time is None:
        parts = [f"{cell.status}: {record.reason}" if record.reason else cell.status]
    else:
        stop = STOPS.get(time.stop, f"stopped: {time.stop}")
        parts = [figures(time), f"{time.n:,} sample{'s' * (time.n != 1)}, {stop}"]
    if record.memory:
        parts.append(f"peak {format.nbytes(record.memory.peak_bytes)}")
    if cell.error is not None:
        error = format.three(cell.error).replace("-", "\N{NON-BREAKING HYPHEN}")  # 4e-7 is a word
        parts.append(f"worst error {error}")
    if time and time.flags:
        parts.append(f"in doubt: {'; '.join(time.flags)}")
    return " · ".join(parts)


def repeats(record: Record, header: Mapping[str, Any]) -> str:
    """The command that measures this cell again: the same variant on the same problem.

    The grid is given in full, so that no preset of another machine can change it.
    """
    p = record.problem
    budget = header.get("budget_s")
    if budget == PRESETS["cuda" if p.device.startswith("cuda") else "cpu"].budget:
        budget = None
    options = {
        "--world": record.ranks and record.ranks.world,
        "--seed": record.seed,
        "--threads": (header.get("settings") or {}).get("threads"),
        "--budget": budget,
    }
    words: list[Any] = ["attnbench", "run", record.variant, *words_of(p)]
    words += (word for name, value in options.items() if value for word in (name, value))
    words += ["--energy"] if header.get("energy") else []
    words += (word for table in header.get("tables") or () for word in ("--table", table))
    return shlex.join(map(str, words))
