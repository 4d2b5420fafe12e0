"""A report on disk: the page, the summary, the data, the table for a paper, a file for each figure.

Each file is whole or not there. Figures of an earlier report are removed; other files stay.
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
from attnbench.features.report.build import contents_of
from attnbench.features.report.contents import Contents, Missing, distinct_words, lead, sentences
from attnbench.features.report.page import render
from attnbench.report.scenes import ReportRun, Scene, gather
from attnbench.report.tables import (
    BOLD,
    Styled,
    Table,
    columns,
    csv_of,
    markdown_text,
    to_latex,
    to_markdown,
)
from impls.asked import CantBeDone

LATEX_HEAD = """\
% Median milliseconds a call. Bold: the fastest that is exactly softmax, and what can't be told
% from it. Needs the packages booktabs{longtable}.
"""
NO_TIME = "--"
SHORT = {"out_of_memory": "memory", "timed_out": "too slow", "measured": NO_TIME}


def tables(scenes: Sequence[Scene]) -> str:
    """A LaTeX table for each regime that has a time."""
    made = [to_latex(_scene_table(scene)) for scene in scenes if scene.timed]
    longtable = " and longtable" if any("longtable" in table for table in made) else ""
    return "\n".join([LATEX_HEAD.format(longtable=longtable), *made])


def _scene_table(scene: Scene) -> Table:
    """The times by variant and length: the exact variants first, each kind by its longest time."""
    lengths = scene.regime.lengths
    leaders = {s.length: s.leaders for s in scene.standings}
    computes: dict[str, str] = {}
    rank: dict[str, tuple[int, float]] = {}
    for length in lengths:
        for name, record in scene.regime.timed(length).items():
            computes[name] = record.computes
            if record.time:
                rank[name] = (-length, record.time.median_s)
    names = sorted(computes, key=lambda v: (computes[v] != "softmax", computes[v], rank[v], v))
    rows: list[list[Any]] = []
    before = ""
    for name in names:
        cells = [_time_cell(scene, length, name, leaders[length]) for length in lengths]
        rows.append([computes[name] if computes[name] != before else "", name, *cells])
        before = computes[name]
    heads = [f"{length:,}" for length in lengths]
    title = f"{scene.regime}; {scene.run.machine}; ms"
    return Table(title, columns("", "", *heads, right=heads), rows)


def _time_cell(scene: Scene, length: int, name: str, leaders: Sequence[str]) -> Styled:
    record = scene.regime.cells[length].get(name)
    if record is None:
        return Styled(NO_TIME)
    if record.time is None:
        return Styled(SHORT.get(str(record.status), str(record.status)))
    return Styled(f"{record.time.median_s * 1e3:.4g}", BOLD if name in leaders else "")


LIMIT = 60_000
"""Characters: a comment may hold 65,536."""
REGIMES, REASONS, VERDICTS, NAMES, TIED = 24, 30, 20, 8, 4
CUT = "\n\n*… cut here: the rest is in index.html.*\n"


def summary(contents: Contents) -> str:
    """Answers, winners, what was not measured, and what may be believed."""
    parts = [
        f"# {markdown_text(contents.title)}",
        *map(markdown_text, contents.headlines),
        *_sure(contents),
    ]
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
        yield f"How sure: {markdown_text(contents.sure)}."
    several = len(contents.runs) > 1
    for only in contents.only:
        on = f" on {only.run.name}" * several
        yield markdown_text(f"If you may choose only one{on}: {only}")


def _cut(text: str) -> str:
    return text[: text.rindex("\n", 0, LIMIT - len(CUT))] + CUT


def _run(contents: Contents, run: ReportRun) -> Iterator[str]:
    """One run's winners and its answers, regime by regime."""
    timed = [scene for scene in contents.scenes if scene.run is run and scene.timed]
    about = next(about for about in contents.abouts if about.run is run)
    yield f"## {markdown_text(run.name)}" if len(contents.runs) > 1 else "## Winners"
    yield markdown_text(about.machine_line)
    if not timed:
        yield "Nothing has a time in this run."
        return
    yield _winners(timed[:REGIMES])
    for scene in timed[:REGIMES]:
        yield f"**{markdown_text(str(scene.regime))}**\n\n" + "\n".join(
            f"- {markdown_text(sentence)}" for sentence in sentences(scene)
        )
    if rest := timed[REGIMES:]:
        yield f"… and {len(rest)} more regime{'s' * (len(rest) > 1)}, in index.html."


def _winners(scenes: Sequence[Scene]) -> str:
    """A row a regime, a column a length; a cell without a winner says why."""
    lengths = sorted({length for scene in scenes for length in scene.regime.lengths})
    names = distinct_words(scenes)
    rows: list[list[Any]] = []
    for scene in scenes:
        standings = {standing.length: standing for standing in scene.standings}
        rows.append([names[scene.number], *(_winner(standings.get(n)) for n in lengths)])
    return to_markdown(Table("", columns("regime", *(f"{n:,}" for n in lengths)), rows))


def _winner(standing: Standing | None) -> Styled:
    if standing is None:
        return Styled("not asked")
    answer = standing.answer
    if answer is None:
        return Styled("nothing exact has a time")
    doubt = " (in doubt)" if answer.flags else ""
    if answer.equal:
        names = ", ".join(standing.leaders[:TIED])
        more = ", …" if len(standing.leaders) > TIED else ""
        return Styled(f"tie of {len(standing.leaders)}: {names}{more}{doubt}")
    return Styled(answer.winner, BOLD, f"{lead(standing) or 'alone'}{doubt}")


def _comparisons(contents: Contents) -> Iterator[str]:
    """Each other run against the first."""
    if contents.comparisons or contents.incomparable:
        yield "## The runs against the first"
    for found in contents.comparisons:
        yield _comparison(found)
    for sentence in contents.incomparable:
        yield f"Not compared: {markdown_text(sentence)}."


def _comparison(found: RunsComparison) -> str:
    counts = "; ".join(f"{count} {word}" for word, count in found.counts().items() if count)
    a, b = markdown_text(found.a), markdown_text(found.b)
    verdicts = f"{markdown_text(counts) or 'nothing'} (unpaired, margin {found.margin:.1%})."
    parts = [f"**{b}** against {a}: {verdicts}"]
    other = [
        f"- {markdown_text(d.what)}: {markdown_text(d.a)} → {markdown_text(d.b)}"
        for d in found.differences
    ]
    if other:
        more = [f"- … and {len(other) - VERDICTS} more"] if len(other) > VERDICTS else []
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
    remedy = f" → {markdown_text(each.remedy)}" * bool(each.remedy)
    cells = f"{each.cells} cell{'s' * (each.cells != 1)}"
    return f"- {status}: {markdown_text(names)} ({cells}): {markdown_text(each.reason)}{remedy}"


def _claims(contents: Contents) -> Iterator[str]:
    """How many claims of others came to which verdict, and which were not reproduced."""
    for found in contents.claims:
        yield f"## What others claim, tried on {markdown_text(found.machine)}"
        if found.note:
            yield markdown_text(found.note)
        if found.made:
            yield markdown_text(f"{found.made}: {found.counts}")
            bad = [claim for claim in found.tried if claim.verdict != "reproduced"]
            if bad:
                yield "\n".join(
                    f"- {claim.verdict}: {markdown_text(claim.name)} ({markdown_text(claim.why)})"
                    for claim in bad
                )


def _model_cost(contents: Contents) -> Iterator[str]:
    """What follows from what was asked of models; what can't be shown says why."""
    shown = [found for found in contents.model_cost if found.conclusions or not found.tables]
    if shown:
        yield "## What it costs a model"
    for found in shown:
        lines = found.conclusions or [found.source]
        yield f"**{markdown_text(found.title)}** ({markdown_text(found.file)})"
        yield "\n".join(f"- {markdown_text(line)}" for line in lines)


def _trust(contents: Contents) -> Iterator[str]:
    yield "## How far to believe it"
    several = len(contents.runs) > 1
    yield "\n".join(
        f"- {f'{markdown_text(about.run.name)}: ' * several}{markdown_text(sentence)}"
        for about in contents.abouts
        for sentence in about.trust
    )
    commands = dict.fromkeys(command for about in contents.abouts for command in about.commands)
    yield "Repeat it:\n\n" + "\n".join(f"    {' '.join(command.split())}" for command in commands)


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
        INDEX: render(contents),
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


LEFT_OUT = ("run", "detail", "spent_s", "schema")
"""Fields of a record that are the run's, or not about attention."""


def data(runs: Sequence[ReportRun]) -> str:
    """All records, a row each; nested values by their path, without the samples."""
    rows = []
    for run in runs:
        about = {"run": run.header.get("run") or run.path.name, "machine": run.machine}
        for line, record in zip(run.lines, run.records, strict=True):
            fields = {k: v for k, v in record.to_dict().items() if k not in LEFT_OUT}
            if fields["time"] is not None:
                del fields["time"]["samples_s"]
            rows.append({**about, "line": line, **_flat(fields)})
    names = list(dict.fromkeys(name for row in rows for name in row))
    whole = {name for name in names if all(_is_whole(row.get(name)) for row in rows)}
    values = [[_as_whole(row.get(n)) if n in whole else row.get(n) for n in names] for row in rows]
    return csv_of([names, *values])


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{path}{name}.")
        elif isinstance(value, list):
            flat[path + name] = "; ".join(map(str, value))
        elif value is not None:
            flat[path + name] = value
    return flat


def _is_whole(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and float(value).is_integer())


def _as_whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) else value


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
