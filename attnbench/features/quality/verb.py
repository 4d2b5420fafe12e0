"""``attnbench quality FORM``: what a variant costs a model. A room for each form."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.command.terminal import INTERRUPTED, say
from attnbench.features.quality.evidence import again, keep, status
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.core.evidence import Evidence
    from attnbench.core.machine import Machine
    from attnbench.core.settings import Settings
    from attnbench.features.quality.pretrained import Texts, Trial, Wanted
    from attnbench.features.quality.recall import TrainingPlan
    from impls.spec import Variant


class NoSuchForm(CantBeDone):
    """Nothing, or something else, was named after the verb; a sentence."""


def quality(given: argparse.Namespace) -> int:
    """The form that was asked for."""
    if given.form not in FORMS:
        what = f"there is no quality {given.asked!r}" if given.asked else "quality of what kind?"
        *some, last = (f"attnbench quality {form}" for form in FORMS)
        raise NoSuchForm(f"{what}; there are {', '.join(some)} and {last}")
    return FORMS[given.form](given)


KIND = "model"
LAYER_TEXTS = 4
"""Long texts on which each layer is tried alone."""
PAIRS_S = 3.0
SEQ = (256,)


def model(given: argparse.Namespace) -> int:
    """``attnbench quality model [VARIANT …]``"""
    from attnbench.features.quality.view import show_model

    if given.source is not None:
        return again(given, KIND, show_model)
    import impls
    from attnbench.core.evidence import check_writable
    from attnbench.core.lock import lock_for
    from attnbench.core.machine import this_machine
    from attnbench.core.process import Worker
    from attnbench.core.settings import Settings
    from attnbench.features.quality import pretrained
    from attnbench.features.quality.pretrained import WORKER, Trial, rows_of
    from attnbench.sweep.start import pinned

    machine = this_machine()
    pretrained.folder()  # refused before anything is begun
    texts = _texts(given)
    settings = Settings(threads=pinned(given.threads, machine))
    wanted = _wanted(given, machine, settings)
    rows = rows_of(impls.table(given.table), given.variants)
    check_writable(Path(given.out), machine)
    with (
        tempfile.TemporaryDirectory() as folder,
        lock_for([wanted.device]),
        Worker(WORKER, settings.threads, limited=wanted.device == "cpu", forks=True) as worker,
    ):
        trial = Trial(texts, wanted, worker, given.table, Path(folder))
        found, stopped = _asked(trial, rows, wanted, machine)
    if not found:
        say("attnbench: stopped before any variant was tried; nothing is kept")
        return INTERRUPTED
    facts = _facts(trial, texts, wanted, settings, stopped=stopped)
    keep(given, machine, KIND, facts, found, show_model)
    return INTERRUPTED if stopped else status(found)


def _texts(given: argparse.Namespace) -> Texts:
    from attnbench.features.quality.pretrained import built_in, of_file

    return of_file(Path(given.texts)) if given.texts else built_in()


def _wanted(given: argparse.Namespace, machine: Machine, settings: Settings) -> Wanted:
    from attnbench.core.evidence import stored_margin
    from attnbench.features.quality.pretrained import Wanted
    from attnbench.sweep.plan import LONG, here
    from impls.problem import Problem

    device, dtype = given.device or machine.devices[-1], LONG.get(given.dtype, given.dtype)
    here(device, machine)
    for length in given.seq or SEQ:
        Problem(q_len=length, kv_len=length, dtype=dtype, device=device)  # refuses what can't be
    return Wanted(
        dtype=dtype,
        device=device,
        seq=_lengths(given.seq or SEQ),
        pairs_s=given.budget or PAIRS_S,
        margin=stored_margin(Path(given.out), machine, settings.threads),
        layers=0 if given.no_layers else LAYER_TEXTS,
        distil=given.distil,
        train=given.train,
        seed=given.seed,
    )


def _lengths(asked: Sequence[int]) -> tuple[int, ...]:
    from attnbench.features.quality.pretrained import LONGEST
    from impls.problem import InvalidProblem

    if max(asked) > LONGEST:
        raise InvalidProblem(
            f"--seq {max(asked)} is longer than the model has places for: {LONGEST} at the most"
        )
    return tuple(sorted(set(asked)))


def _asked(
    trial: Trial, rows: Sequence[Variant], wanted: Wanted, machine: Machine
) -> tuple[list[dict[str, Any]], bool]:
    """A row a variant, as far as it came, ranked; and whether Ctrl-C ended it."""
    from attnbench.features.quality.pretrained import refused
    from attnbench.features.quality.view import line
    from attnbench.features.quality.words import with_ranks, with_verdicts
    from attnbench.sweep.sweep import Interrupt

    interrupt, stopped, found = Interrupt(say), False, []
    say(f"{len(rows)} variants in the model, each in a process of its own; first the original")
    try:
        with interrupt.watching():
            trial.begin()
            for number, row in enumerate(rows, 1):
                if stopped := interrupt.asked:
                    break
                facts = {"variant": row.label, "family": row.family, "computes": row.computes}
                why = refused(row, wanted, machine)
                found.append({**facts, **why} if why is not None else trial.variant(row))
                if found[-1]["status"] != "unavailable":
                    say(f"[{number}/{len(rows)}] {line(found[-1])}")
    except KeyboardInterrupt:
        stopped = True
        if not trial.original:
            raise
    return with_verdicts(with_ranks(found, trial.original)), stopped


def _facts(
    trial: Trial, texts: Texts, wanted: Wanted, settings: Settings, *, stopped: bool
) -> dict[str, Any]:
    """What is needed to make it again, and the original's own figures."""
    from attnbench.features.quality import pretrained

    return {
        "model": {"name": pretrained.MODEL, **pretrained.versions()},
        "texts": {"source": texts.source, "digest": texts.digest, "texts": len(texts.texts)},
        "wanted": asdict(wanted),
        "settings": settings.to_dict(),
        "original": trial.original,
        "stopped": stopped,
    }


QUALITY_REAL_KIND = "real"


def real(given: argparse.Namespace) -> int:
    """``attnbench quality real [VARIANT …]``"""
    from attnbench.features.quality.view import show_real

    if given.source is not None:
        return again(given, QUALITY_REAL_KIND, show_real)
    from attnbench.core.evidence import check_writable
    from attnbench.core.lock import lock_for
    from attnbench.core.machine import this_machine
    from attnbench.core.settings import Settings
    from attnbench.features.quality import pretrained
    from attnbench.features.quality.pretrained import LONGEST, built_in
    from attnbench.sweep.plan import LONG, here
    from attnbench.sweep.start import pinned
    from impls.problem import InvalidProblem

    machine = this_machine()
    pretrained.folder()  # refused before anything is begun
    if given.seq > LONGEST:
        raise InvalidProblem(
            f"--seq {given.seq} is longer than the model has places for: {LONGEST} at the most"
        )
    given.device = given.device or machine.devices[-1]
    given.dtype = LONG.get(given.dtype, given.dtype)
    here(given.device, machine)
    texts, settings = built_in(), Settings(threads=pinned(given.threads, machine))
    check_writable(Path(given.out), machine)
    with tempfile.TemporaryDirectory() as folder, lock_for([given.device]):
        rows, stopped = _asked_of_quality_real(given, texts, settings, machine, Path(folder))
    if not rows:
        say("attnbench: stopped before anything was tried; nothing is kept")
        return INTERRUPTED
    facts = {
        "model": {"name": pretrained.MODEL, **pretrained.versions()},
        "texts": {"source": texts.source, "digest": texts.digest, "texts": given.batch},
        "wanted": {
            name: getattr(given, name) for name in ("seq", "batch", "dtype", "device", "seed")
        },
        "settings": settings.to_dict(),
        "stopped": stopped,
    }
    keep(given, machine, QUALITY_REAL_KIND, facts, rows, show_real)
    return INTERRUPTED if stopped else status(rows)


def _asked_of_quality_real(
    given: argparse.Namespace, texts: Texts, settings: Settings, machine: Machine, folder: Path
) -> tuple[list[dict[str, Any]], bool]:
    """A row a cell, as far as it came; and whether Ctrl-C ended it."""
    import impls
    from attnbench.features.quality.real import capture, judged, planned
    from attnbench.sweep.engine import LocalEngine
    from attnbench.sweep.sweep import Interrupt

    interrupt, stopped = Interrupt(say), False
    rows: list[dict[str, Any]] = []
    try:
        with interrupt.watching():
            sources = capture(
                texts, given.seq, given.batch, given.dtype, given.device, folder, settings
            )
            plan = planned(impls.table(given.table), given.variants, sources, machine)
            say(plan.sentence())
            with LocalEngine(settings, limited=given.device == "cpu") as engine:
                for row in judged(plan, sources, engine, given.seed):
                    rows.append(row)
                    _told(rows, len(plan.cells))
                    if stopped := interrupt.asked:
                        break
    except KeyboardInterrupt:
        stopped = True
    return rows, stopped


def _told(rows: Sequence[dict[str, Any]], cells: int) -> None:
    """A line where something is amiss, and one a source."""
    last = rows[-1]
    if last["status"] not in ("measured", "refused", "unavailable"):
        say(f"{last['variant']} on {last['source']}: {last['status']}: {last['reason']}")
    if len(rows) == 1 or rows[-2]["source"] != last["source"]:
        say(f"[{len(rows) - 1}/{cells}] {last['source']}")


SCAN = ("sdpa", "linear.elu")
"""Whom a scan tells apart, unless others are named."""


class NoSuchRecall(CantBeDone):
    """What was asked says nothing here; a sentence."""


def recall(given: argparse.Namespace) -> int:
    """The form of the verb."""
    from attnbench.core.evidence import read_evidence

    if given.kept is not None:
        found = read_evidence(Path(given.kept))
        if found.kind != "recall":
            raise NoSuchRecall(
                f"{given.kept} is evidence of {found.kind}, not of recall: give a file that "
                "'attnbench quality recall' wrote, results/*/evidence/*-recall.json"
            )
        _whole(found, given.kept)
        return _shown(found, Path(given.kept), as_json=given.json)
    return _trained(given)


def _whole(found: Evidence, file: str) -> None:
    """Raise a sentence for a file that a view can't be made of."""
    from attnbench.features.quality import recall_view

    try:
        recall_view.said(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NoSuchRecall(f"{file} is damaged ({error}): what it holds can't be shown") from None


def _trained(given: argparse.Namespace) -> int:
    from attnbench.core.evidence import Evidence, check_writable, made_here, save_evidence
    from attnbench.core.lock import lock_for
    from attnbench.core.machine import this_machine
    from attnbench.features.quality import recall_view
    from attnbench.features.quality.recall import TrainingProgress

    machine = this_machine()
    plan = _plan(given)
    check_writable(Path(given.out), machine)
    say(_sentence(plan))
    going, stopped = TrainingProgress(plan, say), False
    made = made_here(
        machine,
        baseline=plan.baseline.label,
        scan=given.scan,
        seeds=list(plan.seeds),
        threads=plan.threads,
        trainings=plan.trainings,
    )
    try:
        with lock_for([plan.settings[0].device]):
            going.run(seconds=given.seconds, timed=not given.scan)
    except KeyboardInterrupt:
        stopped = True
    if not any(row["curve"] for row in going.rows):
        if stopped:
            say("attnbench: stopped before any variant was trained; nothing is kept")
        return INTERRUPTED if stopped else 2
    found = Evidence("recall", {**made, "budgets": going.budgets, "stopped": stopped}, going.rows)
    if stopped:
        say(f"{recall_view.part(found)}; what was trained is kept")
    file = save_evidence(Path(given.out), found)
    status = _shown(found, file, as_json=given.json)
    return INTERRUPTED if stopped else status


def _plan(given: argparse.Namespace) -> TrainingPlan:
    import impls
    from attnbench.core.machine import this_machine
    from attnbench.features.quality import recall as plans
    from attnbench.sweep.start import pinned

    machine = this_machine()
    name = given.preset or ("gpu" if "cuda" in machine.devices else "cpu")
    if name not in plans.PRESETS:
        raise NoSuchRecall(
            f"there is no preset {name!r}; the presets are {', '.join(plans.PRESETS)}"
        )
    preset = plans.PRESETS[name]
    settings = plans.settings_of(
        preset,
        seq=given.seq or (),
        width=given.width or (),
        pairs=given.pairs and tuple(sorted(set(given.pairs))),
        steps=given.steps,
    )
    names, seeds = given.variants, given.seeds or preset.seeds
    if given.scan:
        settings, names, seeds = plans.scan_of(settings), names or SCAN, given.seeds or 1
    first = given.seed or 0
    return plans.made(
        impls.table(given.table),
        names,
        preset,
        settings,
        machine,
        seeds=range(first, first + seeds),
        threads=pinned(given.threads or 1, machine),
    )


def _sentence(plan: TrainingPlan) -> str:
    setting, many = plan.settings[0], len(plan.settings)
    pairs = ", ".join(map(str, setting.pairs))
    where = setting.slug if many == 1 else f"{many} settings"
    return (
        f"{plan.trainings} trainings: {len(plan.taking_part[setting])} variants, {len(plan.seeds)} "
        f"seed{'s' * (len(plan.seeds) > 1)}, {where}; {pairs} pairs; {plan.threads} "
        f"thread{'s' * (plan.threads > 1)}"
    )


def _shown(found: Evidence, file: Path, *, as_json: bool) -> int:
    """The tables, what follows, and the picture; 1 where a training failed."""
    from attnbench.features.quality import pictures as recall_picture
    from attnbench.features.quality import recall_view

    if as_json:
        print(json.dumps({**asdict(found), "conclusions": recall_view.said(found)}))
    else:
        recall_view.show(found)
    pictures, drawn = [file.with_suffix(".png"), file.with_suffix(".svg")], False
    try:
        drawn = recall_picture.draw_recall(found, pictures)
    except OSError as error:
        say(f"note: {pictures[0]} could not be written: {error.strerror}")
    say(f"kept in {file}" + f"; drawn in {pictures[0]}" * drawn)
    return int(any(row["status"] in ("failed", "timed_out") for row in found.rows))


FORMS = {"recall": recall, "model": model, "real": real}
