"""``attnbench quality FORM``: what a variant costs a model, and the evidence that is kept of it."""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.markup import escape

import impls
from attnbench.command.progress import Progress
from attnbench.command.terminal import INTERRUPTED, say
from attnbench.core.disk import StoreError, write_whole
from attnbench.core.evidence import (
    Evidence,
    check_writable,
    made_here,
    read_evidence,
    save_evidence,
    stored_margin,
)
from attnbench.core.format import roughly
from attnbench.core.lock import lock_for
from attnbench.core.machine import pace, this_machine
from attnbench.core.process import Worker
from attnbench.core.record import FINDINGS, NOT_TRIED, Status
from attnbench.core.settings import Settings
from attnbench.core.tuned import TunedOptions
from attnbench.features.quality import (
    model_results,
    model_view,
    pretrained,
    real_view,
    recall_view,
)
from attnbench.features.quality import recall as training
from attnbench.features.quality.rows import WORKER, Row, sentence, status_words, variant_row
from attnbench.models import wrong_level
from attnbench.report import tidy
from attnbench.report.tables import FAINT, console
from attnbench.report.tables import show as show_table
from attnbench.sweep.compare import starting_s
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.plan import LONG, here
from attnbench.sweep.start import pinned
from attnbench.sweep.sweep import Interrupt
from impls.errors import CantBeDone
from impls.problem import InvalidProblem, Problem

ORIGINAL_S, CAPTURE_S = 28.0, 8.0
"""For the original model, before its variants; for the inputs of its layers; for the end."""
VIEWS: Mapping[str, Any] = {"recall": recall_view, "model": model_view, "real": real_view}
"""Each form's module with ``conclusions``, ``tables``, ``notes``, ``csv_rows`` and ``draw``."""


NOT_RUN = ("refused", *NOT_TRIED)
"""Statuses of variants that were not tried."""


def quality(arguments: argparse.Namespace) -> int:
    """Run a form, or show what an earlier call of it kept."""
    form = arguments.form
    if form not in FORMS:
        missing = "missing subcommand"
        what = f"there is no quality {arguments.asked!r}" if arguments.asked else missing
        *some, last = FORMS
        raise CantBeDone(
            f"{what}: give {', '.join(some)} or {last}, as in 'attnbench quality {last}'"
        )
    if arguments.source is None:
        return FORMS[form](arguments)
    file = Path(arguments.source)
    evidence = read_evidence(file)
    if evidence.kind != form:
        raise StoreError(
            f"{file} is evidence of {evidence.kind}, not of {form}: give a file that 'attnbench "
            f"quality {form}' wrote, results/*/evidence/*-{form}.json"
        )
    try:
        return _present(evidence, file, arguments)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StoreError(f"{file} is damaged ({why}): what it holds can't be shown") from None


def _collect(
    steps: Callable[[Progress], Generator[Row | None]], device: str
) -> tuple[list[Row], bool]:
    """The rows of ``steps`` until Ctrl-C, which may end it at a None; True where it did."""
    rows, stopped = list[Row](), False
    try:
        with (
            lock_for([device]),
            Progress() as progress,
            (interrupt := Interrupt(progress.tell)).watching(),
            closing(steps(progress)) as remaining,
        ):
            for row in remaining:
                rows += [] if row is None else [row]
                if stopped := interrupt.asked:
                    break
    except KeyboardInterrupt:
        stopped = True
    return rows, stopped


def _keep(arguments: argparse.Namespace, header: Row, rows: Sequence[Row], stopped: bool) -> int:
    """Keep evidence with its picture, if it has one, and print it; the exit status."""
    if stopped and all(row["status"] in NOT_RUN for row in rows):
        say("attnbench: stopped before anything was tried; nothing is kept")
        return INTERRUPTED
    evidence = Evidence(arguments.form, {**header, "stopped": stopped}, rows)
    file = save_evidence(Path(arguments.out), evidence)
    status = _present(evidence, file, arguments)
    picture_words = ""
    if (picture := VIEWS[evidence.kind].draw(evidence)) is not None:
        png = file.with_suffix(".png")
        try:
            write_whole(file.with_suffix(".svg"), picture.svg.encode(), sync=False)
            write_whole(png, picture.png, sync=False)
            picture_words = f"; drawn in {png}"
        except OSError as error:
            say(f"note: {png} could not be written: {error.strerror}")
    say(f"kept in {file}{picture_words}")
    return INTERRUPTED if stopped else status


def _present(evidence: Evidence, file: Path, arguments: argparse.Namespace) -> int:
    """Print evidence: 1 where a variant is wrong or died, 2 where none ran."""
    view = VIEWS[evidence.kind]
    if arguments.csv:
        tidy.show(view.csv_rows(evidence))
    elif arguments.json:
        print(json.dumps({**json.loads(file.read_text()), "conclusions": _sentences(evidence)}))
    else:
        show(evidence)
    if evidence.partial:
        say("stopped early: these results are incomplete")
    statuses = {row["status"] for row in evidence.rows}
    if statuses & {*FINDINGS, Status.TIMED_OUT}:
        return 1
    if statuses <= {*NOT_RUN}:
        say("attnbench: nothing was measured, for the reasons above")
        return 2
    return 0


def _sentences(evidence: Evidence) -> list[str]:
    return [f"{sentence(line)}." for line in VIEWS[evidence.kind].conclusions(evidence)]


def show(evidence: Evidence) -> None:
    """Print its tables, conclusions and notes."""
    view, out = VIEWS[evidence.kind], console()
    for table in view.tables(evidence):
        show_table(table)
    out.print()
    for line in _sentences(evidence):
        out.print(escape(line))
    for line in view.notes(evidence):
        out.print(escape(line), style=FAINT)


def quality_for_page(evidence: Evidence) -> Row:
    """The parts of a report's section."""
    view = VIEWS[evidence.kind]
    return {
        "conclusions": _sentences(evidence),
        "tables": view.tables(evidence),
        "lines": list(view.notes(evidence)),
        "figure": view.draw(evidence),
    }


class Session:
    """Everything that both forms with the trained model need before they begin."""

    def __init__(self, arguments: argparse.Namespace, lengths: Sequence[int]) -> None:
        """Raise :class:`CantBeDone` for a missing model, bad texts, device, dtype or length."""
        self.machine = this_machine()
        pretrained.model_folder()
        file = getattr(arguments, "texts", None)
        self.texts = pretrained.read_texts(Path(file)) if file else pretrained.built_in_texts()
        self.settings = Settings(threads=pinned(arguments.threads, self.machine))
        self.device = arguments.device or self.machine.devices[-1]
        self.dtype = LONG.get(arguments.dtype, arguments.dtype)
        here(self.device, self.machine)
        for length in lengths:
            Problem(q_len=length, kv_len=length, dtype=self.dtype, device=self.device)
        if max(lengths) > pretrained.LONGEST:
            raise InvalidProblem(
                f"--seq {max(lengths)} is longer than the model has places for: "
                f"{pretrained.LONGEST} at the most"
            )
        check_writable(Path(arguments.out), self.machine)

    def header(self, texts: int, options: Row) -> Row:
        """The machine, the model, the texts and the options behind the evidence."""
        digest = hashlib.sha256("\n".join(self.texts.texts).encode()).hexdigest()[:12]
        return made_here(
            self.machine,
            model={"name": pretrained.MODEL, **pretrained.versions()},
            texts={"source": self.texts.source, "digest": digest, "texts": texts},
            wanted=options,
            settings=self.settings.to_dict(),
            tuned=TunedOptions(self.machine).lines(self.device),
        )


def model(arguments: argparse.Namespace) -> int:
    """``attnbench quality model [VARIANT …]``: the exact variants first."""
    table = impls.table(arguments.table)
    variants = [table.find(name) for name in arguments.variants]
    variants = variants or [row for row in table.rows.values() if wrong_level(row) is None]
    variants.sort(key=lambda row: row.computes != "softmax")
    lengths = arguments.seq or pretrained.TrialOptions.seq
    session = Session(arguments, lengths)
    options = pretrained.TrialOptions(
        dtype=session.dtype,
        device=session.device,
        seq=tuple(sorted(set(lengths))),
        pairs_s=arguments.budget,
        margin=stored_margin(Path(arguments.out), session.machine, session.settings),
    )
    original: Row = {}

    def steps(progress: Progress) -> Generator[Row | None]:
        refusals = [pretrained.model_refusal(row, options, session.machine) for row in variants]
        guesses = [
            ORIGINAL_S * pace(),
            *(options.guess_s * (refused is None) for refused in refusals),
        ]
        left = f"about {roughly(sum(guesses))}"
        say(f"{len(variants)} variants in the model, one after another; first the original; {left}")
        progress.expect(guesses)
        progress.step("the original model")
        limited = session.device == "cpu"
        with (
            tempfile.TemporaryDirectory() as folder,
            Worker(WORKER, session.settings.threads, limited=limited) as worker,
        ):
            trial = pretrained.Trial(session.texts, options, worker, arguments.table, Path(folder))
            original.update(trial.original)
            yield None
            for variant, refused in zip(variants, refusals, strict=True):
                progress.step(variant.label)
                row = variant_row(variant) | (refused or {})
                row = trial.run_variant(variant) if refused is None else row
                if row["status"] in {*FINDINGS, Status.TIMED_OUT}:
                    progress.tell(f"{row['variant']}: {status_words(row)}", "yellow")
                yield row

    rows, stopped = _collect(steps, session.device)
    header = session.header(len(session.texts.texts), asdict(options)) | {"original": original}
    ranked = model_results.with_ranks(rows, original) if rows else []
    return _keep(arguments, header, model_results.with_verdicts(ranked), stopped)


def real(arguments: argparse.Namespace) -> int:
    """``attnbench quality real [VARIANT …]``"""
    table = impls.table(arguments.table)
    for name in arguments.variants:
        table.find(name)
    session = Session(arguments, [arguments.seq])
    options = {
        "seq": arguments.seq,
        "batch": arguments.batch,
        "dtype": session.dtype,
        "device": session.device,
    }

    def steps(progress: Progress) -> Generator[Row | None]:
        progress.tell(f"first the model's layers are read; about {roughly(CAPTURE_S)}")
        progress.at(0, 0, CAPTURE_S, "the model's layers are read")
        with tempfile.TemporaryDirectory() as folder:
            sources = pretrained.capture_inputs(
                session.texts, **options, folder=Path(folder), settings=session.settings
            )
            plan = pretrained.plan_sources(table, arguments.variants, sources, session.machine)
            guesses = [cell.guess_s for cell in plan.cells]
            progress.tell(plan.sentence(starting_s() + sum(guesses)))
            yield None
            guesses[0] += starting_s()
            progress.expect(guesses)
            progress.step(sources[0][0])
            with LocalEngine(session.settings, limited=session.device == "cpu") as engine:
                for row in pretrained.judge_sources(plan, sources, engine, arguments.seed):
                    name = f"{row['variant']} on {row['source']}"
                    if row["status"] not in ("measured", *NOT_RUN):
                        progress.tell(f"{name}: {status_words(row)}", "yellow")
                    progress.step(name)
                    yield row

    rows, stopped = _collect(steps, session.device)
    header = session.header(arguments.batch, {**options, "seed": arguments.seed})
    return _keep(arguments, header, rows, stopped)


def recall(arguments: argparse.Namespace) -> int:
    """``attnbench quality recall [VARIANT …]``"""
    machine = this_machine()
    name = arguments.preset or ("gpu" if "cuda" in machine.devices else "cpu")
    if name not in training.PRESETS:
        choices = ", ".join(training.PRESETS)
        raise CantBeDone(f"there is no preset {name!r}; the presets are {choices}")
    preset, first_seed = training.PRESETS[name], arguments.seed or 0
    settings = training.preset_settings(
        preset,
        seq=arguments.seq,
        width=arguments.width,
        steps=arguments.steps,
        pairs=arguments.pairs and tuple(sorted(set(arguments.pairs))),
    )
    plan = training.plan_trainings(
        impls.table(arguments.table),
        arguments.variants or preset.variants,
        settings,
        machine,
        seeds=range(first_seed, first_seed + (arguments.seeds or training.SEEDS)),
        threads=pinned(arguments.threads or 1, machine),
        seconds=arguments.seconds,
    )
    check_writable(Path(arguments.out), machine)
    setting, left_s = settings[0], sum(plan.guesses())
    say(
        f"{plan.count} trainings: variants {len(plan.variants[setting])}, seeds "
        f"{len(plan.seeds)}, threads {plan.threads}; {', '.join(s.slug for s in settings)}; pairs "
        f"{setting.pairs}; about {roughly(left_s)}"
    )
    rows, stopped = _collect(plan.steps, setting.device)
    header = made_here(
        machine,
        baseline=training.BASELINE,
        seeds=list(plan.seeds),
        threads=plan.threads,
        budgets=plan.budgets,
        tuned=TunedOptions(machine).lines(setting.device),
    )
    return _keep(arguments, header, rows, stopped)


FORMS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "recall": recall,
    "model": model,
    "real": real,
}
