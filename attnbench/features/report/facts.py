"""The data that the page's script draws from, and the facts of each variant."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attnbench.answer.paste import in_transformers, lines, words_beside_default
from attnbench.answer.ranking import EXACT, with_same
from attnbench.answer.regimes import time_of
from attnbench.answer.standings import Standing
from attnbench.core.format import positive
from attnbench.core.record import NOT_TRIED, Record, Time
from attnbench.features.report.build import Contents
from attnbench.features.report.cells import tables_of
from attnbench.report.figures.style import MARKERS
from attnbench.report.scenes import Scene
from attnbench.report.sentences import distinct_words
from impls import Table, own_rows
from impls.errors import CantBeDone
from impls.loading import mathematics
from impls.problem import Problem
from impls.spec import Variant

AXES = ("run", "phase", "mask", "dtype")


def axes_of(scene: Scene) -> dict[str, str]:
    """The values by which regimes are filtered."""
    regime = scene.regime
    return dict(zip(AXES, (scene.run.name, regime.phase, regime.mask, regime.dtype), strict=True))


def lengths_of(scenes: Sequence[Scene]) -> list[int]:
    """Every length at which anything has a time, the shortest first."""
    return sorted({s.length for scene in scenes for s in scene.standings if s.timed})


def drawing(contents: Contents, numbers: Mapping[int, int]) -> dict[str, Any]:
    """All data of the figures. ``numbers``: the number of a record's cell, by its identity."""
    place = {name: look.number for name, look in contents.looks.items()}
    apart, scenes = distinct_words(contents.scenes), dict[int, Any]()
    timed, untimed = list[dict[str, Any]](), list[list[Any]]()
    for scene in contents.scenes:
        scenes[scene.number] = {
            **axes_of(scene),
            "title": apart[scene.number],
            "words": scene.regime.words(),
            "lengths": [s.length for s in scene.standings if s.timed],
            "margin": shorten(scene.run.margin),
            "names": {place[name]: with_same(name, x) for name, x in scene.one_kernel.items()},
            "left_out": [place[name] for some in scene.one_kernel.values() for name in some],
            "answers": {s.length: _answer(scene, s, place) for s in scene.standings},
            "ask": {s.length: words for s in scene.standings if (words := _ask(scene, s.length))},
            "crossings": list(map(str, scene.crossings)),
        }
        for length, cells in scene.regime.cells.items():
            for name, record in cells.items():
                place_of = {
                    "scene": scene.number,
                    "variant": place[name],
                    "length": length,
                    "number": numbers[id(record)],
                }
                if time := time_of(record):
                    timed.append({**place_of, **shorten(_values(record, time))})
                else:
                    untimed.append([*place_of.values(), record.status.words])
    return {
        "fields": list(timed[0]) if timed else [],
        "variants": [
            [x.variant, x.family, x.computes, x.hue, MARKERS.index(x.marker)]
            for x in contents.looks.values()
        ],
        "scenes": scenes,
        "timed": [list(cell.values()) for cell in timed],
        "untimed": untimed,
        "lengths": lengths_of(contents.scenes),
        "length": contents.length,
        "baseline": place.get(contents.baseline, -1),
    }


def why_none(scene: Scene, length: int) -> str:
    """The reason why a length has no winner; exact variants that were tried come first."""
    records = list(scene.regime.cells.get(length, {}).values())
    exact = [r for r in records if r.computes == "softmax"]
    if not records:
        return "not run"
    if not exact and any(r.time for r in records):
        return "nothing exact, others timed"
    attempts = [r for r in exact or records if r.status not in NOT_TRIED]
    statuses = Counter(r.status for r in attempts or exact or records)
    return statuses.most_common(1)[0][0].words


def shorten(value: Any, digits: int = 5) -> Any:
    """A value with fewer significant digits; None for a number that is not finite."""
    if isinstance(value, dict):
        return {key: shorten(inner, digits) for key, inner in value.items()}
    if isinstance(value, list):
        return [shorten(inner, digits) for inner in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _values(record: Record, time: Time) -> dict[str, float | None]:
    """The fields of a measurement: seconds, bytes, joules."""
    memory, far, work, exact = record.memory, record.distance, record.cost, record.computes == EXACT
    return {
        "s": time.median_s,
        "low": time.low_s,
        "high": time.high_s,
        "peak": positive(memory.peak_bytes) if memory else None,
        "saved": positive(memory.saved_bytes) if memory else None,
        "error": positive(record.worst_error),
        "distance": None if exact or not far else positive(far.relative),
        "fidelity": 1 if exact else far.skill if far else None,
        "share": positive(record.share_of_ceiling),
        "flops": positive(work.flops) if work else None,
        "joules": positive(record.energy.joules) if record.energy else None,
        "noisy": int(bool(time.doubts)),
    }


def _answer(scene: Scene, standing: Standing, place: Mapping[str, int]) -> dict[str, Any]:
    """The winner and what ties with it, or why there is none."""
    if (answer := standing.answer) is None:
        return {"why": why_none(scene, standing.length)}
    return {
        "use": place[answer.winner],
        "ties": [place[name] for name in answer.equal],
        "next": place[answer.next] if answer.next else -1,
        "lead": shorten(answer.lead.value) if answer.lead else None,
        "noisy": int(bool(answer.flags)),
    }


def _ask(scene: Scene, length: int) -> str:
    """The words of a command for the problem at a length; empty where no command can measure it."""
    record = next(iter(scene.regime.cells[length].values()))
    return shlex.join([*words_beside_default(record.problem), *tables_of(scene.run.header)])


# ---- the facts of a variant ----------------------------------------------------------------------


def panels_of(contents: Contents) -> dict[str, dict[str, Any]]:
    """The facts of each variant, by its number in the report."""
    problems: dict[str, dict[int, Problem]] = {}
    for scene in contents.scenes:
        for record in scene.regime.records:
            problems.setdefault(record.variant, {})[scene.number] = record.problem
    table, panels = Table(dict(own_rows())), {}
    for name, look in contents.looks.items():
        try:
            row = table.find(name)
        except CantBeDone:
            row = None
        about = _row(row, problems.get(name, {})) if row else {"facts": []}
        core = not row or row.level == "core"
        code = {n: "\n".join(lines(name, p)) for n, p in problems.get(name, {}).items() if core}
        model = "\n".join(in_transformers(name)) if core and look.family != "parallel" else ""
        panels[str(look.number)] = {**about, "code": code, "transformers": model}
    return panels


def _row(row: Variant, problems: Mapping[int, Problem]) -> dict[str, Any]:
    """Its title, its mathematics, and facts, of which empty ones are left out."""
    device = next((p.device for p in problems.values()), row.devices[0])
    phases, masks, dtypes = (", ".join(row.on(device, x)) for x in ("phases", "masks", "dtypes"))
    cross = "unequal lengths in decoding" if row.cross == "decode" else "unequal lengths"
    heads = f"head sizes {row.head_dims[0]} to {row.head_dims[1]}" if row.head_dims else ""
    shapes = [
        "grouped-query heads" if row.gqa else "",
        cross if row.cross else "",
        "values of another width" if row.value_dim else "",
        heads,
    ]
    needs = ", ".join([*row.requires, *(["CUDA"] if row.devices == ("cuda",) else [])])
    facts = {
        "Paper": row.paper,
        "Written by": row.origin,
        "Needs": f"{needs} ({row.install})" if needs and row.install else needs or "torch alone",
        "Phases": phases,
        "Masks": masks.replace("none,", "no mask,"),
        "Types": dtypes,
        "Also takes": ", ".join(filter(None, shapes)),
        "Options": ", ".join(f"{k}={v}" for k, v in row.chosen.items() if k != "core"),
    }
    some = [[name, value] for name, value in facts.items() if value]
    return {"title": row.title, "mathematics": mathematics(row.build), "facts": some}
