"""``attnbench quality FORM``: what a variant costs a model, and the evidence that is kept of it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
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
    from attnbench.features.quality.pretrained import Texts, TrialOptions
    from attnbench.features.quality.recall import TrainingPlan
    from impls.spec import Variant


Row = dict[str, Any]
LAYER_TEXTS = 4
"""Long texts on which each layer is tried alone."""
PAIRS_S = 3.0
SEQ = (256,)
SCAN = ("sdpa", "linear.elu")
"""The variants that a scan tells apart, unless others are named."""


def quality(args: argparse.Namespace) -> int:
    """Run a form, or show what an earlier call of it kept."""
    if args.form not in FORMS:
        what = f"there is no quality {args.asked!r}" if args.asked else "quality of what kind?"
        *some, last = (f"attnbench quality {form}" for form in FORMS)
        raise CantBeDone(f"{what}; there are {', '.join(some)} and {last}")
    return FORMS[args.form](args) if args.source is None else _show_again(args)


def _show_again(args: argparse.Namespace) -> int:
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
        _show(found, file, as_json=args.json)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StoreError(f"{file} is damaged ({why}): what it holds can't be shown") from None
    if found.kind == "recall":
        _draw(found, file)
    return _exit_status(found)


def _keep(args: argparse.Namespace, made: Mapping[str, Any], rows: Sequence[Row]) -> int:
    """Save evidence with its picture and show it; the exit status."""
    from attnbench.core.evidence import Evidence, save_evidence

    found = Evidence(args.form, made, rows)
    file = save_evidence(Path(args.out), found)
    _show(found, file, as_json=args.json)
    _draw(found, file)
    return INTERRUPTED if found.partial else _exit_status(found)


def _show(found: Evidence, file: Path, *, as_json: bool) -> None:
    from attnbench.features.quality import recall_results, view

    if as_json and found.kind == "recall":
        conclusions = recall_results.recall_conclusions(found)
        print(json.dumps({**asdict(found), "conclusions": conclusions}))
    elif as_json:
        print(file.read_text(), end="")
    else:
        view.show(found)
    if found.partial and found.kind != "recall":
        say("stopped before its end: this is a part of what was asked")


def _draw(found: Evidence, file: Path) -> None:
    """Draw a picture beside the evidence where its kind has one."""
    from attnbench.features.quality import pictures

    picture = None
    try:
        picture = pictures.draw_beside(found, file)
    except OSError as error:
        say(f"note: {file.with_suffix('.png')} could not be written: {error.strerror}")
    say(f"kept in {file}" + (f"; drawn in {picture}" if picture else ""))


def _exit_status(found: Evidence) -> int:
    """1 where a variant is wrong or did not survive; 2 where none could be tried."""
    statuses = {row["status"] for row in found.rows}
    if statuses & {"wrong", "failed", "crashed", "timed_out"}:
        return 1
    if found.kind != "recall" and "measured" not in statuses:
        say("attnbench: nothing was measured, for the reasons said")
        return 2
    return 0


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

        return made_here(
            self.machine,
            model={"name": pretrained.MODEL, **pretrained.versions()},
            texts={"source": self.texts.source, "digest": self.texts.digest, "texts": texts},
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


NOTHING = "attnbench: stopped before anything was tried; nothing is kept"


def model(args: argparse.Namespace) -> int:
    """``attnbench quality model [VARIANT …]``"""
    import impls
    from attnbench.core.evidence import stored_margin
    from attnbench.core.lock import lock_for
    from attnbench.core.process import Worker
    from attnbench.features.quality import pretrained
    from attnbench.features.quality.model_results import with_ranks, with_verdicts

    variants = pretrained.choose_rows(impls.table(args.table), args.variants)
    lengths = args.seq or SEQ
    start = _start(args, lengths)
    threads = start.settings.threads
    options = pretrained.TrialOptions(
        dtype=start.dtype,
        device=start.device,
        seq=tuple(sorted(set(lengths))),
        pairs_s=args.budget or PAIRS_S,
        margin=stored_margin(Path(args.out), start.machine, threads),
        layers=0 if args.no_layers else LAYER_TEXTS,
        distil=args.distil,
        train=args.train,
        seed=args.seed,
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(lock_for([start.device]))
        on_cpu = start.device == "cpu"
        worker = Worker(pretrained.WORKER, threads, limited=on_cpu, forks=True)
        stack.enter_context(worker)
        trial = pretrained.Trial(start.texts, options, worker, args.table, folder)
        rows, stopped = _until_interrupted(_try_variants(trial, variants, options, start.machine))
    if not rows:
        say(NOTHING)
        return INTERRUPTED
    rows = with_verdicts(with_ranks(rows, trial.original))
    facts = start.facts(len(start.texts.texts), asdict(options))
    return _keep(args, {**facts, "original": trial.original, "stopped": stopped}, rows)


def _try_variants(
    trial: Any, variants: Sequence[Variant], options: TrialOptions, machine: Machine
) -> Generator[Row | None]:
    """A row a variant, after a None for the original."""
    from attnbench.features.quality.model_view import progress_line
    from attnbench.features.quality.pretrained import refusal

    say(f"{len(variants)} variants in the model, each in a process of its own; first the original")
    trial.run_original()
    yield None
    for number, variant in enumerate(variants, 1):
        row = {"variant": variant.label, "family": variant.family, "computes": variant.computes}
        refused = refusal(variant, options, machine)
        row = trial.run_variant(variant) if refused is None else {**row, **refused}
        if row["status"] != "unavailable":
            say(f"[{number}/{len(variants)}] {progress_line(row)}")
        yield row


def real(args: argparse.Namespace) -> int:
    """``attnbench quality real [VARIANT …]``"""
    import impls
    from attnbench.core.lock import lock_for

    for name in args.variants:
        impls.table(args.table).find(name)
    start = _start(args, [args.seq])
    with tempfile.TemporaryDirectory() as folder, lock_for([start.device]):
        rows, stopped = _until_interrupted(_judge_layers(args, start, Path(folder)))
    if not rows:
        say(NOTHING)
        return INTERRUPTED
    wanted = {"seq": args.seq, "batch": args.batch, "dtype": start.dtype, "device": start.device}
    facts = start.facts(args.batch, {**wanted, "seed": args.seed})
    return _keep(args, {**facts, "stopped": stopped}, rows)


def _judge_layers(args: argparse.Namespace, start: Start, folder: Path) -> Generator[Row | None]:
    """A row a cell, after a None once the layers are read."""
    import impls
    from attnbench.features.quality.pretrained import capture_inputs, judge_sources, plan_sources
    from attnbench.sweep.engine import LocalEngine

    sources = capture_inputs(
        start.texts, args.seq, args.batch, start.dtype, start.device, folder, start.settings
    )
    plan = plan_sources(impls.table(args.table), args.variants, sources, start.machine)
    say(plan.sentence())
    yield None
    with LocalEngine(start.settings, limited=start.device == "cpu") as engine:
        source = None
        for number, row in enumerate(judge_sources(plan, sources, engine, args.seed)):
            if row["status"] not in ("measured", "refused", "unavailable"):
                say(f"{row['variant']} on {row['source']}: {row['status']}: {row['reason']}")
            if row["source"] != source:
                source = row["source"]
                say(f"[{number}/{len(plan.cells)}] {source}")
            yield row


def recall(args: argparse.Namespace) -> int:
    """``attnbench quality recall [VARIANT …]``"""
    from attnbench.core.evidence import Evidence, check_writable, made_here
    from attnbench.core.lock import lock_for
    from attnbench.core.machine import this_machine
    from attnbench.features.quality.recall import TrainingProgress
    from attnbench.features.quality.recall_results import progress_words

    machine = this_machine()
    plan = _training_plan(args, machine)
    check_writable(Path(args.out), machine)
    slugs, each = [s.slug for s in plan.settings], plan.variants[plan.settings[0]]
    say(
        f"{plan.trainings} trainings: variants {len(each)}, seeds {len(plan.seeds)}, threads "
        f"{plan.threads}; {', '.join(slugs)}; pairs {plan.settings[0].pairs}"
    )
    progress, stopped = TrainingProgress(plan, say), False
    made = made_here(
        machine,
        baseline=plan.baseline.label,
        scan=args.scan,
        seeds=list(plan.seeds),
        threads=plan.threads,
        trainings=plan.trainings,
    )
    try:
        with lock_for([plan.settings[0].device]):
            progress.run(seconds=args.seconds, timed=not args.scan)
    except KeyboardInterrupt:
        stopped = True
    if not any(row["curve"] for row in progress.rows):
        if stopped:
            say(NOTHING)
        return INTERRUPTED if stopped else 2
    made |= {"budgets": progress.budgets, "stopped": stopped}
    if stopped:
        words = progress_words(Evidence("recall", made, progress.rows))
        say(f"{words}; what was trained is kept")
    return _keep(args, made, progress.rows)


def _training_plan(args: argparse.Namespace, machine: Machine) -> TrainingPlan:
    import impls
    from attnbench.features.quality import recall as plans
    from attnbench.sweep.start import pinned

    name = args.preset or ("gpu" if "cuda" in machine.devices else "cpu")
    if name not in plans.PRESETS:
        raise CantBeDone(f"there is no preset {name!r}; the presets are {', '.join(plans.PRESETS)}")
    preset, pairs = plans.PRESETS[name], args.pairs and tuple(sorted(set(args.pairs)))
    grid = {"seq": args.seq or (), "width": args.width or ()}
    settings = plans.preset_settings(preset, **grid, pairs=pairs, steps=args.steps)
    names, seeds = args.variants, args.seeds or preset.seeds
    if args.scan:
        settings, names, seeds = plans.scan_settings(settings), names or SCAN, args.seeds or 1
    first, threads = args.seed or 0, pinned(args.threads or 1, machine)
    return plans.make_training_plan(
        impls.table(args.table),
        names,
        preset,
        settings,
        machine,
        seeds=range(first, first + seeds),
        threads=threads,
    )


FORMS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "recall": recall,
    "model": model,
    "real": real,
}
