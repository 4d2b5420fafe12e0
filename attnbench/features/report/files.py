"""A report on disk: the page, the summary, the data, the table for a paper, a file for each figure.

Each file is whole or not there. Figures of an earlier report go; what is not ours stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.answer.compare_runs import RunsComparison
from attnbench.answer.ranking import Standing
from attnbench.core.disk import StoreError, from_json, writable_folder, write_whole
from attnbench.core.format import for_sheet
from attnbench.core.record import Record
from attnbench.features.report import html
from attnbench.features.report.contents import Contents, Missing, lead, sentences, telling
from attnbench.features.report.filled import contents_of
from attnbench.report.scenes import ReportRun, Scene, gather
from impls.asked import CantBeDone

LONG = 60
"""Rows from which a table may break over pages."""
HEAD = """\
% Median milliseconds a call. Bold: the fastest that is exactly softmax, and what can't be told
% from it. Needs the packages booktabs{longtable}.
"""
NONE = "--"
SHORT = {"out_of_memory": "memory", "timed_out": "too slow"}


def tables(scenes: Sequence[Scene]) -> str:
    """Those of all regimes that have a time."""
    made = [_table(scene) for scene in scenes if scene.timed]
    longtable = " and longtable" * any("longtable" in table for table in made)
    return "\n".join([HEAD.format(longtable=longtable), *made])


def _table(scene: Scene) -> str:
    import pandas as pd

    lengths = scene.regime.lengths
    leaders = {s.length: s.leaders for s in scene.standings}
    rows = _rows(scene)
    texts = [[_cell(scene.regime.cells[n].get(v)) for n in lengths] for _, v in rows]
    bold = [["font-weight: bold;" * (v in leaders[n]) for n in lengths] for _, v in rows]
    frame = pd.DataFrame(
        texts,
        index=pd.MultiIndex.from_tuples(rows),
        columns=pd.MultiIndex.from_tuples([(_title(scene), f"{n:,}") for n in lengths]),
    )
    style = frame.style.format(escape="latex")
    style = style.format_index(escape="latex", axis=0).format_index(escape="latex", axis=1)
    style = style.apply(lambda _: pd.DataFrame(bold, frame.index, frame.columns), axis=None)
    text: str = style.to_latex(
        hrules=True,
        convert_css=True,
        multirow_align="naive",
        multicol_align="c",
        column_format="ll" + "r" * len(lengths),
        environment="longtable" if len(rows) > LONG else None,
    )
    return text


def _rows(scene: Scene) -> list[tuple[str, str]]:
    """What each computes, and its name: exact ones first, then by time at the longest length."""
    computes: dict[str, str] = {}
    rank: dict[str, tuple[int, float]] = {}
    for length in scene.regime.lengths:
        for name, record in scene.regime.timed(length).items():
            computes[name] = record.computes
            if record.time:
                rank[name] = (-length, record.time.median_s)
    names = sorted(computes, key=lambda v: (computes[v] != "softmax", computes[v], rank[v], v))
    return [(computes[name], name) for name in names]


def _title(scene: Scene) -> str:
    return f"{scene.regime}; {scene.run.machine}; ms"


def _cell(record: Record | None) -> str:
    if record is None:
        return NONE
    if record.time is None:
        return SHORT.get(str(record.status), str(record.status)).replace("measured", NONE)
    return f"{record.time.median_s * 1e3:.4g}"


LIMIT = 60_000
"""Characters: a comment may hold 65,536."""
REGIMES, REASONS, VERDICTS, NAMES, TIED = 24, 30, 20, 8, 4
WORDS = 900
"""Characters of one text of somebody else's."""
ENTITY = re.compile(r"&(?=#?\w+;)")
"""Elsewhere an ampersand is one."""
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!$])")
CUT = "\n\n*… cut here: the rest is in index.html.*\n"


def summary(contents: Contents) -> str:
    """Answers, winners, what was not measured, and what may be believed."""
    parts = [f"# {_plain(contents.title)}", *map(_plain, contents.headlines), *_sure(contents)]
    for run in contents.runs:
        parts += _run(contents, run)
    parts += _comparisons(contents)
    parts += _missing(contents.missing)
    parts += _claims(contents)
    parts += _model_cost(contents)
    parts += _trust(contents)
    text = "\n\n".join(parts) + "\n"
    return text if len(text) <= LIMIT else _cut(text)


def _sure(contents: Contents) -> Iterator[str]:
    if contents.sure:
        yield f"How sure: {_plain(contents.sure)}."
    several = len(contents.runs) > 1
    for only in contents.only:
        on = f" on {only.run.name}" * several
        yield _plain(f"If you may choose only one{on}: {only}")


def _cut(text: str) -> str:
    return text[: text.rindex("\n", 0, LIMIT - len(CUT))] + CUT


def _run(contents: Contents, run: ReportRun) -> Iterator[str]:
    """One run's winners and its answers, regime by regime."""
    timed = [scene for scene in contents.scenes if scene.run is run and scene.timed]
    about = next(about for about in contents.abouts if about.run is run)
    yield f"## {_plain(run.name)}" if len(contents.runs) > 1 else "## Winners"
    yield _plain(about.machine_line)
    if not timed:
        yield "Nothing has a time in this run."
        return
    yield _winners(timed[:REGIMES])
    for scene in timed[:REGIMES]:
        yield f"**{_plain(str(scene.regime))}**\n\n" + "\n".join(
            f"- {_plain(sentence)}" for sentence in sentences(scene)
        )
    if rest := timed[REGIMES:]:
        yield f"… and {len(rest)} more regime{'s' * (len(rest) > 1)}, in index.html."


def _winners(scenes: Sequence[Scene]) -> str:
    """A row a regime, a column a length; a tie is said as one, and an empty cell says why."""
    lengths = sorted({length for scene in scenes for length in scene.regime.lengths})
    lines = [
        _row(["regime", *(f"{length:,}" for length in lengths)]),
        _row(["---", *["---"] * len(lengths)]),
    ]
    apart = telling(scenes)
    for scene in scenes:
        standings = {standing.length: standing for standing in scene.standings}
        cells = [_winner(standings.get(length)) for length in lengths]
        lines.append(_row([_plain(apart[scene.number]), *cells]))
    return "\n".join(lines)


def _winner(standing: Standing | None) -> str:
    if standing is None:
        return "not asked"
    if standing.answer is None:
        return "nothing exact has a time"
    doubt = " (in doubt)" * bool(standing.answer.flags)
    if standing.answer.equal:
        named = ", ".join(map(_plain, standing.leaders[:TIED]))
        more = ", …" * (len(standing.leaders) > TIED)
        return f"tie of {len(standing.leaders)}: {named}{more}{doubt}"
    return f"**{_plain(standing.answer.winner)}** {lead(standing) or 'alone'}{doubt}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _comparisons(contents: Contents) -> Iterator[str]:
    """Each other run against the first."""
    if contents.comparisons or contents.incomparable:
        yield "## The runs against the first"
    for found in contents.comparisons:
        yield _comparison(found)
    for sentence in contents.incomparable:
        yield f"Not compared: {_plain(sentence)}."


def _comparison(found: RunsComparison) -> str:
    counts = "; ".join(f"{count} {word}" for word, count in found.counts().items() if count)
    parts = [
        f"**{_plain(found.b)}** against {_plain(found.a)}: {_plain(counts) or 'nothing'} "
        f"(unpaired, margin {found.margin:.1%})."
    ]
    other = [f"- {_plain(d.what)}: {_plain(d.a)} → {_plain(d.b)}" for d in found.differences]
    if other:
        more = [f"- … and {len(other) - VERDICTS} more"] * (len(other) > VERDICTS)
        parts.append("What they have otherwise:\n\n" + "\n".join([*other[:VERDICTS], *more]))
    return "\n\n".join(parts)


def _missing(found: Sequence[Missing]) -> Iterator[str]:
    yield "## Not measured"
    if not found:
        yield "Every cell that was begun has a time."
        return
    lines = [_stopped(each) for each in found[:REASONS]]
    if rest := found[REASONS:]:
        cells = sum(each.cells for each in rest)
        lines.append(f"- … and {cells} cells for {len(rest)} more reasons, in index.html")
    yield "\n".join(lines)


def _stopped(each: Missing) -> str:
    names = ", ".join(each.variants[:NAMES])
    names += f" and {len(each.variants) - NAMES} more" * (len(each.variants) > NAMES)
    status = each.status.replace("_", " ")
    remedy = f" → {_plain(each.remedy)}" * bool(each.remedy)
    cells = f"{each.cells} cell{'s' * (each.cells != 1)}"
    return f"- {status}: {_plain(names)} ({cells}): {_plain(each.reason)}{remedy}"


def _claims(contents: Contents) -> Iterator[str]:
    """How many claims of others came to which verdict, and which were not reproduced."""
    for found in contents.claims:
        yield f"## What others claim, tried on {_plain(found.machine)}"
        if found.note:
            yield _plain(found.note)
        if found.told:
            yield _plain(f"{found.made}: {found.counts}")
            bad = [claim for claim in found.tried if claim.verdict != "reproduced"]
            if bad:
                yield "\n".join(
                    f"- {claim.verdict}: {_plain(claim.name)} ({_plain(claim.why)})"
                    for claim in bad
                )


def _model_cost(contents: Contents) -> Iterator[str]:
    """What follows from what was asked of models; what can't be shown says why."""
    told = [found for found in contents.model_cost if found.conclusions or not found.tables]
    if told:
        yield "## What it costs a model"
    for found in told:
        lines = found.conclusions or [found.said]
        yield f"**{_plain(found.title)}** ({_plain(found.file)})"
        yield "\n".join(f"- {_plain(line)}" for line in lines)


def _trust(contents: Contents) -> Iterator[str]:
    yield "## How far to believe it"
    several = len(contents.runs) > 1
    yield "\n".join(
        f"- {f'{_plain(about.run.name)}: ' * several}{_plain(sentence)}"
        for about in contents.abouts
        for sentence in about.trust
    )
    commands = dict.fromkeys(command for about in contents.abouts for command in about.commands)
    yield "Repeat it:\n\n" + "\n".join(f"    {_line(command)}" for command in commands)


def _plain(text: str) -> str:
    """Somebody's words as words: on one line, no longer than a sentence, nothing in it markup."""
    cut = _line(text)
    cut = cut if len(cut) <= WORDS else cut[:WORDS] + "…"
    safe = SPECIAL.sub(r"\\\1", ENTITY.sub("&amp;", cut))
    return safe.replace("@", "&#64;").replace("\\<", "&lt;")


def _line(text: str) -> str:
    return " ".join(text.split())


INDEX, SUMMARY, DATA, TABLE, FIGURES = (
    "index.html",
    "summary.md",
    "data.csv",
    "table.tex",
    "figures",
)
OURS = "figures.json"
"""Among the figures: the names of those that a report wrote there, so that the next may go on."""


@dataclass(frozen=True)
class Made:
    """A report as it lies there."""

    index: Path
    files: Sequence[Path]
    contents: Contents


def make(runs: Sequence[Path], out: Path) -> Made:
    """A report of these runs in a folder; raises a sentence where there is nothing to report."""
    read = gather(runs)
    _make_folder(out)  # before the work: where nothing can be written, it need not be done
    try:
        contents = contents_of(read, out)
        files = write(contents, out)
    except CantBeDone:
        raise
    except Exception as error:  # a file may say what no run of ours ever wrote
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StoreError(
            f"no report can be made of {', '.join(str(path) for path in runs)}: something in it is "
            f"not what it should be ({said}); if attnbench wrote it, that is a fault of attnbench"
        ) from error
    return Made(out / INDEX, files, contents)


def write(contents: Contents, out: Path) -> list[Path]:
    """The files, the page first; what has the same name is replaced."""
    _make_folder(out / FIGURES)
    texts = {
        INDEX: html.render(contents),
        SUMMARY: summary(contents),
        DATA: data(contents.runs),
        TABLE: tables(contents.scenes),
    }
    written = dict(_figures(contents))
    _forget(out / FIGURES, keep=written)
    listed = json.dumps(sorted(written), indent=1) + "\n"
    _write(out / FIGURES / OURS, listed.encode())
    for name, content in written.items():
        _write(out / FIGURES / name, content)
    for name, text in reversed(texts.items()):  # the page last: what it leads to is there by then
        _write(out / name, text.encode())
    return [out / name for name in texts] + [out / FIGURES / name for name in written]


def _figures(contents: Contents) -> Iterator[tuple[str, bytes]]:
    for figure in contents.figures:
        yield f"{figure.name}.svg", figure.svg.encode()
        if figure.png:
            yield f"{figure.name}.png", figure.png
        if figure.csv:
            yield f"{figure.name}.csv", figure.csv.encode()


def data(runs: Sequence[ReportRun]) -> str:
    """All records, a row each; nested values by their path, samples left to the records."""
    import pandas as pd

    rows = [
        {
            "run": run.header.get("run") or run.path.name,
            "machine": run.machine,
            "line": line,
            **_flat(_told(record)),
        }
        for run in runs
        for line, record in zip(run.lines, run.records, strict=True)
    ]
    rows = [{for_sheet(name): for_sheet(value) for name, value in row.items()} for row in rows]
    frame = pd.DataFrame(rows).convert_dtypes()
    text: str = frame.to_csv(index=False, lineterminator="\n")  # whole numbers stay whole
    return text


LEFT_OUT = ("run", "detail", "spent_s", "schema")
"""Of a record: said once for the run, or about its making and not about attention."""


def _told(record: Record) -> dict[str, Any]:
    if record.time is not None:
        record = record.with_(time=record.time.with_(samples_s=[]))
    told = record.to_dict()
    if told["time"] is not None:
        del told["time"]["samples_s"]
    return {name: value for name, value in told.items() if name not in LEFT_OUT}


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{path}{name}.")
        elif isinstance(value, list):
            found[path + name] = "; ".join(map(str, value))
        elif value is not None:
            found[path + name] = value
    return found


def _forget(folder: Path, keep: Mapping[str, bytes]) -> None:
    """Figures that an earlier report wrote and this one does not have."""
    try:
        before = from_json((folder / OURS).read_text())
    except (OSError, ValueError):
        return
    names = before if isinstance(before, list) else []
    for name in names:
        if isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) and name not in keep:
            with suppress(OSError):  # a folder of that name, say, is not ours
                (folder / name).unlink()


def _make_folder(path: Path) -> None:
    try:
        writable_folder(path)
    except OSError as error:
        raise _cant_write(path, error) from None


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all; a report can be made again, so the disk need not be waited for."""
    try:
        write_whole(path, content, sync=False)
    except OSError as error:
        raise _cant_write(path, error) from None


def _cant_write(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"can't write the report to {path}: {error.strerror}; give another folder with --out"
    )
