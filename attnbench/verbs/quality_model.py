"""``attnbench quality model``: a trained model, its attention replaced by each variant."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.verbs import INTERRUPTED, say
from attnbench.verbs.evidence_kept import again, keep, status

if TYPE_CHECKING:
    import argparse

    from attnbench.machine import Machine
    from attnbench.measure.settings import Settings
    from attnbench.models.quality.pretrained.asked import Trial, Wanted
    from attnbench.models.quality.pretrained.texts import Texts
    from impls.spec import Variant

KIND = "model"
LAYER_TEXTS = 4
"""Long texts on which each layer is tried alone."""
PAIRS_S = 3.0
SEQ = (256,)


def model(given: argparse.Namespace) -> int:
    """``attnbench quality model [VARIANT …]``"""
    from attnbench.report.quality_view import show_model

    if given.source is not None:
        return again(given, KIND, show_model)
    import impls
    from attnbench.lock import lock_for
    from attnbench.machine import this_machine
    from attnbench.measure.settings import Settings
    from attnbench.models.quality.apart import Apart
    from attnbench.models.quality.pretrained import weights
    from attnbench.models.quality.pretrained.asked import WORKER, Trial, rows_of
    from attnbench.store import check_writable
    from attnbench.sweep.start import pinned

    machine = this_machine()
    weights.folder()  # refused before anything is begun
    texts = _texts(given)
    settings = Settings(threads=pinned(given.threads, machine))
    wanted = _wanted(given, machine, settings)
    rows = rows_of(impls.table(given.table), given.variants)
    check_writable(Path(given.out), machine)
    with (
        tempfile.TemporaryDirectory() as folder,
        lock_for([wanted.device]),
        Apart(WORKER, settings, limited=wanted.device == "cpu") as apart,
    ):
        trial = Trial(texts, wanted, apart, given.table, Path(folder))
        found, stopped = _asked(trial, rows, wanted, machine)
    if not found:
        say("attnbench: stopped before any variant was tried; nothing is kept")
        return INTERRUPTED
    facts = _facts(trial, texts, wanted, settings, stopped=stopped)
    keep(given, machine, KIND, facts, found, show_model)
    return INTERRUPTED if stopped else status(found)


def _texts(given: argparse.Namespace) -> Texts:
    from attnbench.models.quality.pretrained.texts import built_in, of_file

    return of_file(Path(given.texts)) if given.texts else built_in()


def _wanted(given: argparse.Namespace, machine: Machine, settings: Settings) -> Wanted:
    from attnbench.models.quality.pretrained.asked import Wanted
    from attnbench.store import stored_margin
    from attnbench.sweep.plan import LONG, here
    from impls.problem import Problem

    device, dtype = given.device or machine.devices[-1], LONG.get(given.dtype, given.dtype)
    here(device, machine)
    for length in given.seq or SEQ:
        Problem(q_len=length, kv_len=length, dtype=dtype, device=device)  # refuses what can't be
    return Wanted(
        dtype=dtype, device=device, seq=_lengths(given.seq or SEQ),
        pairs_s=given.budget or PAIRS_S,
        margin=stored_margin(Path(given.out), machine, settings.threads),
        layers=0 if given.no_layers else LAYER_TEXTS, distil=given.distil, train=given.train,
        seed=given.seed,
    )  # fmt: skip


def _lengths(asked: Sequence[int]) -> tuple[int, ...]:
    from attnbench.models.quality.pretrained.texts import LONGEST
    from impls.problem import InvalidProblem

    if max(asked) > LONGEST:
        raise InvalidProblem(
            f"--seq {max(asked)} is longer than the model has places for: {LONGEST} at the most"
        )
    return tuple(sorted(set(asked)))


def _asked(trial: Trial, rows: Sequence[Variant], wanted: Wanted,
           machine: Machine) -> tuple[list[dict[str, Any]], bool]:  # fmt: skip
    """A row a variant, as far as it came, ranked; and whether Ctrl-C ended it."""
    from attnbench.answer.model_cost.ranks import with_ranks
    from attnbench.answer.model_cost.steps import with_verdicts
    from attnbench.models.quality.pretrained.asked import refused
    from attnbench.report.quality_view import line
    from attnbench.sweep.run import Interrupt

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


def _facts(trial: Trial, texts: Texts, wanted: Wanted, settings: Settings, *,
           stopped: bool) -> dict[str, Any]:  # fmt: skip
    """What is needed to make it again, and the original's own figures."""
    from attnbench.models.quality.pretrained import weights

    return {
        "model": {"name": weights.MODEL, **weights.versions()},
        "texts": {"source": texts.source, "digest": texts.digest, "texts": len(texts.texts)},
        "wanted": asdict(wanted), "settings": settings.to_dict(), "original": trial.original,
        "stopped": stopped,
    }  # fmt: skip
