"""Which benchmarks asv sees, and what each takes from a record.

asv starts a process for each benchmark and each of its parameters. So everything is measured once
a commit, in one sweep (see ``measurement``), and the benchmarks look it up. This module loads no
``impls``: the commit's may be broken, which must be reported.
"""

from __future__ import annotations

import json
import os
import re
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from attnbench.core.protocol import PROTOCOL
from attnbench.sweep.presets import PRESETS, Preset

if TYPE_CHECKING:
    from attnbench.core.record import Record


VARIABLE = "ATTNBENCH_HISTORY"


@dataclass(frozen=True)
class AsvRequest:
    """One command of asv's, and the facts of the machine that decide which benchmarks exist."""

    device: str = "cpu"
    energy: bool = False
    """Whether something measures it here."""
    quick: bool = False
    bench: tuple[str, ...] = ()
    """Expressions, one of which a benchmark with its parameters has to match; any, if none."""
    interleaved: bool = False
    """Whether the commits are measured in turns, a process of each in a round."""
    kept: str = ""
    """A folder that lives as long as asv's command: what the first round found stays there."""

    def wants(self, benchmark: str, parameters: Sequence[str]) -> bool:
        """Whether a benchmark with these parameters, as asv writes them, is to be run."""
        name = f"{benchmark}({', '.join(parameters)})"
        return not self.bench or any(re.search(each, name) for each in self.bench)

    def hand_on(self, environment: dict[str, str]) -> None:
        """Write it into the environment of asv's processes."""
        environment[VARIABLE] = json.dumps(asdict(self))


def request_of(arguments: Namespace, device: str, *, energy: bool) -> AsvRequest:
    """The arguments of asv's command, where it has them."""
    turns, bench = (
        getattr(arguments, "interleave_rounds", False),
        getattr(arguments, "bench", None) or (),
    )
    return AsvRequest(
        device,
        energy,
        bool(getattr(arguments, "quick", False)),
        (bench,) if isinstance(bench, str) else tuple(bench),
        turns is None or bool(turns),  # None: asv takes turns if it can
    )


def current_request(environment: Mapping[str, str] = os.environ) -> AsvRequest:
    """The request of asv's command; the defaults in a process that asv did not start."""
    text = environment.get(VARIABLE)
    if text is None:
        return AsvRequest()
    values = json.loads(text)
    return AsvRequest(**{**values, "bench": tuple(values["bench"])})


PRESET = {"cpu": "history", "cuda": "history-cuda"}
MODULE = "attention"
"""The file of the benchmarks, which begins their names."""
PARAMETERS = ("variant", "seq", "phase")
VERSION = f"protocol {PROTOCOL}"
TIME_VERSION = f"{VERSION}, a value a process"
LEAST = 1e-12
"""Errors are never zero: asv draws means of their logarithms."""
PROCESSES = 7
"""Values of a time, each from a process of its own. asv's rank test calls a difference real below
p = 0.002. Six values against six reach 2/924 = 0.0022 at best, so they never differ; seven against
seven reach 2/3432 = 0.0006, and with one value out of order 0.0012.
"""
LIMIT_S = 1800.0
"""For all cells of a commit."""

Key = tuple[str, int, str]
"""Variant, length, phase."""
Value = list[float] | float | int


@dataclass(frozen=True)
class SuiteFigure:
    """One benchmark: a figure that records hold. Less is better, as asv has it."""

    name: str
    unit: str
    title: str
    of: Callable[[Record], Value | None]

    @property
    def benchmark(self) -> str:
        """As asv calls it."""
        return f"{MODULE}.{self.name}"

    @property
    def version(self) -> str:
        """Results of unlike versions are not compared by asv."""
        return TIME_VERSION if self.name == "time" else VERSION


@dataclass(frozen=True)
class SuiteRow:
    """What became of a cell, as the benchmarks look it up."""

    status: str
    reason: str
    """Why it was not measured, or has no energy; nothing, where it was and has."""
    figures: Mapping[str, Value | None]


@dataclass(frozen=True)
class Cache:
    """The result of one set-up: a row for each cell, or why there is none."""

    rows: Mapping[Key, SuiteRow]
    skipped: str = ""
    """Why nothing of this commit can be measured; a sentence, or nothing."""


def _time(record: Record) -> Value | None:
    """The median: the samples of one process are no independent draws, and asv takes them so."""
    return [record.time.median_s] if record.time else None


def _memory(record: Record) -> Value | None:
    return max(1, record.memory.peak_bytes) if record.memory else None


def _error(record: Record) -> Value | None:
    """The largest of the output's and the gradients'."""
    found = [e.relative for e in (record.error or {}).values() if e.relative is not None]
    return max(LEAST, _rounded(max(found))) if found else None


def _energy(record: Record) -> Value | None:
    joules = record.energy.joules if record.energy else None
    return _rounded(joules) if joules is not None and joules > 0 else None


def _rounded(value: float) -> float:
    """asv shows such numbers as they are."""
    return float(f"{value:.4g}")


FIGURES = {
    f.name: f
    for f in (
        SuiteFigure("time", "seconds", "time of a call", _time),
        SuiteFigure("memory", "bytes", "peak memory above the inputs", _memory),
        SuiteFigure(
            "error", "relative error", "largest relative error of output and gradients", _error
        ),
        SuiteFigure("energy", "joules", "energy of a call, idle draw taken off", _energy),
    )
}


def grid(device: str) -> Preset:
    """The cells that are measured of each commit."""
    return PRESETS[PRESET[device]]


def parameters(figure: str, device: str) -> list[list[Any]]:
    """The values of each parameter; energy takes seconds a cell, so it is of the longest alone."""
    preset = grid(device)
    lengths = [int(n) for n in preset.seq]
    if figure == "energy":
        lengths = [max(lengths)]
    return [list(preset.variants), lengths, list(preset.phase)]


def figures(request: AsvRequest) -> list[SuiteFigure]:
    """The figures that this machine can measure."""
    return [f for f in FIGURES.values() if f.name != "energy" or request.energy]


def keys(request: AsvRequest, names: Collection[str] = tuple(FIGURES)) -> list[Key]:
    """The cells of which at least one of these figures is to be measured."""
    wanted: dict[Key, None] = {}
    for figure in (f for f in figures(request) if f.name in names):
        for key in product(*parameters(figure.name, request.device)):
            if request.wants(figure.benchmark, written(key)):
                wanted[key] = None
    return list(wanted)


def written(key: Sequence[Any]) -> list[str]:
    """Parameters as asv writes them."""
    return [repr(each) for each in key]


def benchmarks(request: AsvRequest | None = None) -> dict[str, dict[str, Any]]:
    """The benchmarks as asv describes them in ``benchmarks.json``."""
    request = request or AsvRequest()
    return {
        f.benchmark: {
            "name": f.benchmark,
            "pretty_name": f.title,
            "type": f.name,
            "unit": f.unit,
            "params": [written(values) for values in parameters(f.name, request.device)],
            "param_names": list(PARAMETERS),
            "version": f.version,
            "timeout": LIMIT_S,
        }
        for f in figures(request)
    }


def row(record: Record) -> SuiteRow:
    """What the benchmarks need of a record."""
    why = record.reason or (record.energy.why if record.energy else "")
    return SuiteRow(str(record.status), why, {f.name: f.of(record) for f in FIGURES.values()})
