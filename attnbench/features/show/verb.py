"""``attnbench list``, ``show`` and ``env``: what is in the table, and the machine."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnbench.command.terminal import say
from attnbench.core.format import roughly
from attnbench.core.wire import plain
from impls.errors import CantBeDone

if TYPE_CHECKING:
    import argparse

    from impls.spec import Variant


def _missing(row: Variant) -> tuple[str | None, str]:
    """Why a variant can't run here and what to do about it; ``(None, "")`` where it can."""
    from attnbench.core.machine import this_machine, why_not

    missing = why_not(row, this_machine())
    return (missing.reason, missing.remedy) if missing else (None, "")


def _availability(reason: str | None, remedy: str) -> dict[str, Any]:
    return {"available": reason is None, "reason": reason or "", "remedy": remedy}


def show_list(arguments: argparse.Namespace) -> int:
    """``attnbench list``"""
    import impls
    from attnbench.features.show import view
    from attnbench.report import tidy

    if arguments.models:
        return _show_models(arguments)
    table = impls.table(arguments.table)
    if arguments.matrix:
        return _show_matrix(arguments, [table.find(name) for name in table.rows])
    rows = [(row, *_missing(row)) for row in table.rows.values()]
    if arguments.csv:
        tidy.show(view.rows(rows, table.broken))
        return 0
    if not arguments.json:
        view.table(rows, table.broken, why=arguments.why)
        return 0
    listed = [
        {**plain(row), "computes": row.computes, **_availability(why, remedy)}
        for row, why, remedy in rows
    ]
    for row in table.broken:
        why = _availability(f"the row is broken: {row.reason}", row.remedy)
        listed.append({"name": row.name, "family": "", "computes": "", "level": "", **why})
    print(json.dumps(listed, indent=1))
    return 0


def _show_models(arguments: argparse.Namespace) -> int:
    """``attnbench list --models``"""
    from attnbench.features.show import view
    from attnbench.report import tidy
    from attnbench.sweep.models import models

    some = models().values()
    if arguments.json:
        print(json.dumps([msgspec.to_builtins(model) for model in some], indent=1))
    elif arguments.csv:
        tidy.show(view.model_rows(some))
    else:
        view.show_models(some)
    return 0


def _show_matrix(arguments: argparse.Namespace, rows: list[Variant]) -> int:
    from attnbench.features.show import support
    from attnbench.report import tables, tidy

    if arguments.why:
        raise CantBeDone("--matrix and --why show different tables: leave one of them out")
    if arguments.csv:
        tidy.show(support.rows(rows))
    elif arguments.json:
        print(json.dumps(list(support.rows(rows)), indent=1))
    else:
        for part in support.matrix(rows):
            tables.show(part)
    return 0


def show(arguments: argparse.Namespace) -> int:
    """``attnbench show NAME``"""
    import impls
    from attnbench.features.show import view
    from attnbench.report import tidy
    from impls.loading import mathematics

    row = impls.table(arguments.table).find(arguments.name)
    if arguments.text is not None:
        return _show_map(arguments, row)
    if arguments.embeddings or arguments.mask:
        raise CantBeDone("--embeddings and --mask go with --text: a map needs a sentence")
    missing, text = _missing(row), mathematics(row.build)
    if arguments.json:
        about = {"mathematics": text, **_availability(*missing)}
        print(json.dumps({**plain(row), "computes": row.computes, **about}, indent=1))
    elif arguments.csv:
        tidy.show(view.rows([(row, *missing)]))
    else:
        view.show_variant(row, text, *missing)
    return 0


def _show_map(arguments: argparse.Namespace, row: Variant) -> int:
    from attnbench.core.settings import Settings
    from attnbench.features.show import maps, view
    from attnbench.report import tidy
    from attnbench.sweep.engine import START_LIMIT_S, LocalEngine

    words = maps.tokens_of(arguments.text)
    vectors = maps.vectors_of(words, arguments.embeddings)
    masks = row.on("cpu", "masks") or ("none",)
    mask = arguments.mask or ("none" if "none" in masks else masks[0])
    with LocalEngine(Settings()) as engine:
        weights = maps.ask(engine, row, mask, vectors, START_LIMIT_S)
    if arguments.json:
        print(json.dumps({"variant": row.label, "words": words, "weights": weights}))
    elif arguments.csv:
        tidy.show(view.weights(row.label, words, weights))
    else:
        view.show(words, weights)
    return 0


CEILINGS_S, NOISE_S = 14.0, 30.0
"""Of a dtype; and of the three lengths of call whose noise is measured."""


def env(arguments: argparse.Namespace) -> int:
    """``attnbench env``: the facts, kept beside the results of this machine."""
    from attnbench.command.progress import Progress
    from attnbench.core.disk import MACHINE
    from attnbench.core.evidence import check_writable, save_beside
    from attnbench.core.machine import gpu_warnings, pace, this_machine, vitals
    from attnbench.core.record import PROTOCOL
    from attnbench.features.show import view
    from attnbench.sweep.compare import starting_s
    from attnbench.sweep.engine import START_LIMIT_S, engine_on
    from attnbench.sweep.plan import LONG, here
    from attnbench.sweep.start import settings_of
    from impls.problem import Problem

    machine = this_machine()
    settings = settings_of(arguments, machine)
    observed, notes = vitals(machine), gpu_warnings(machine) if machine.gpus else []
    for sentence in notes:
        say(f"note: {sentence}")
    device = arguments.device or machine.devices[-1]
    dtypes = [LONG.get(dtype, dtype) for dtype in arguments.dtype]
    for dtype in dtypes:
        here(Problem(dtype=dtype, device=device).device, machine)  # raises for what can't be
    check_writable(Path(arguments.out), machine)
    facts: dict[str, Any] = {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "protocol": PROTOCOL,
        "machine": machine.facts(),
        "settings": settings.facts(),
        "observed": observed,
        "notes": notes,
    }
    ceilings_s, noise_s = starting_s() + pace() * CEILINGS_S * len(dtypes), pace() * NOISE_S
    say(f"the ceilings and the noise floor are measured; about {roughly(ceilings_s + noise_s)}")
    with engine_on(device, settings) as engine, Progress() as progress:
        progress.expect([ceilings_s, noise_s])
        progress.step("the ceilings: products, and copies by size")
        question: dict[str, Any] = {"ceilings": dtypes, "device": device}
        facts |= engine.ask(question, START_LIMIT_S)
        progress.step("the noise floor: one variant against itself")
        question = {"noise": dtypes[0], "device": device}
        facts |= engine.ask(question, START_LIMIT_S)
    path = save_beside(Path(arguments.out), machine.name, MACHINE, facts)
    if arguments.json:
        print(json.dumps(facts, indent=1))
    else:
        view.show_env(facts)
    say(f"kept in {path}")
    return 0
