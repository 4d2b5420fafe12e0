"""``attnbench quality FORM``: what a variant costs a model, and the evidence that is kept of it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.command.terminal import INTERRUPTED, say
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.core.evidence import Evidence
    from attnbench.core.machine import Machine
    from attnbench.core.settings import Settings
    from attnbench.features.quality.pretrained import Texts
    from attnbench.features.quality.recall import Trainings
    from attnbench.report.figures.sheet import Drawn
    from attnbench.report.figures.style import Looks
    from attnbench.report.tables import Table


Row = dict[str, Any]


def quality(args: argparse.Namespace) -> int:
    """Run a form, or show what an earlier call of it kept."""
    if args.form not in FORMS:
        what = f"there is no quality {args.asked!r}" if args.asked else "quality of what kind?"
        *some, last = (f"attnbench quality {form}" for form in FORMS)
        raise CantBeDone(f"{what}; there are {', '.join(some)} and {last}")
    if args.source is None:
        return FORMS[args.form](args)
    from attnbench.core.disk import StoreError
    from attnbench.core.evidence import read_evidence

    file = Path(args.source)
    found = read_evidence(file)
    if found.kind != args.form:
        raise StoreError(
            f"{file} is evidence of {found.kind}, not of {args.form}: give a file that 'attnbench "
            f"quality {args.form}' wrote, results/*/evidence/*-{args.form}.json"
        )
    try:
        return _present(found, file, as_json=args.json, drawn=found.kind == "recall")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StoreError(f"{file} is damaged ({why}): what it holds can't be shown") from None


def _keep(args: argparse.Namespace, made: Mapping[str, Any], rows: Sequence[Row]) -> int:
    """Save evidence with its picture and show it; the exit status."""
    from attnbench.core.evidence import Evidence, save_evidence

    found = Evidence(args.form, made, rows)
    file = save_evidence(Path(args.out), found)
    status = _present(found, file, as_json=args.json, drawn=True)
    return INTERRUPTED if found.partial else status


def _present(found: Evidence, file: Path, *, as_json: bool, drawn: bool) -> int:
    """Print evidence, and draw a picture beside it where its kind has one; the exit status.

    1 where a variant is wrong or did not survive; 2 where none could be tried.
    """
    from attnbench.core.disk import write_whole
    from attnbench.features.quality.recall_view import recall_conclusions

    if not as_json:
        show(found)
    elif found.kind == "recall":
        print(json.dumps({**asdict(found), "conclusions": recall_conclusions(found)}))
    else:
        print(file.read_text(), end="")
    if found.partial and found.kind != "recall":
        say("stopped before its end: this is a part of what was asked")
    if drawn:
        words, picture = f"kept in {file}", draw(found)
        try:
            if picture is not None:
                write_whole(file.with_suffix(".svg"), picture.svg.encode(), sync=False)
                write_whole(file.with_suffix(".png"), picture.png, sync=False)
                words += f"; drawn in {file.with_suffix('.png')}"
        except OSError as error:
            say(f"note: {file.with_suffix('.png')} could not be written: {error.strerror}")
        say(words)
    statuses = {row["status"] for row in found.rows}
    if statuses & {"wrong", "failed", "crashed", "timed_out"}:
        return 1
    if found.kind != "recall" and "measured" not in statuses:
        say("attnbench: nothing was measured, for the reasons said")
        return 2
    return 0


class EvidenceText(NamedTuple):
    """All that is said of a file of evidence."""

    conclusions: Sequence[str]
    tables: Sequence[Table]
    lines: Sequence[str]
    """What has no figures and why, and what the words of the tables mean."""


def shown(found: Evidence, named: int | None = None) -> EvidenceText:
    """``named``: of variants that tie, so many are named."""
    from attnbench.features.quality import model_results, model_view, recall_view

    some: list[str] = []
    if found.kind == "recall":
        by_setting = recall_view.recall_conclusions(found).items()
        several = len(by_setting) > 1
        some = [f"in {slug}: " * several + line for slug, each in by_setting for line in each]
        tables, lines = recall_view.recall_tables(found), recall_view.recall_lines(found)
    elif found.kind == "model":
        some = list(model_results.conclude(found.rows, found.made["original"]))
        tables = model_view.model_tables(found, named or model_results.NAMED)
        lines = list(model_view.model_lines(found))
    else:
        tables, lines = list(model_view.real_tables(found)), list(model_view.real_lines(found))
    return EvidenceText([f"{line[0].upper()}{line[1:]}." for line in some], tables, lines)


def show(found: Evidence) -> None:
    """Print it."""
    from rich.markup import escape

    from attnbench.report.tables import FAINT, console
    from attnbench.report.tables import show as show_table

    conclusions, tables, lines = shown(found)
    out = console()
    for table in tables:
        show_table(table)
    out.print()
    for line in conclusions:
        out.print(escape(line))
    for line in lines:
        out.print(escape(line), style=FAINT)


def draw(found: Evidence, known: Looks | None = None) -> Drawn | None:
    """The figure of evidence; None where its kind has none, or where there is nothing to show.

    ``known``: looks of a page that it lies on, so that a variant is the same everywhere there.
    """
    from attnbench.features.quality import model_view, recall_view

    kinds = {"model": model_view.draw_model, "recall": recall_view.draw_recall}
    return kinds[found.kind](found, known or {}) if found.kind in kinds else None


# ---- the trained model ---------------------------------------------------------------------------


class Start(NamedTuple):
    """What both forms with the trained model need before they begin."""

    machine: Machine
    settings: Settings
    texts: Texts
    device: str
    dtype: str

    def facts(self, texts: int, wanted: Mapping[str, Any]) -> Row:
        """What is needed to make the evidence again."""
        from attnbench.core.evidence import made_here
        from attnbench.features.quality import pretrained

        digest = hashlib.sha256("\n".join(self.texts.texts).encode()).hexdigest()[:12]
        return made_here(
            self.machine,
            model={"name": pretrained.MODEL, **pretrained.versions()},
            texts={"source": self.texts.source, "digest": digest, "texts": texts},
            wanted=wanted,
            settings=self.settings.to_dict(),
        )


def _start(args: argparse.Namespace, lengths: Sequence[int]) -> Start:
    """Raise :class:`CantBeDone` for a missing model, bad texts, device, dtype or length."""
    from attnbench.core.evidence import check_writable
    from attnbench.core.machine import this_machine
    from attnbench.core.settings import Settings
    from attnbench.features.quality import pretrained
    from attnbench.sweep.plan import LONG, here
    from attnbench.sweep.start import pinned
    from impls.problem import InvalidProblem, Problem

    machine = this_machine()
    pretrained.model_folder()
    file = getattr(args, "texts", None)
    texts = pretrained.read_texts(Path(file)) if file else pretrained.built_in_texts()
    settings = Settings(threads=pinned(args.threads, machine))
    device, dtype = args.device or machine.devices[-1], LONG.get(args.dtype, args.dtype)
    here(device, machine)
    for length in lengths:
        Problem(q_len=length, kv_len=length, dtype=dtype, device=device)
    if max(lengths) > pretrained.LONGEST:
        raise InvalidProblem(
            f"--seq {max(lengths)} is longer than the model has places for: {pretrained.LONGEST} "
            "at the most"
        )
    check_writable(Path(args.out), machine)
    return Start(machine, settings, texts, device, dtype)


def _until_interrupted(steps: Generator[Row | None]) -> tuple[list[Row], bool]:
    """The rows until the end or Ctrl-C, which may also end it at a None; whether it was Ctrl-C."""
    from attnbench.sweep.sweep import Interrupt

    interrupt, rows = Interrupt(say), list[Row]()
    try:
        with interrupt.watching(), closing(steps):
            for row in steps:
                rows += [] if row is None else [row]
                if interrupt.asked:
                    return rows, True
    except KeyboardInterrupt:
        return rows, True
    return rows, False


LAYER_TEXTS = 4
"""Long texts on which each layer is tried alone."""
NOTHING = "attnbench: stopped before anything was tried; nothing is kept"


def model(args: argparse.Namespace) -> int:
    """``attnbench quality model [VARIANT …]``: the exact variants first."""
    import impls
    from attnbench.core.evidence import stored_margin
    from attnbench.core.lock import lock_for
    from attnbench.core.process import Worker
    from attnbench.features.quality import pretrained
    from attnbench.features.quality.model_results import with_ranks, with_verdicts
    from attnbench.features.quality.model_view import progress_line
    from attnbench.models import wrong_level

    table = impls.table(args.table)
    variants = [table.find(name) for name in args.variants]
    variants = variants or [row for row in table.rows.values() if wrong_level(row) is None]
    variants.sort(key=lambda row: row.computes != "softmax")
    lengths = args.seq or [256]
    start = _start(args, lengths)
    threads = start.settings.threads
    options = pretrained.TrialOptions(
        dtype=start.dtype,
        device=start.device,
        seq=tuple(sorted(set(lengths))),
        pairs_s=args.budget or 3.0,
        margin=stored_margin(Path(args.out), start.machine, threads),
        layers=0 if args.no_layers else LAYER_TEXTS,
        distil=args.distil,
        train=args.train,
        seed=args.seed,
    )

    def tried(trial: pretrained.Trial) -> Generator[Row | None]:
        count = len(variants)
        say(f"{count} variants in the model, each in a process of its own; first the original")
        trial.run_original()
        yield None
        for number, variant in enumerate(variants, 1):
            row = {"variant": variant.label, "family": variant.family, "computes": variant.computes}
            refused = pretrained.refusal(variant, options, start.machine)
            row = trial.run_variant(variant) if refused is None else {**row, **refused}
            if row["status"] != "unavailable":
                say(f"[{number}/{count}] {progress_line(row)}")
            yield row

    with (
        tempfile.TemporaryDirectory() as folder,
        lock_for([start.device]),
        Worker(pretrained.WORKER, threads, limited=start.device == "cpu") as worker,
    ):
        trial = pretrained.Trial(start.texts, options, worker, args.table, Path(folder))
        rows, stopped = _until_interrupted(tried(trial))
    if not rows:
        say(NOTHING)
        return INTERRUPTED
    rows = with_verdicts(with_ranks(rows, trial.original))
    facts = start.facts(len(start.texts.texts), asdict(options))
    return _keep(args, {**facts, "original": trial.original, "stopped": stopped}, rows)


def real(args: argparse.Namespace) -> int:
    """``attnbench quality real [VARIANT …]``"""
    import impls
    from attnbench.core.lock import lock_for
    from attnbench.features.quality.pretrained import capture_inputs, judge_sources, plan_sources
    from attnbench.sweep.engine import LocalEngine

    table = impls.table(args.table)
    for name in args.variants:
        table.find(name)
    start = _start(args, [args.seq])
    device, on_cpu = start.device, start.device == "cpu"

    def judged(folder: Path) -> Generator[Row | None]:
        sources = capture_inputs(
            start.texts, args.seq, args.batch, start.dtype, device, folder, start.settings
        )
        plan = plan_sources(table, args.variants, sources, start.machine)
        say(plan.sentence())
        yield None
        source = None
        with LocalEngine(start.settings, limited=on_cpu) as engine:
            for number, row in enumerate(judge_sources(plan, sources, engine, args.seed)):
                if row["status"] not in ("measured", "refused", "unavailable"):
                    say(f"{row['variant']} on {row['source']}: {row['status']}: {row['reason']}")
                if row["source"] != source:
                    source = row["source"]
                    say(f"[{number}/{len(plan.cells)}] {source}")
                yield row

    with tempfile.TemporaryDirectory() as folder, lock_for([device]):
        rows, stopped = _until_interrupted(judged(Path(folder)))
    if not rows:
        say(NOTHING)
        return INTERRUPTED
    wanted = {"seq": args.seq, "batch": args.batch, "dtype": start.dtype, "device": device}
    facts = start.facts(args.batch, {**wanted, "seed": args.seed})
    return _keep(args, {**facts, "stopped": stopped}, rows)


# ---- models trained from scratch -----------------------------------------------------------------


def recall(args: argparse.Namespace) -> int:
    """``attnbench quality recall [VARIANT …]``"""
    from attnbench.core.evidence import Evidence, check_writable, made_here
    from attnbench.core.lock import lock_for
    from attnbench.core.machine import this_machine
    from attnbench.features.quality.recall_view import progress_words

    machine = this_machine()
    plan, stopped = _plan_trainings(args, machine), False
    check_writable(Path(args.out), machine)
    first = plan.settings[0]
    say(
        f"{plan.count} trainings: variants {len(plan.variants[first])}, seeds {len(plan.seeds)}, "
        f"threads {plan.threads}; {', '.join(s.slug for s in plan.settings)}; pairs {first.pairs}"
    )
    made = made_here(
        machine,
        baseline=plan.baseline.label,
        scan=args.scan,
        seeds=list(plan.seeds),
        threads=plan.threads,
        trainings=plan.count,
    )
    try:
        with lock_for([first.device]):
            plan.run(say, seconds=args.seconds, timed=not args.scan)
    except KeyboardInterrupt:
        stopped = True
    if not any(row["curve"] for row in plan.rows):
        if stopped:
            say(NOTHING)
        return INTERRUPTED if stopped else 2
    made |= {"budgets": plan.budgets, "stopped": stopped}
    if stopped:
        words = progress_words(Evidence("recall", made, plan.rows))
        say(f"{words}; what was trained is kept")
    return _keep(args, made, plan.rows)


def _plan_trainings(args: argparse.Namespace, machine: Machine) -> Trainings:
    import impls
    from attnbench.features.quality import recall as trainings
    from attnbench.sweep.start import pinned

    name = args.preset or ("gpu" if "cuda" in machine.devices else "cpu")
    if name not in trainings.PRESETS:
        there = ", ".join(trainings.PRESETS)
        raise CantBeDone(f"there is no preset {name!r}; the presets are {there}")
    preset, pairs = trainings.PRESETS[name], args.pairs and tuple(sorted(set(args.pairs)))
    settings = trainings.preset_settings(
        preset,
        seq=args.seq or (),
        width=args.width or (),
        scan=args.scan,
        pairs=pairs,
        steps=args.steps,
    )
    names, count = args.variants, args.seeds or preset.seeds
    if args.scan:
        names, count = names or ("sdpa", "linear.elu"), args.seeds or 1
    seeds = range(first := args.seed or 0, first + count)
    threads = pinned(args.threads or 1, machine)
    table = impls.table(args.table)
    return trainings.plan_trainings(
        table, names, preset, settings, machine, seeds=seeds, threads=threads
    )


FORMS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "recall": recall,
    "model": model,
    "real": real,
}
