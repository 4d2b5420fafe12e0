"""``attnbench quality FORM``: what a variant costs a model, and the evidence that is kept of it."""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.markup import escape

import impls
from attnbench.command.progress import Progress
from attnbench.command.terminal import INTERRUPTED, say
from attnbench.core import evidence
from attnbench.core.disk import StoreError, write_whole
from attnbench.core.evidence import Evidence, check_writable, made_here
from attnbench.core.format import roughly
from attnbench.core.lock import lock_for
from attnbench.core.machine import Machine, pace, this_machine
from attnbench.core.process import Worker
from attnbench.core.record import FINDINGS, Status
from attnbench.core.settings import Settings
from attnbench.core.tuned import TunedOptions
from attnbench.features.quality import model_results, model_view, pretrained, recall_view
from attnbench.features.quality import recall as training
from attnbench.models import wrong_level
from attnbench.report import tidy
from attnbench.report.figures.sheet import Plot
from attnbench.report.tables import FAINT, Table, console
from attnbench.report.tables import show as show_table
from attnbench.sweep.compare import starting_s
from attnbench.sweep.engine import LocalEngine
from attnbench.sweep.plan import LONG, here
from attnbench.sweep.start import pinned
from attnbench.sweep.sweep import Interrupt
from impls.errors import CantBeDone
from impls.problem import InvalidProblem, Problem

Row = dict[str, Any]
ORIGINAL_S, CAPTURE_S, DRAWING_S = 28.0, 8.0, 1.5
"""For the original model, before its variants; for the inputs of its layers; for the end."""


def quality(given: argparse.Namespace) -> int:
    """Run a form, or show what an earlier call of it kept."""
    if given.form not in FORMS:
        what = f"there is no quality {given.asked!r}" if given.asked else "missing subcommand"
        *some, last = FORMS
        raise CantBeDone(
            f"{what}: give {', '.join(some)} or {last}, as in 'attnbench quality {last}'"
        )
    if given.source is None:
        return FORMS[given.form](given)
    file = Path(given.source)
    found = evidence.read_evidence(file)
    if found.kind != given.form:
        raise StoreError(
            f"{file} is evidence of {found.kind}, not of {given.form}: give a file that 'attnbench "
            f"quality {given.form}' wrote, results/*/evidence/*-{given.form}.json"
        )
    try:
        return _present(found, file, as_json=given.json, as_csv=given.csv)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StoreError(f"{file} is damaged ({why}): what it holds can't be shown") from None


def _keep(given: argparse.Namespace, made: Mapping[str, Any], rows: Sequence[Row]) -> int:
    """Keep evidence with its picture, where its kind has one, and print it; the exit status."""
    if not rows:
        say(NOTHING)
        return INTERRUPTED
    found = Evidence(given.form, made, rows)
    file = evidence.save_evidence(Path(given.out), found)
    status = _present(found, file, as_json=given.json, as_csv=given.csv)
    picture, words = draw(found), ""
    try:
        if picture is not None:
            write_whole(file.with_suffix(".svg"), picture.svg.encode(), sync=False)
            write_whole(file.with_suffix(".png"), picture.png, sync=False)
            words = f"; drawn in {file.with_suffix('.png')}"
    except OSError as error:
        say(f"note: {file.with_suffix('.png')} could not be written: {error.strerror}")
    say(f"kept in {file}{words}")
    return INTERRUPTED if found.partial else status


def _present(found: Evidence, file: Path, *, as_json: bool, as_csv: bool) -> int:
    """Print evidence: 1 where a variant is wrong or died, 2 where none ran."""
    if as_csv:
        tidy.show(ROWS[found.kind](found))
    elif not as_json:
        show(found)
    elif found.kind == "recall":
        conclusions = recall_view.recall_conclusions(found)
        print(json.dumps({**asdict(found), "conclusions": conclusions}))
    else:
        print(file.read_text(), end="")
    if found.partial and found.kind != "recall":
        say("stopped before its end: this is a part of what was asked")
    statuses = {row["status"] for row in found.rows}
    if statuses & {*FINDINGS, Status.TIMED_OUT}:
        return 1
    if found.kind != "recall" and "measured" not in statuses:
        say("attnbench: nothing was measured, for the reasons said")
        return 2
    return 0


def shown(
    found: Evidence, named: int = model_results.NAMED
) -> tuple[list[str], list[Table], list[str]]:
    """Conclusions, tables, and what they mean; of variants that tie, ``named`` are named."""
    some: list[str] = []
    if found.kind == "recall":
        by_setting = recall_view.recall_conclusions(found).items()
        several = len(by_setting) > 1
        some = [f"in {slug}: " * several + line for slug, each in by_setting for line in each]
        tables, lines = recall_view.recall_tables(found), recall_view.recall_lines(found)
    elif found.kind == "model":
        some = list(model_results.conclude(found.rows, found.made["original"]))
        tables = [table for table in model_view.model_tables(found, named) if table.rows]
        lines = list(model_view.model_lines(found))
    else:
        tables, lines = list(model_view.real_tables(found)), list(model_view.real_lines(found))
    return [f"{model_view.sentence(line)}." for line in some], tables, lines


def show(found: Evidence) -> None:
    """Print it."""
    conclusions, tables, lines = shown(found)
    out = console()
    for table in tables:
        show_table(table)
    out.print()
    for line in conclusions:
        out.print(escape(line))
    for line in lines:
        out.print(escape(line), style=FAINT)


def draw(found: Evidence) -> Plot | None:
    """The figure of evidence; None where its kind has none, or where there is nothing to show."""
    kinds = {"model": model_view.draw_model, "recall": recall_view.draw_recall}
    return kinds[found.kind](found) if found.kind in kinds else None


def quality_for_page(found: Evidence) -> Row:
    """What a report shows of evidence: the table that answers first, and every tie named."""
    conclusions, tables, lines = shown(found, 1000)
    tables.sort(key=lambda each: each.title != model_view.LEVELS_TITLE)
    figure = draw(found)
    return {"conclusions": conclusions, "tables": tables, "lines": lines, "figure": figure}


class Start:
    """What both forms with the trained model need before they begin."""

    def __init__(self, given: argparse.Namespace, lengths: Sequence[int]) -> None:
        """Raise :class:`CantBeDone` for a missing model, bad texts, device, dtype or length."""
        self.machine = this_machine()
        pretrained.model_folder()
        file = getattr(given, "texts", None)
        self.texts = pretrained.read_texts(Path(file)) if file else pretrained.built_in_texts()
        self.settings = Settings(threads=pinned(given.threads, self.machine))
        self.device = given.device or self.machine.devices[-1]
        self.dtype = LONG.get(given.dtype, given.dtype)
        here(self.device, self.machine)
        for length in lengths:
            Problem(q_len=length, kv_len=length, dtype=self.dtype, device=self.device)
        if max(lengths) > pretrained.LONGEST:
            raise InvalidProblem(
                f"--seq {max(lengths)} is longer than the model has places for: "
                f"{pretrained.LONGEST} at the most"
            )
        check_writable(Path(given.out), self.machine)

    def take(
        self, steps: Callable[[Path, Progress], Generator[Row | None]], texts: int, wanted: Row
    ) -> tuple[list[Row], Row]:
        """The rows of ``steps`` until Ctrl-C, which may end it at a None; and how they are made."""
        rows, stopped = list[Row](), False
        try:
            with (
                tempfile.TemporaryDirectory() as folder,
                lock_for([self.device]),
                Progress(after_s=DRAWING_S) as progress,
                (interrupt := Interrupt(progress.tell)).watching(),
                closing(steps(Path(folder), progress)) as taken,
            ):
                for row in taken:
                    rows += [] if row is None else [row]
                    if stopped := interrupt.asked:
                        break
        except KeyboardInterrupt:
            stopped = True
        digest = hashlib.sha256("\n".join(self.texts.texts).encode()).hexdigest()[:12]
        return rows, made_here(
            self.machine,
            model={"name": pretrained.MODEL, **pretrained.versions()},
            texts={"source": self.texts.source, "digest": digest, "texts": texts},
            wanted=wanted,
            settings=self.settings.to_dict(),
            tuned=TunedOptions(self.machine).lines(self.device),
            stopped=stopped,
        )


LAYER_TEXTS = 4
"""Long texts on which each layer is tried alone."""
NOTHING = "attnbench: stopped before anything was tried; nothing is kept"


def model(given: argparse.Namespace) -> int:
    """``attnbench quality model [VARIANT …]``: the exact variants first."""
    table = impls.table(given.table)
    variants = [table.find(name) for name in given.variants]
    variants = variants or [row for row in table.rows.values() if wrong_level(row) is None]
    variants.sort(key=lambda row: row.computes != "softmax")
    lengths = given.seq or pretrained.TrialOptions.seq
    start = Start(given, lengths)
    threads, count = start.settings.threads, len(variants)
    options = pretrained.TrialOptions(
        dtype=start.dtype,
        device=start.device,
        seq=tuple(sorted(set(lengths))),
        pairs_s=given.budget,
        margin=evidence.stored_margin(Path(given.out), start.machine, start.settings),
        layers=0 if given.no_layers else LAYER_TEXTS,
        distil=given.distil,
        train=given.train,
        seed=given.seed,
    )
    original: Row = {}

    def steps(folder: Path, progress: Progress) -> Generator[Row | None]:
        limited = start.device == "cpu"
        refusals = [pretrained.refusal(row, options, start.machine) for row in variants]
        guesses = [
            ORIGINAL_S * pace(),
            *(options.guess_s * (refused is None) for refused in refusals),
        ]
        left = f"about {roughly(sum(guesses))}"
        say(f"{count} variants in the model, one after another; first the original; {left}")
        progress.expect(guesses)
        progress.step("the original model")
        with Worker(pretrained.WORKER, threads, limited=limited) as worker:
            trial = pretrained.Trial(start.texts, options, worker, given.table, folder)
            original.update(trial.original)
            yield None
            for variant, refused in zip(variants, refusals, strict=True):
                progress.step(variant.label)
                what = {"variant": variant.label, "family": variant.family}
                row = what | {"computes": variant.computes} | (refused or {})
                row = trial.run_variant(variant) if refused is None else row
                if row["status"] in {*FINDINGS, Status.TIMED_OUT}:
                    words = f"{row['variant']}: {model_results.status_words(row)}"
                    progress.tell(words, "yellow")
                yield row

    rows, made = start.take(steps, len(start.texts.texts), asdict(options))
    made["original"] = original
    ranked = model_results.with_ranks(rows, original) if rows else []
    return _keep(given, made, model_results.with_verdicts(ranked))


def real(given: argparse.Namespace) -> int:
    """``attnbench quality real [VARIANT …]``"""
    table = impls.table(given.table)
    for name in given.variants:
        table.find(name)
    start = Start(given, [given.seq])
    wanted = {"seq": given.seq, "batch": given.batch, "dtype": start.dtype, "device": start.device}

    def steps(folder: Path, progress: Progress) -> Generator[Row | None]:
        progress.tell(f"first the model's layers are read; about {roughly(CAPTURE_S)}")
        progress.at(0, 0, CAPTURE_S, "the model's layers are read")
        sources = pretrained.capture_inputs(
            start.texts, **wanted, folder=folder, settings=start.settings
        )
        plan = pretrained.plan_sources(table, given.variants, sources, start.machine)
        guesses = [cell.guess_s for cell in plan.cells]
        progress.tell(plan.sentence(starting_s() + sum(guesses)))
        yield None
        guesses[0] += starting_s()
        progress.expect(guesses)
        progress.step(sources[0][0])
        with LocalEngine(start.settings, limited=start.device == "cpu") as engine:
            for row in pretrained.judge_sources(plan, sources, engine, given.seed):
                what = f"{row['variant']} on {row['source']}"
                if row["status"] not in ("measured", "refused", "unavailable"):
                    progress.tell(f"{what}: {row['status']}: {row['reason']}", "yellow")
                progress.step(what)
                yield row

    rows, made = start.take(steps, given.batch, {**wanted, "seed": given.seed})
    return _keep(given, made, rows)


def recall(given: argparse.Namespace) -> int:
    """``attnbench quality recall [VARIANT …]``"""
    machine = this_machine()
    plan, stopped = _plan_trainings(given, machine), False
    check_writable(Path(given.out), machine)
    first, left_s = plan.settings[0], sum(plan.guesses(machine))
    say(
        f"{plan.count} trainings: variants {len(plan.variants[first])}, seeds {len(plan.seeds)}, "
        f"threads {plan.threads}; {', '.join(s.slug for s in plan.settings)}; pairs {first.pairs}; "
        f"about {roughly(left_s + DRAWING_S)}"
    )
    made = made_here(
        machine,
        baseline=plan.baseline.label,
        scan=given.scan,
        seeds=list(plan.seeds),
        threads=plan.threads,
        trainings=plan.count,
        tuned=TunedOptions(machine).lines(first.device),
    )
    try:
        with lock_for([first.device]), Progress(after_s=DRAWING_S) as progress:
            plan.run(progress, machine)
    except KeyboardInterrupt:
        stopped = True
    if not any(row["curve"] for row in plan.rows):
        if stopped:
            say(NOTHING)
        return INTERRUPTED if stopped else 2
    made |= {"budgets": plan.budgets, "stopped": stopped}
    if stopped:
        words = recall_view.progress_words(Evidence("recall", made, plan.rows))
        say(f"{words}; what was trained is kept")
    return _keep(given, made, plan.rows)


def _plan_trainings(given: argparse.Namespace, machine: Machine) -> training.Trainings:
    name = given.preset or ("gpu" if "cuda" in machine.devices else "cpu")
    if name not in training.PRESETS:
        there = ", ".join(training.PRESETS)
        raise CantBeDone(f"there is no preset {name!r}; the presets are {there}")
    preset, scan, first = training.PRESETS[name], given.scan, given.seed or 0
    asked = {x: getattr(given, x) for x in ("seq", "width", "scan", "steps")}
    pairs = given.pairs and tuple(sorted(set(given.pairs)))
    return training.plan_trainings(
        impls.table(given.table),
        given.variants or (("sdpa", "linear.elu") if scan else preset.variants),
        training.preset_settings(preset, **asked, pairs=pairs),
        machine,
        seeds=range(first, first + (given.seeds or (1 if scan else preset.seeds))),
        threads=pinned(given.threads or 1, machine),
        seconds=given.seconds,
        timed=not scan,
    )


ROWS: Mapping[str, Callable[[Evidence], Iterable[Row]]] = {
    "recall": recall_view.csv_rows,
    "model": model_view.model_rows,
    "real": model_view.real_rows,
}
FORMS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "recall": recall,
    "model": model,
    "real": real,
}
