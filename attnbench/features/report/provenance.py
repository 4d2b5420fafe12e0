"""Where a run comes from, and what may be believed of it: sentences and facts from its header."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePath
from statistics import median
from typing import Any

from attnbench.core.disk import RECORDS, SPOILED
from attnbench.core.evidence import selfcheck_said
from attnbench.core.record import FINDINGS
from attnbench.features.report.contents import About, margins
from attnbench.report.scenes import ReportRun

DRIFT = 0.05
"""A canary that is off by more says that the machine was not itself."""


def about(run: ReportRun) -> About:
    """All of it for one run."""
    return About(run, machine_line(run), tuple(_trust(run)), tuple(_facts(run)), commands(run))


def machine_line(run: ReportRun) -> str:
    """``AMD EPYC, 2 cores, 24 GiB · torch 2.13.0+cpu · 1 thread · 22 November 2026``"""
    machine = _inner(run.header, "machine")
    threads = _inner(run.header, "settings").get("threads")
    said = [
        ", ".join(_hardware(machine)) or run.machine,
        *(f"torch {v}" for v in [_inner(machine, "versions").get("torch")] if v),
        *(f"{n} thread" + "s" * (n != 1) for n in [threads] if n),
        _day(run.header.get("started")),
    ]
    return " · ".join(word for word in said if word)


def commands(run: ReportRun) -> tuple[str, ...]:
    """That repeat the run, and this report."""
    asked = run.header.get("command")
    repeat = [_portable(asked)] if isinstance(asked, str) and asked else []
    return (*repeat, f"attnbench report {shlex.quote(place(run))}")


def place(run: ReportRun) -> str:
    """``results/amd-epyc-2c/20261122-015809``: where runs lie, whoever has them."""
    path = run.path.resolve()
    return f"results/{path.parent.name}/{path.name}"


def _trust(run: ReportRun) -> Iterator[str]:
    yield selfcheck_said(run.header)
    yield _noise(run.header.get("noise"))
    yield _refused(run)
    yield _flagged(run)
    yield from _drift(run)
    yield from run.notes


def _noise(noise: Any) -> str:
    floors = [f for f in noise if isinstance(f, Mapping)] if isinstance(noise, list) else []
    said = [
        f"{f['floor']:.2%} for calls of {_seconds(f['call_s'])}"
        for f in floors
        if isinstance(f.get("floor"), float | int) and isinstance(f.get("call_s"), float | int)
    ]
    if not said:
        return "noise floor: not measured on this machine yet; 'attnbench env' does it"
    return (
        f"noise floor, by which a variant in pairs seems to differ from itself: {', '.join(said)}"
    )


def _refused(run: ReportRun) -> str:
    timed = sum(r.time is not None for r in run.records)
    refused = Counter(str(r.status) for r in run.records if r.status in FINDINGS)
    each = "; ".join(f"{count} {word}" for word, count in sorted(refused.items()))
    passed = f"{timed} cell{'s' * (timed != 1)} passed the checks and {_have(timed)} a time"
    return f"{passed}; {each or 'none was wrong, implausible or failed'}"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _flagged(run: ReportRun) -> str:
    timed = [r.time for r in run.records if r.time is not None]
    flags = Counter(word for t in timed for word in {flag.split(":")[0] for flag in t.flags})
    marked = sum(bool(t.flags) for t in timed)
    if not marked:
        return "nothing was amiss while times were taken"
    each = ", ".join(f"{flag} ({count})" for flag, count in sorted(flags.items()))
    return f"{marked} of {len(timed)} times were taken while something was amiss: {each}"


def _drift(run: ReportRun) -> Iterator[str]:
    """What the canary saw of the machine, and what was measured again for it."""
    by_node: dict[str, list[float]] = {}
    for record in run.records:
        if record.time and isinstance(record.canary_s, float) and record.canary_s > 0:
            by_node.setdefault(record.node, []).append(record.canary_s)
    for node, readings in sorted(by_node.items()):
        middle = median(readings)
        low, high = min(readings) / middle, max(readings) / middle
        off = sum(abs(x / middle - 1) > DRIFT for x in readings)
        on = f" on {node}" * (len(by_node) > 1)
        yield (
            f"drift{on}: a small attention of the ruler's own, timed now and again, took between "
            f"{low:.2f} and {high:.2f} times its median; {off} of {len(readings)} times were "
            f"taken while it was off by more than {DRIFT:.0%}"
        )
    again = _lines(run.path / SPOILED)
    if again:
        yield f"{again} cell{'s' * (again != 1)} measured while the machine drifted were done again"


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def _facts(run: ReportRun) -> Iterator[tuple[str, str]]:
    header, machine = run.header, _inner(run.header, "machine")
    settings, code = _inner(header, "settings"), _inner(header, "code")
    yield "run", str(header.get("run") or run.path.name)
    yield "started", str(header.get("started") or "not said")
    yield "machine", ", ".join([run.machine, *_hardware(machine)])
    yield from _nodes(header)
    yield "system", f"{machine.get('system', 'not said')}, Python {machine.get('python', '?')}"
    yield "versions", _pairs(_inner(machine, "versions"))
    yield "torch's CUDA", str(machine.get("torch_cuda") or "none")
    yield "compiler", PurePath(str(machine.get("compiler") or "none")).name
    yield "settings", _pairs({k: v for k, v in settings.items() if k != "environment"})
    yield "environment", _pairs(_inner(settings, "environment"))
    yield "clocks", "; ".join(_clocks(run)) or "no time was taken"
    yield "code", _code(code)
    for number, leg in enumerate(header.get("legs") or (), 2):
        yield f"code of leg {number}", f"{_code(leg['code'])}, from {leg['started']}"
    yield "seed of the inputs", str(header.get("seed", "not said"))
    yield "protocol", f"{header.get('protocol', 'not said')} (records of form {header['schema']})"
    yield "sampling budget", f"{header.get('budget_s', '?')} s a cell"
    yield "grid", _grid(_inner(header, "grid"))
    yield "ceilings", _ceilings(_inner(header, "ceilings"))
    yield "records", f"{len(run.records)}, sha256 {_hash(run.path / RECORDS)}"


def _code(code: Mapping[str, Any]) -> str:
    dirty = ", with uncommitted changes" if code.get("dirty") is True else ""
    return f"commit {code.get('commit') or 'not known'}{dirty}"


def _hardware(machine: Mapping[str, Any]) -> list[str]:
    """GPUs first, where there are any: they are what is measured."""
    gpus = machine.get("gpus")
    names = [g for g in gpus if isinstance(g, Mapping)] if isinstance(gpus, list) else []
    counted = Counter((str(g.get("name")), _gib(g.get("memory_bytes"))) for g in names)
    said = [
        f"{count} × " * (count > 1) + f"{name}, {memory}"
        for (name, memory), count in counted.items()
    ]
    said += [str(machine["cpu"])] if machine.get("cpu") else []
    said += [f"{machine['cores']} cores"] if machine.get("cores") else []
    return said + ([_gib(machine["memory_bytes"])] if machine.get("memory_bytes") else [])


def _nodes(header: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    nodes = _inner(header, "nodes")
    for kind, node in nodes.items() if len(nodes) > 1 else ():
        machine = _inner(node, "machine") if isinstance(node, Mapping) else {}
        yield f"node {kind}", ", ".join(_hardware(machine)) or "not said"


def _clocks(run: ReportRun) -> Iterator[str]:
    """Which clock the times are of, and the device's frequency while they were taken."""
    timed = [r.time for r in run.records if r.time is not None]
    for clock, count in sorted(Counter(t.clock for t in timed).items()):
        yield f"{clock} ({count} cells)"
    seen = sorted(mhz for t in timed if (mhz := t.clocks.get("sm_mhz")))
    if seen:
        yield f"GPU at {seen[0]:.0f} to {seen[-1]:.0f} MHz while sampling"


def _grid(grid: Mapping[str, Any]) -> str:
    parts = grid.get("parts")
    if not isinstance(parts, list) or not parts:
        return "; ".join(_values(grid)) or "not said"
    each = [_values(part) for part in parts if isinstance(part, Mapping)]
    alike = [said for said in each[0] if all(said in other for other in each)] if each else []
    apart = ["; ".join(said for said in one if said not in alike) for one in each]
    return " | ".join(["; ".join(alike), *apart])


def _values(grid: Mapping[str, Any]) -> list[str]:
    """What a grid has of each axis; where tokens say the batch, they are said."""
    left_out = {"title", "parts", "batch" if grid.get("tokens") else ""}
    said = {name: v for name, v in grid.items() if v not in ([], None, "")}
    return [
        f"{name} {', '.join(map(str, v)) if isinstance(v, list) else v}"
        for name, v in said.items()
        if name not in left_out
    ]


def _ceilings(ceilings: Mapping[str, Any]) -> str:
    said = [
        f"{_number(v, 1e12)} TFLOP/s in {dtype}" for dtype, v in _inner(ceilings, "flops").items()
    ]
    said += [
        f"{_number(v, 1e9)} GB/s copying {int(size) / 2**20:g} MiB"
        for size, v in _inner(ceilings, "copy").items()
        if str(size).isdigit()
    ]
    return "; ".join(said) or "not measured"


def _number(value: Any, unit: float) -> str:
    return f"{value / unit:.3g}" if isinstance(value, int | float) else "?"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in values.items()) or "not said"


def _gib(value: Any) -> str:
    return f"{value / 2**30:.0f} GiB" if isinstance(value, int | float) else "memory not said"


def _seconds(value: float) -> str:
    return f"{value * 1e6:.3g} µs" if value < 1e-3 else f"{value * 1e3:.3g} ms"


def _day(started: Any) -> str:
    try:
        day = datetime.fromisoformat(started)
    except (TypeError, ValueError):
        return ""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
"""As the page's language has them, whatever the locale."""


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "of no file"


FOLDERS = re.compile(r"(^|[=:])/(?:[^/]*/)*")
"""Of a file, whole or behind an option's name, the folders from the root on."""


def _portable(command: str) -> str:
    """A command as somebody else may give it: where files lay on that machine is left out."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return shlex.join(FOLDERS.sub(r"\1", word) for word in words)


def _inner(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a header, which anybody may have written."""
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def method(runs: Sequence[ReportRun]) -> tuple[str, ...]:
    """How it was measured, in sentences."""
    return tuple(line.replace("MARGIN", margins(runs)) for line in METHOD)


METHOD = (
    "Every variant passes a gate before it is timed. Its output, and for training its gradients, "
    "are held against float64 on the inputs that are timed, by a budget that the plain form in the "
    "same dtype sets; a probe sees which keys each row lets in. What fails has no time, and says "
    "why.",
    "A time is the median of single calls by one named clock, warmed up, with its 95 % interval "
    "from order statistics; sampling ends when the interval is within 1 %, when it has stopped "
    "narrowing, or with its budget. Every sample is kept in the records.",
    "A second clock and the machine's measured ceilings audit each time: work after the return, "
    "more processors than threads, or a time that no memory and no product here reaches make "
    "a record implausible, and it has no time.",
    "Variants are ranked among those that compute exactly softmax attention. Blocks timed one "
    "after the other differ by a twentieth through drift alone, and by more where variants that "
    "ran the same kernels did so in the run, or where its canary scattered: those whose "
    "intervals come within MARGIN of each other are a tie. A lead's range is from the near to the "
    "far ends of both intervals.",
    "What approximates softmax, or is an operator of its own, is shown beside the ranking with its "
    "distance from softmax on the same inputs. It is called a substitute only where it keeps half "
    "or more of what softmax does beyond averaging the values. Random inputs are not a trained "
    "model's: that is a hint, no judgement of quality.",
    "Memory is what lives above the inputs at the worst instant, output included, and what stays "
    "between forward and backward. FLOPs are those that the mathematics needs on the pairs that "
    "the mask lets meet, whatever an implementation does besides; the share of the ceiling is the "
    "least time that the measured product and copy allow, over the median.",
    "Exponents are fitted by least squares on the logarithms of the longest four lengths. A "
    "crossover is a bracket between two measured lengths, with the exponents' estimate inside.",
)
