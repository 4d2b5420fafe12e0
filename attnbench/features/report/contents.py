"""The contents of a report, made from its runs: answers, provenance, evidence, what is missing."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from attnbench.answer.layers import layer_choices, together
from attnbench.answer.ranking import margin_reason
from attnbench.core.disk import RECORDS, StoreError
from attnbench.core.evidence import Evidence, evidence_of, read_evidence, selfcheck_said
from attnbench.core.format import counted, duration, percent, size
from attnbench.core.record import FINDINGS
from attnbench.features.claims.view import claims_for_page
from attnbench.features.quality.verb import quality_for_page
from attnbench.report.figures.style import VariantLook, looks
from attnbench.report.layers import layer_tables
from attnbench.report.scenes import ReportRun, Scene, hardware, machine_line, part, scenes
from attnbench.report.sentences import (
    Headline,
    Missing,
    Only,
    headlines,
    how_sure,
    missing,
    only,
    usual_length,
)
from attnbench.report.tables import Table
from impls.errors import CantBeDone

SPOILED = "spoiled.jsonl"
"""Where older runs kept the records that a second measurement replaced."""


class About(NamedTuple):
    """The provenance of a run, and how far it can be trusted."""

    run: ReportRun
    machine_line: str
    """``AMD EPYC, 2 cores, 24 GiB · torch 2.13.0+cpu · 1 thread · 22 November 2026``"""
    margin: str
    """The largest difference that counts as a tie, and why; empty where nothing has a time. It is
    the first of ``trust`` too."""
    trust: Sequence[str]
    """Sentences: the self-check, the noise floor, what was noisy."""
    facts: Sequence[tuple[str, str]]
    commands: Sequence[str]


class ModelLayers(NamedTuple):
    """The answers of a published model's run."""

    run: ReportRun
    title: str
    kinds: Sequence[Table]
    """One a kind of layer."""
    whole: Sequence[str]
    """What all layers take, in sentences."""


@dataclass(frozen=True)
class Contents:
    """The data of the page, the summary and the files."""

    title: str
    length: int | None
    """At which it opens; None where nothing has a time."""
    headlines: Sequence[Headline]
    confidence: str
    only: Sequence[Only]
    runs: Sequence[ReportRun]
    abouts: Sequence[About]
    scenes: Sequence[Scene]
    looks: Mapping[str, VariantLook]
    missing: Sequence[Missing]
    to_run: Mapping[int, str]
    """The path from the report to the folder of each run, by its number."""
    claims: Sequence[Mapping[str, Any]] = ()
    model_cost: Sequence[Mapping[str, Any]] = ()
    layers: Sequence[ModelLayers] = ()


def contents_of(runs: Sequence[ReportRun], out: Path) -> Contents:
    """The contents of a report of these runs that will be written to a folder."""
    all_scenes = scenes(runs)
    length = usual_length(all_scenes)
    folders = list(dict.fromkeys(run.path.resolve().parent for run in runs))
    to_run = {run.number: os.path.relpath(run.path.resolve(), out.resolve()) for run in runs}
    return Contents(
        title=_title(runs),
        length=length,
        headlines=headlines(all_scenes, len(runs) > 1, length),
        confidence=how_sure(all_scenes),
        only=[best for run in runs if (best := only(run, all_scenes))],
        runs=runs,
        abouts=[about(run) for run in runs],
        scenes=all_scenes,
        looks=looks(record for run in runs for record in run.records),
        missing=missing(all_scenes),
        to_run={number: quote(Path(path).as_posix()) for number, path in to_run.items()},
        claims=[claims for folder in folders for claims in claims_of(folder)],
        model_cost=[cost for folder in folders for cost in model_cost(folder)],
        layers=[layers for run in runs if (layers := model_layers(run))],
    )


def model_layers(run: ReportRun) -> ModelLayers | None:
    """The answer for each kind of layer; None where the run is of no model, or of rows that are
    not here.
    """
    try:
        choices = layer_choices(run.records, run.header)
    except CantBeDone:
        return None
    if not choices:
        return None
    whole = [total.sentence() for total in together(choices)]
    return ModelLayers(run, run.header["grid"]["title"], list(layer_tables(choices)), whole)


def _title(runs: Sequence[ReportRun]) -> str:
    machines = list(dict.fromkeys(run.machine for run in runs))
    if len(runs) == 1:
        return f"Which attention to use on {machine_line(runs[0]).partition(' · ')[0]}"
    if len(machines) == 1:
        return f"Which attention to use on {machines[0]}: {len(runs)} runs side by side"
    return f"Which attention to use: {len(runs)} runs on {', '.join(machines)}"


# ---- evidence beside the runs: claims, and what a variant costs a model --------------------------

TITLES = {
    "lm": "A causal language model, its attention replaced by each variant",
    "caches": "What a causal language model keeps with each cache",
    "model": "A trained model, its attention replaced by each variant",
    "recall": "What small models recall that were trained with each variant",
    "real": "Error and skill on what that model’s layers hand to attention",
}


def _newest(
    folder: Path, kind: str, show: Callable[[Evidence], dict[str, Any]]
) -> Iterator[tuple[Path, dict[str, Any] | str]]:
    """The newest file of a kind with what it shows, or with why it can't be shown; one that was
    stopped only where there is no whole one.
    """
    stopped: list[tuple[Path, dict[str, Any] | str]] = []
    for file in evidence_of(folder, kind):
        try:
            evidence = read_evidence(file)
            shown: dict[str, Any] | str = show(evidence)
        except StoreError as error:
            yield file, str(error)
            return
        except Exception as error:  # something in it is not what it should be
            yield file, f"{file.name} can't be shown ({type(error).__name__}: {error})"
            return
        if not evidence.partial:
            yield file, shown
            return
        stopped.append((file, shown))
    yield from stopped[:1]


def claims_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The newest claims in a machine's folder, or a note on why they can't be read."""
    nothing: dict[str, Any] = {"made": "", "tried": [], "footnote": "", "left": None, "note": ""}
    for _, claims in _newest(folder, "reproduce", claims_for_page):
        shown = {"note": claims} if isinstance(claims, str) else claims
        yield {"machine": folder.name, **nothing, **shown}


def model_cost(folder: Path) -> Iterator[dict[str, Any]]:
    """The newest evidence of each kind in a machine's folder."""
    nothing: dict[str, Any] = {"conclusions": (), "tables": (), "lines": (), "figure": None}
    for kind, title in TITLES.items():
        for file, cost in _newest(folder, kind, _model_cost):
            shown = {"source": cost} if isinstance(cost, str) else cost
            yield {"title": title, "file": file.name, **nothing, **shown}


def _model_cost(evidence: Evidence) -> dict[str, Any]:
    header = evidence.made
    source = f"{header['started'][:10]}, {header['machine']['name']}: {header['command']}"
    if evidence.partial:
        source += "; stopped before its end: a part of what was asked"
    return {"source": source, **quality_for_page(evidence)}


# ---- the provenance of a run ---------------------------------------------------------------------

FOLDERS = re.compile(r"(^|[=:])/(?:[^/]*/)*")
"""The folders of an absolute path, alone or behind the name of an option."""
UNKNOWN = "not said"


def about(run: ReportRun) -> About:
    """The provenance of a run, and how far it can be trusted."""
    margin = margin_reason(run.records) if any(r.time for r in run.records) else ""
    trust, facts = (*filter(None, [margin]), *_trust(run)), tuple(_facts(run))
    return About(run, machine_line(run), margin, trust, facts, commands(run))


def commands(run: ReportRun) -> tuple[str, ...]:
    """The commands that repeat the run, without the folders of its machine, and this report."""
    command, path = run.header.get("command"), run.path.resolve()
    report = f"attnbench report {shlex.quote(f'results/{path.parent.name}/{path.name}')}"
    words = shlex.split(str(command or ""))
    repeat = shlex.join(FOLDERS.sub(r"\1", word) for word in words)
    return (repeat, report) if repeat else (report,)


def _trust(run: ReportRun) -> Iterator[str]:
    timed = [r.time for r in run.records if r.time is not None]
    yield selfcheck_said(run.header)
    floors = []
    for each in run.header.get("noise") or ():
        floors.append(f"{percent(each['floor'])} for calls of {duration(each['call_s'])}")
    of = "noise floor, by which a variant in pairs seems to differ from itself"
    none = "noise floor: not measured on this machine yet; 'attnbench env' does it"
    yield f"{of}: {', '.join(floors)}" if floors else none
    refused = Counter(str(r.status) for r in run.records if r.status in FINDINGS)
    each = "; ".join(f"{count} {word}" for word, count in sorted(refused.items()))
    have = "has" if len(timed) == 1 else "have"
    passed = f"{counted(len(timed), 'measurement')} passed the correctness checks and {have} a time"
    yield f"{passed}; {each or 'none was wrong, implausible or failed'}"
    flags = Counter(word for t in timed for word in {flag.split(":")[0] for flag in t.doubts})
    if flags:
        each = ", ".join(f"{flag} ({count})" for flag, count in sorted(flags.items()))
        noisy = sum(bool(t.doubts) for t in timed)
        more = ", some for several reasons" if sum(flags.values()) > noisy else ""
        yield f"{noisy} of {len(timed)} timings were noisy{more}: {each}"
    else:
        yield "no timing was noisy"
    spoiled = run.path / SPOILED
    earlier = spoiled.read_bytes().count(b"\n") if spoiled.is_file() else 0
    if again := run.again + earlier:
        yield f"{counted(again, 'measurement')} made while the machine drifted were repeated"
    yield from run.notes


def _facts(run: ReportRun) -> Iterator[tuple[str, str]]:
    """The first facts of the header; run.json has all."""
    header, machine = run.header, part(run.header, "machine")
    records, code = run.path / RECORDS, part(header, "code")
    digest = hashlib.sha256(records.read_bytes()).hexdigest() if records.exists() else "of no file"
    dirty = ", with uncommitted changes" if code.get("dirty") is True else ""
    ceilings = part(header, "ceilings")
    rates = [f"{x / 1e12:.3g} TFLOP/s in {of}" for of, x in part(ceilings, "flops").items() if x]
    copies = {int(copied): rate for copied, rate in part(ceilings, "copy").items() if rate}
    rates += [f"{rate / 1e9:.3g} GB/s copying {size(copied)}" for copied, rate in copies.items()]
    clocks = Counter(record.time.clock for record in run.records if record.time)
    yield "run", f"{header.get('run') or run.path.name}, started {header.get('started') or UNKNOWN}"
    yield "machine", ", ".join([run.machine, *hardware(machine)])
    yield "system", f"{machine.get('system', UNKNOWN)}, Python {machine.get('python', '?')}"
    yield "versions", _pairs(part(machine, "versions"))
    yield "settings", _pairs(part(header, "settings"))
    yield "clocks", ", ".join(f"{x} ({n} measurements)" for x, n in clocks.items()) or "none"
    yield "code", f"commit {code.get('commit') or 'not known'}{dirty}"
    yield "protocol", f"{header.get('protocol', UNKNOWN)} (records of form {header['schema']})"
    yield "ceilings", "; ".join(rates) or "not measured"
    yield "records", f"{len(run.records)}, sha256 {digest}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in values.items()) or UNKNOWN
