"""The provenance of a run and how far it can be trusted: sentences and facts from its header."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from statistics import median
from typing import Any, NamedTuple

from attnbench.answer.ranking import margin_reason
from attnbench.core.disk import RECORDS
from attnbench.core.evidence import selfcheck_said
from attnbench.core.format import counted, duration, percent, size
from attnbench.core.record import FINDINGS
from attnbench.core.stats import drift_margin
from attnbench.report.scenes import ReportRun, hardware, machine_line, part

FOLDERS = re.compile(r"(^|[=:])/(?:[^/]*/)*")
"""The folders of an absolute path, alone or behind the name of an option."""
UNKNOWN = "not said"
SPOILED = "spoiled.jsonl"
"""Where an earlier attnbench put what it measured again."""


class About(NamedTuple):
    """The provenance of a run, and how far it can be trusted."""

    run: ReportRun
    machine_line: str
    """``AMD EPYC, 2 cores, 24 GiB · torch 2.13.0+cpu · 1 thread · 22 November 2026``"""
    margin: str
    """The largest difference that counts as a tie, and why; empty where nothing has a time. It is
    the first of ``trust`` too."""
    trust: Sequence[str]
    """Sentences: the self-check, the noise floor, what was noisy."""
    facts: Sequence[tuple[str, str]]
    commands: Sequence[str]


def about(run: ReportRun) -> About:
    """The provenance of a run, and how far it can be trusted."""
    margin = margin_reason(run.records) if any(r.time for r in run.records) else ""
    trust, facts = (*filter(None, [margin]), *_trust(run)), tuple(_facts(run))
    return About(run, machine_line(run), margin, trust, facts, commands(run))


def commands(run: ReportRun) -> tuple[str, ...]:
    """The commands that repeat the run, without the folders of its machine, and this report."""
    command, path = run.header.get("command"), run.path.resolve()
    report = f"attnbench report {shlex.quote(f'results/{path.parent.name}/{path.name}')}"
    try:
        words = shlex.split(str(command or ""))
    except ValueError:
        return str(command), report
    repeat = shlex.join(FOLDERS.sub(r"\1", word) for word in words)
    return (repeat, report) if repeat else (report,)


def _trust(run: ReportRun) -> Iterator[str]:
    timed = [r.time for r in run.records if r.time is not None]
    yield selfcheck_said(run.header)
    floors = []
    for each in run.header.get("noise") or ():
        floors.append(f"{percent(each['floor'])} for calls of {duration(each['call_s'])}")
    of = "noise floor, by which a variant in pairs seems to differ from itself"
    none = "noise floor: not measured on this machine yet; 'attnbench env' does it"
    yield f"{of}: {', '.join(floors)}" if floors else none
    refused = Counter(str(r.status) for r in run.records if r.status in FINDINGS)
    each = "; ".join(f"{count} {word}" for word, count in sorted(refused.items()))
    have = "has" if len(timed) == 1 else "have"
    passed = f"{counted(len(timed), 'measurement')} passed the correctness checks and {have} a time"
    yield f"{passed}; {each or 'none was wrong, implausible or failed'}"
    flags = Counter(word for t in timed for word in {flag.split(":")[0] for flag in t.doubts})
    if flags:
        each = ", ".join(f"{flag} ({count})" for flag, count in sorted(flags.items()))
        noisy = sum(bool(t.doubts) for t in timed)
        more = ", some for several reasons" if sum(flags.values()) > noisy else ""
        yield f"{noisy} of {len(timed)} timings were noisy{more}: {each}"
    else:
        yield "no timing was noisy"
    yield from _drift(run)
    yield from run.notes


def _drift(run: ReportRun) -> Iterator[str]:
    """Sentences on the drift check, and on how much was measured again because of it."""
    by_node: dict[str, list[float]] = {}
    for record in run.records:
        if record.time and record.canary_s:
            by_node.setdefault(record.node, []).append(record.canary_s)
    for node, readings in sorted(by_node.items()):
        middle = median(readings)
        margin = drift_margin(run.header.get("noise") or (), middle)
        off = sum(abs(x / middle - 1) > margin for x in readings)
        on = f" on {node}" if len(by_node) > 1 else ""
        yield (
            f"drift check{on}: its timing took between {min(readings) / middle:.2f} and "
            f"{max(readings) / middle:.2f} times its median; at {off} of {len(readings)} timings "
            f"it was off by more than {percent(margin)}"
        )
    spoiled = run.path / SPOILED
    again = run.again + (spoiled.read_bytes().count(b"\n") if spoiled.is_file() else 0)
    if again:
        yield f"{counted(again, 'measurement')} made while the machine drifted were repeated"


def _facts(run: ReportRun) -> Iterator[tuple[str, str]]:
    header, machine = run.header, part(run.header, "machine")
    settings, records = part(header, "settings"), run.path / RECORDS
    digest = hashlib.sha256(records.read_bytes()).hexdigest() if records.exists() else "of no file"
    yield "run", str(header.get("run") or run.path.name)
    yield "started", str(header.get("started") or UNKNOWN)
    yield "machine", ", ".join([run.machine, *hardware(machine)])
    nodes = part(header, "nodes")
    for kind, node in nodes.items() if len(nodes) > 1 else ():
        yield f"node {kind}", ", ".join(hardware(part(node, "machine"))) or UNKNOWN
    yield "system", f"{machine.get('system', UNKNOWN)}, Python {machine.get('python', '?')}"
    yield "versions", _pairs(part(machine, "versions"))
    yield "torch's CUDA", str(machine.get("torch_cuda") or "none")
    yield "compiler", PurePath(str(machine.get("compiler") or "none")).name
    yield "settings", _pairs({k: v for k, v in settings.items() if k != "environment"})
    yield "environment", _pairs(part(settings, "environment"))
    timed = [r.time for r in run.records if r.time is not None]
    clocks = [f"{x} ({n} measurements)" for x, n in sorted(Counter(t.clock for t in timed).items())]
    if mhz := [x for t in timed if (x := t.clocks.get("sm_mhz"))]:
        clocks.append(f"GPU at {min(mhz):.0f} to {max(mhz):.0f} MHz while sampling")
    yield "clocks", "; ".join(clocks) or "no time was taken"
    codes = {"code": part(header, "code")}
    codes |= {f"code of leg {n}": leg for n, leg in enumerate(header.get("legs") or (), 2)}
    for name, of in codes.items():
        code, since = of.get("code", of), f", from {of['started']}" if "started" in of else ""
        dirty = ", with uncommitted changes" if code.get("dirty") is True else ""
        yield name, f"commit {code.get('commit') or 'not known'}{dirty}{since}"
    yield "seed of the inputs", str(header.get("seed", UNKNOWN))
    yield "protocol", f"{header.get('protocol', UNKNOWN)} (records of form {header['schema']})"
    yield "sampling budget", f"{header.get('budget_s', '?')} s a measurement"
    yield "grid", _grid(part(header, "grid"))
    ceilings = part(header, "ceilings")
    rates = [f"{x / 1e12:.3g} TFLOP/s in {of}" for of, x in part(ceilings, "flops").items() if x]
    copies = {int(copied): rate for copied, rate in part(ceilings, "copy").items() if rate}
    rates += [f"{rate / 1e9:.3g} GB/s copying {size(copied)}" for copied, rate in copies.items()]
    yield "ceilings", "; ".join(rates) or "not measured"
    yield "records", f"{len(run.records)}, sha256 {digest}"


def _grid(grid: Mapping[str, Any]) -> str:
    """The values of each axis; of a grid in parts, what they share and then what differs."""
    each = [_values(part) for part in grid.get("parts") or () if isinstance(part, Mapping)]
    if not each:
        return "; ".join(_values(grid)) or UNKNOWN
    shared = [value for value in each[0] if all(value in other for other in each)]
    rest = ["; ".join(value for value in one if value not in shared) for one in each]
    return " | ".join(["; ".join(shared), *rest])


def _values(grid: Mapping[str, Any]) -> list[str]:
    """The values of each axis of a grid; no batch where tokens determine it."""
    left_out = {"title", "parts", "batch" if grid.get("tokens") else ""}
    return [
        f"{name} {', '.join(map(str, v)) if isinstance(v, list) else v}"
        for name, v in grid.items()
        if v not in ([], None, "") and name not in left_out
    ]


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in values.items()) or UNKNOWN
