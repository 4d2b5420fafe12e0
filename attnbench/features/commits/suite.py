"""Which benchmarks asv sees, and what each takes from a record.

asv starts a process for each; they look up what one sweep a commit has measured. This module loads
no ``impls``: the commit's may be broken.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from attnbench.core.protocol import PROTOCOL
from attnbench.sweep.presets import PRESETS, Preset

if TYPE_CHECKING:
    from attnbench.core.record import Record


VARIABLE = "ATTNBENCH_HISTORY"


class AsvRequest(msgspec.Struct, frozen=True):
    """One command of asv's, and the facts of the machine that decide which benchmarks exist."""

    device: str = "cpu"
    energy: bool = False
    """Whether something measures it here."""
    quick: bool = False
    bench: tuple[str, ...] = ()
    """Expressions, one of which a benchmark with its parameters has to match; any, if none."""
    interleaved: bool = False
    """Whether the commits are measured in turns, a process of each in a round."""
    root: str = ""
    """A repository of somebody's own; attnbench's clone, if empty."""
    tables: tuple[str, ...] = ()
    """Row files in it that were named."""
    variants: tuple[str, ...] = ()
    """What is measured in it."""
    kept: str = ""
    """A folder that lives as long as asv's command: what the first round found stays there."""

    def hand_on(self, environment: dict[str, str]) -> None:
        """Write it into the environment of asv's processes."""
        environment[VARIABLE] = msgspec.json.encode(self).decode()


def request_of(said: Namespace, device: str, own: Mapping[str, Any], *, energy: bool) -> AsvRequest:
    """The arguments of asv's command, where it has them; ``own``: what asv's configuration says of
    a repository of somebody's own.
    """
    turns, bench = getattr(said, "interleave_rounds", False), getattr(said, "bench", None) or ()
    return AsvRequest(
        device,
        energy,
        bool(getattr(said, "quick", False)),
        (bench,) if isinstance(bench, str) else tuple(bench),
        turns is None or bool(turns),  # None: asv takes turns if it can
        str(own.get("root", "")),
        tuple(own.get("tables", ())),
        tuple(own.get("variants", ())),
    )


def current_request(environment: Mapping[str, str] = os.environ) -> AsvRequest:
    """The request of asv's command; the defaults in a process that asv did not start."""
    return msgspec.json.decode(environment.get(VARIABLE, "{}"), type=AsvRequest)


PRESET = {"cpu": "history", "cuda": "history-cuda"}
MODULE = "attention"
"""The file of the benchmarks, which begins their names."""
PARAMETERS = ("variant", "seq", "phase")
VERSION = f"protocol {PROTOCOL}"
"""Results of unlike versions are not compared by asv."""
TIME_VERSION = f"{VERSION}, a value a process"
LEAST = 1e-12
"""Errors are never zero: asv draws means of their logarithms."""
PROCESSES = 7
"""Values of a time, a process each. asv's rank test calls a difference real below p = 0.002:
six values against six reach 2/924 = 0.0022 at best, seven against seven 2/3432 = 0.0006.
"""
LIMIT_S = 1800.0

Key = tuple[str, int, str]
Value = list[float] | float | int


class SuiteFigure(NamedTuple):
    """One benchmark: a figure that records hold, of which less is better."""

    unit: str
    title: str
    version: str = VERSION


FIGURES = {
    "time": SuiteFigure("seconds", "time of a call", TIME_VERSION),
    "memory": SuiteFigure("bytes", "peak memory above the inputs"),
    "error": SuiteFigure("relative error", "largest relative error of output and gradients"),
    "energy": SuiteFigure("joules", "energy of a call, idle draw taken off"),
}


class SuiteRow(msgspec.Struct, frozen=True):
    """What became of a cell, as the benchmarks look it up."""

    status: str
    reason: str
    """Why it was not measured, or has no energy; nothing, where it was and has."""
    figures: dict[str, Value | None]


class Cache(msgspec.Struct, frozen=True):
    """The result of one set-up: a row for each cell, or why there is none."""

    rows: dict[Key, SuiteRow]
    skipped: str = ""
    """Why nothing of this commit can be measured; a sentence, or nothing."""


def row(record: Record) -> SuiteRow:
    """What the benchmarks need of a record, numbers as asv shows them."""
    why = record.reason or (record.energy.why if record.energy else "")
    error = record.worst_error
    joules = record.energy.joules if record.energy else None
    figures: dict[str, Value | None] = {
        # the median: asv takes samples for independent draws, and those of one process are none
        "time": [record.time.median_s] if record.time else None,
        "memory": max(1, record.memory.peak_bytes) if record.memory else None,
        "error": None if error is None else max(LEAST, float(f"{error:.4g}")),
        "energy": float(f"{joules:.4g}") if joules is not None and joules > 0 else None,
    }
    return SuiteRow(str(record.status), why, figures)


def grid(device: str) -> Preset:
    """The cells that are measured of each commit."""
    return PRESETS[PRESET[device]]


def parameters(figure: str, request: AsvRequest) -> list[list[Any]]:
    """The values of each parameter; energy takes seconds a cell, so it is of the longest alone."""
    preset = grid(request.device)
    lengths = [int(n) for n in preset.seq]
    return [
        list(request.variants or preset.variants),
        [max(lengths)] if figure == "energy" else lengths,
        list(preset.phase),
    ]


def figures(request: AsvRequest) -> list[str]:
    """The figures that this machine can measure."""
    return [name for name in FIGURES if name != "energy" or request.energy]


def keys(request: AsvRequest, names: Collection[str] = tuple(FIGURES)) -> list[Key]:
    """The cells of which at least one of these figures is to be measured."""
    wanted: dict[Key, None] = {}
    for figure in (name for name in figures(request) if name in names):
        for key in product(*parameters(figure, request)):
            name = f"{MODULE}.{figure}({', '.join(written(key))})"
            if not request.bench or any(re.search(each, name) for each in request.bench):
                wanted[key] = None
    return list(wanted)


def written(key: Sequence[Any]) -> list[str]:
    """Parameters as asv writes them."""
    return [repr(each) for each in key]


def benchmarks(request: AsvRequest | None = None) -> dict[str, dict[str, Any]]:
    """The benchmarks as asv describes them in ``benchmarks.json``."""
    request = request or AsvRequest()
    return {
        f"{MODULE}.{name}": {
            "name": f"{MODULE}.{name}",
            "pretty_name": FIGURES[name].title,
            "type": name,
            "unit": FIGURES[name].unit,
            "params": [written(values) for values in parameters(name, request)],
            "param_names": list(PARAMETERS),
            "version": FIGURES[name].version,
            "timeout": LIMIT_S,
        }
        for name in figures(request)
    }
