"""``attnbench quality real``: what isn't exact, on the inputs of a trained model's layers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.verbs import INTERRUPTED, say
from attnbench.verbs.evidence_kept import again, keep, status

if TYPE_CHECKING:
    import argparse

    from attnbench.machine import Machine
    from attnbench.measure.settings import Settings
    from attnbench.models.quality.pretrained.texts import Texts

KIND = "real"


def real(given: argparse.Namespace) -> int:
    """``attnbench quality real [VARIANT …]``"""
    from attnbench.report.quality_real_view import show_real

    if given.source is not None:
        return again(given, KIND, show_real)
    from attnbench.lock import lock_for
    from attnbench.machine import this_machine
    from attnbench.measure.settings import Settings
    from attnbench.models.quality.pretrained import weights
    from attnbench.models.quality.pretrained.texts import LONGEST, built_in
    from attnbench.store import check_writable
    from attnbench.sweep.plan import LONG, here
    from attnbench.sweep.start import pinned
    from impls.problem import InvalidProblem

    machine = this_machine()
    weights.folder()  # refused before anything is begun
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
        rows, stopped = _asked(given, texts, settings, machine, Path(folder))
    if not rows:
        say("attnbench: stopped before anything was tried; nothing is kept")
        return INTERRUPTED
    facts = {
        "model": {"name": weights.MODEL, **weights.versions()},
        "texts": {"source": texts.source, "digest": texts.digest, "texts": given.batch},
        "wanted": {name: getattr(given, name) for name in ("seq", "batch", "dtype", "device",
                                                           "seed")},
        "settings": settings.to_dict(), "stopped": stopped,
    }  # fmt: skip
    keep(given, machine, KIND, facts, rows, show_real)
    return INTERRUPTED if stopped else status(rows)


def _asked(given: argparse.Namespace, texts: Texts, settings: Settings, machine: Machine,
           folder: Path) -> tuple[list[dict[str, Any]], bool]:  # fmt: skip
    """A row a cell, as far as it came; and whether Ctrl-C ended it."""
    import impls
    from attnbench.models.quality.real.asked import capture, judged, planned
    from attnbench.sweep.engine import LocalEngine
    from attnbench.sweep.run import Interrupt

    interrupt, stopped = Interrupt(say), False
    rows: list[dict[str, Any]] = []
    try:
        with interrupt.watching():
            sources = capture(texts, given.seq, given.batch, given.dtype, given.device, folder,
                              settings)  # fmt: skip
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
