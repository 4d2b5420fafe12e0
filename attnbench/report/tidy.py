"""Rows of plain values, as ``--csv`` prints them and as a notebook holds them in a DataFrame.

A row is a measurement, or whatever else a verb answers with. All rows of a verb have the same
columns. Times are in ms and memory is in MiB; the names of the columns say so.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from attnbench.answer.ranking import EXACT, Answer, answers
from attnbench.core.format import figures, for_sheet
from attnbench.core.wire import plain
from impls.errors import CantBeDone
from impls.operators import PARAMETERS
from impls.problem import Problem

if TYPE_CHECKING:
    import pandas as pd

    from attnbench.core.record import Record
    from attnbench.core.stats import Comparison
    from attnbench.report.scenes import ReportRun

Row = dict[str, Any]
UNITS = {"_s": ("_ms", 1e3), "_bytes": ("_mib", 2.0**-20)}
"""The end of a field's name, that of its column's, and what makes the one of the other."""
SHORT = {"median_ms": "ms", "memory_mib": "mib", "peak_mib": "mib"}
PLAIN = {"skill": "fidelity", "seconds": "forward_s"}
INTERVAL = {"value": "{}", "low": "low_{}", "high": "high_{}"}


def show(rows: Iterable[Row]) -> None:
    """Print rows as one table of CSV; raises CantBeDone where there is none."""
    if not (rows := list(rows)):
        raise CantBeDone("there is no row for a table; --json, or neither, says what there is")
    print(csv_of(rows), end="")


def csv_of(rows: Sequence[Row]) -> str:
    """Rows as CSV. Text that a spreadsheet would take for a formula begins with an apostrophe."""
    out, names = io.StringIO(), names_of(rows)
    lines = (map(row.get, names) for row in rows)
    csv.writer(out, lineterminator="\n").writerows(map(for_sheet, x) for x in (names, *lines))
    return out.getvalue()


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a DataFrame; where there is no number, NaN."""
    import pandas as pd

    table = pd.DataFrame(list(rows))
    return table.astype({name: float for name in table if len(table) and table[name].isna().all()})


def html(table: pd.DataFrame) -> str:
    """A DataFrame as a notebook shows it, without its empty columns."""
    some = table.loc[:, (table.notna() & table.ne("")).any()]
    return str(some.to_html(index=False, escape=True, na_rep="", float_format=figures))


def names_of(rows: Iterable[Row]) -> list[str]:
    """The names of all columns, in the order in which rows have them."""
    return list(dict.fromkeys(name for row in rows for name in row))


def flat(value: Any) -> Row:
    """The fields of a structure, a dataclass or a mapping, and those of its parts, side by side."""
    row: Row = {}
    for name, each in _fields(value):
        if isinstance(each, Problem):
            row |= of_problem(each)
        elif isinstance(each, Mapping | msgspec.Struct) or is_dataclass(each):
            for inner, part in _fields(each):
                row |= _column(INTERVAL.get(inner, "{}_" + inner).format(name), part)
        else:
            row |= _column(name, each)
    return row


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, msgspec.Struct):
        yield from msgspec.structs.asdict(value).items()
    else:
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))


def _column(name: str, value: Any) -> Row:
    """A column and its value: seconds as ms, bytes as MiB, several texts as one."""
    if isinstance(value, list | tuple):
        value = "; ".join(map(str, value))
    name = PLAIN.get(name, name)
    for end, (unit, factor) in UNITS.items():
        if name.endswith(end) and not isinstance(value, str):
            name = name.removesuffix(end) + unit
            value = None if value is None else value * factor
    return {SHORT.get(name, name): value}


def of_problem(problem: Problem | Mapping[str, Any]) -> Row:
    """The columns of a problem, those first that vary most."""
    values = dict(problem if isinstance(problem, Mapping) else plain(problem))
    first = {name: values.pop(name) for name in ("phase", "mask")}
    return {**first, "seq": values.pop("kv_len"), **values}


def of_comparison(comparison: Comparison | Mapping[str, Any] | None) -> Row:
    """The columns of a verdict: b's time over a's, its interval, and what stands behind it."""
    values = dict(_fields(comparison)) if comparison else {}
    names = {"ratio": "ratio", "low": "low_ratio", "high": "high_ratio", "n": "pairs"}
    names |= {"margin": "margin", "smallest_effect": "could_be_seen"}
    return {name: values.get(field) for field, name in names.items()}


def _verdict(record: Record, answer: Answer | None) -> str:
    if record.wrong_on:
        return "wrong on other inputs"
    if record.computes != EXACT or answer is None:
        return "not exact"
    kinds = {answer.winner: "use", **dict.fromkeys(answer.equal, "tied")}
    return (kinds | dict.fromkeys(answer.same, "same kernel")).get(record.variant, "slower")


def measurements(run: ReportRun) -> Iterator[Row]:
    """The first figures that one wants of each record of a run."""
    best: dict[Any, float] = {}
    for record in run.records:
        if record.computes == EXACT and record.time and not record.wrong_on:
            at = _place(record)
            best[at] = min(best.get(at, record.time.median_s), record.time.median_s)
    by_place = {(a.problem, a.world, a.node): a for a in answers(run.records, run.margin)}
    nodes = len({record.node for record in run.records if record.time}) > 1
    ranks = any(record.ranks for record in run.records)
    joules = any(record.energy for record in run.records)
    settings = [n for n in PARAMETERS if any(n in r.problem.parameters for r in run.records)]
    sustained = any(r.time and r.time.sustained_s for r in run.records)
    cached = any(r.bytes_a_token for r in run.records)
    kept = any(r.distance and r.distance.kept is not None for r in run.records)
    parts = dict.fromkeys(name for record in run.records for name in record.parts)
    kinds: dict[Problem, list[str]] = {}
    for layer in run.layers:
        kinds.setdefault(layer.choice.problem, []).append(layer.kind)
    for record in run.records:
        at, t, far = _place(record), record.time, record.distance
        verdict = record.status.words
        if t:
            verdict = _verdict(record, by_place.get(at if nodes else (*at[:2], "")))
        times = {"median_s": None, "low_s": None, "high_s": None}
        spent = record.energy.joules if record.energy else None
        yield {
            "variant": record.variant,
            "computes": record.computes,
            **({"kind": "; ".join(kinds.get(record.problem, []))} if kinds else {}),
            **of_problem(record.problem),
            **{name: getattr(record.problem, name) for name in settings},
            **({"world": at[1] or 1} if ranks else {}),
            **({"node": record.node} if nodes else {}),
            **flat({name: getattr(t, name, None) for name in times}),
            **_column("peak_bytes", record.memory and record.memory.peak_bytes),
            **({"bytes_a_token": record.bytes_a_token} if cached else {}),
            "error": record.worst_error,
            "fidelity": far and far.skill,
            **({"kept": far and far.kept} if kept else {}),
            **flat({f"{name}_s": record.parts.get(name) for name in parts}),
            **({"mj": None if spent is None else 1e3 * spent} if joules else {}),
            **(_column("sustained_s", t and t.sustained_s) if sustained else {}),
            "vs_best": t.median_s / best[at] if t and at in best else None,
            "verdict": verdict,
            "flags": "; ".join(t.doubts) if t else "",
            "reason": record.reason,
        }


def _place(record: Record) -> tuple[Problem, int | None, str]:
    return record.problem, record.ranks.world if record.ranks else None, record.node
