"""``attnbench quality recall [VARIANT …]``: small models trained to recall."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.verbs import INTERRUPTED, say
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse

    from attnbench.models.quality.recall.plan import Plan
    from attnbench.store.evidence import Evidence

SCAN = ("sdpa", "linear.elu")
"""Whom a scan tells apart, unless others are named."""


class NotAsked(CantBeDone):
    """What was asked says nothing here; a sentence."""


def recall(given: argparse.Namespace) -> int:
    """The form of the verb."""
    from attnbench.store.evidence import read_evidence

    if given.kept is not None:
        found = read_evidence(Path(given.kept))
        if found.kind != "recall":
            raise NotAsked(
                f"{given.kept} is evidence of {found.kind}, not of recall: give a file that "
                "'attnbench quality recall' wrote, results/*/evidence/*-recall.json"
            )
        _whole(found, given.kept)
        return _shown(found, Path(given.kept), as_json=given.json)
    return _trained(given)


def _whole(found: Evidence, file: str) -> None:
    """Raise a sentence for a file that a view can't be made of."""
    from attnbench.report import recall_view

    try:
        recall_view.said(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotAsked(f"{file} is damaged ({error}): what it holds can't be shown") from None


def _trained(given: argparse.Namespace) -> int:
    from attnbench.lock import lock_for
    from attnbench.machine import this_machine
    from attnbench.models.quality.recall.going import Going
    from attnbench.report import recall_view
    from attnbench.store import check_writable
    from attnbench.store.evidence import Evidence, made_here, save_evidence

    machine = this_machine()
    plan = _plan(given)
    check_writable(Path(given.out), machine)
    say(_sentence(plan))
    going, stopped = Going(plan, say), False
    made = made_here(
        machine, baseline=plan.baseline.label, scan=given.scan, seeds=list(plan.seeds),
        threads=plan.threads, trainings=plan.trainings,
    )  # fmt: skip
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


def _plan(given: argparse.Namespace) -> Plan:
    import impls
    from attnbench.machine import this_machine
    from attnbench.models.quality.recall import plan as plans
    from attnbench.sweep.start import pinned

    machine = this_machine()
    name = given.preset or ("gpu" if "cuda" in machine.devices else "cpu")
    if name not in plans.PRESETS:
        raise NotAsked(f"there is no preset {name!r}; the presets are {', '.join(plans.PRESETS)}")
    preset = plans.PRESETS[name]
    settings = plans.settings_of(
        preset, seq=given.seq or (), width=given.width or (),
        pairs=given.pairs and tuple(sorted(set(given.pairs))), steps=given.steps,
    )  # fmt: skip
    names, seeds = given.variants, given.seeds or preset.seeds
    if given.scan:
        settings, names, seeds = plans.scan_of(settings), names or SCAN, given.seeds or 1
    first = given.seed or 0
    return plans.made(
        impls.table(given.table), names, preset, settings, machine,
        seeds=range(first, first + seeds), threads=pinned(given.threads or 1, machine),
    )  # fmt: skip


def _sentence(plan: Plan) -> str:
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
    from attnbench.report import recall_picture, recall_view

    if as_json:
        print(json.dumps({**asdict(found), "conclusions": recall_view.said(found)}))
    else:
        recall_view.show(found)
    pictures, drawn = [file.with_suffix(".png"), file.with_suffix(".svg")], False
    try:
        drawn = recall_picture.draw(found, pictures)
    except OSError as error:
        say(f"note: {pictures[0]} could not be written: {error.strerror}")
    say(f"kept in {file}" + f"; drawn in {pictures[0]}" * drawn)
    return int(any(row["status"] in ("failed", "timed_out") for row in found.rows))
