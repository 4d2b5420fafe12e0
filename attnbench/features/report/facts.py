"""What the script of the page draws from, and what the page says of each variant."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnbench.answer.paste import in_transformers, lines, words_beside_default
from attnbench.answer.ranking import EXACT, with_same
from attnbench.answer.regimes import time_of
from attnbench.answer.standings import Standing
from attnbench.core.format import positive
from attnbench.core.record import Record
from attnbench.features.report.build import Contents
from attnbench.features.report.cells import tables_of
from attnbench.report.figures import sheet
from attnbench.report.figures.roofline import roof
from attnbench.report.figures.style import MARKERS
from attnbench.report.figures.winner_map import why_none
from attnbench.report.scenes import Scene
from attnbench.report.sentences import distinct_words
from impls import Table, own_rows
from impls.errors import CantBeDone
from impls.loading import mathematics
from impls.problem import Problem
from impls.spec import Variant

FIGURES = 5
"""How many figures of a number are drawn."""
AXES = ("run", "phase", "mask", "dtype")
TIMED = (
    "scene", "variant", "length", "number", "s", "low", "high", "peak", "saved", "error",
    "distance", "fidelity", "share", "flops", "bytes", "joules", "noisy",
)  # fmt: skip
"""What is known of a measurement, in this order: seconds, bytes, joules."""


def axes_of(scene: Scene) -> dict[str, str]:
    """The values by which regimes are filtered."""
    regime = scene.regime
    return dict(zip(AXES, (scene.run.name, regime.phase, regime.mask, regime.dtype), strict=True))


def lengths_of(scenes: Sequence[Scene]) -> list[int]:
    """Every length at which anything has a time, the shortest first."""
    return sorted({s.length for scene in scenes for s in scene.standings if s.timed})


def drawing(contents: Contents, numbers: Mapping[int, int]) -> dict[str, Any]:
    """All that the script draws. ``numbers``: the number of a record's cell, by its identity."""
    place = {name: look.number for name, look in contents.looks.items()}
    apart, scenes = distinct_words(contents.scenes), dict[int, Any]()
    timed, untimed = list[list[Any]](), list[list[Any]]()
    for scene in contents.scenes:
        above = roof(scene)
        scenes[scene.number] = {
            **axes_of(scene),
            "title": apart[scene.number],
            "words": scene.regime.words(),
            "lengths": [s.length for s in scene.standings if s.timed],
            "margin": _short(scene.run.margin),
            "names": {place[name]: with_same(name, x) for name, x in scene.one_kernel.items()},
            "left_out": [place[name] for some in scene.one_kernel.values() for name in some],
            "roof": above and [_short(x) for x in above],
            "answers": {s.length: _answer(scene, s, place) for s in scene.standings},
            "ask": {s.length: words for s in scene.standings if (words := _ask(scene, s.length))},
            "crossings": list(map(str, scene.crossings)),
        }
        for length, cells in scene.regime.cells.items():
            for name, record in cells.items():
                where = [scene.number, place[name], length, numbers[id(record)]]
                if found := time_of(record):
                    ends = [found.median_s, found.low_s, found.high_s]
                    timed.append([*where, *map(_short, [*ends, *_values(record)])])
                else:
                    untimed.append([*where, record.status.words])
    return {
        "fields": TIMED,
        "hues": list(sheet.HUES),
        "variants": [
            [x.variant, x.family, x.computes, x.hue, MARKERS.index(x.marker)]
            for x in contents.looks.values()
        ],
        "scenes": scenes,
        "timed": timed,
        "untimed": untimed,
        "lengths": lengths_of(contents.scenes),
        "length": contents.length,
        "baseline": place.get(contents.baseline, -1),
    }


def _short(value: Any) -> Any:
    """A number with fewer figures; None of what is none or infinite."""
    if not isinstance(value, float):
        return value
    if not abs(value) < float("inf"):
        return None
    short = float(f"{value:.{FIGURES}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _values(record: Record) -> Iterator[float | None]:
    """What :data:`TIMED` names after the interval."""
    memory, far, work = record.memory, record.distance, record.cost
    exact = record.computes == EXACT
    yield positive(memory.peak_bytes) if memory else None
    yield positive(memory.saved_bytes) if memory else None
    yield positive(record.worst_error)
    yield None if exact or not far else positive(far.relative)
    yield 1 if exact else far.skill if far else None
    yield positive(record.share_of_ceiling)
    yield positive(work.flops) if work else None
    yield positive(work.bytes) if work else None
    yield positive(record.energy.joules) if record.energy else None
    yield int(bool(record.time and record.time.doubts))


def _answer(scene: Scene, standing: Standing, place: Mapping[str, int]) -> dict[str, Any]:
    """The winner and what ties with it, or why there is none."""
    if (answer := standing.answer) is None:
        return {"why": why_none(scene, standing.length)}
    return {
        "use": place[answer.winner],
        "ties": [place[name] for name in answer.equal],
        "next": place[answer.next] if answer.next else -1,
        "lead": _short(answer.lead.factor) if answer.lead else None,
        "noisy": int(bool(answer.flags)),
    }


def _ask(scene: Scene, length: int) -> str:
    """What a command says of the problem at a length; empty where no command can."""
    record = next(iter(scene.regime.cells[length].values()))
    return shlex.join([*words_beside_default(record.problem), *tables_of(scene.run.header)])


# ---- what is said of a variant -------------------------------------------------------------------


def panels(contents: Contents) -> dict[str, dict[str, Any]]:
    """By its number, what is said of each variant beside its times."""
    problems: dict[str, dict[int, Problem]] = {}
    for scene in contents.scenes:
        for record in scene.regime.records:
            problems.setdefault(record.variant, {})[scene.number] = record.problem
    table, found = Table(dict(own_rows())), {}
    for name, look in contents.looks.items():
        try:
            row = table.find(name)
        except CantBeDone:
            row = None
        said = _row(row, problems.get(name, {})) if row else {"facts": []}
        core = not row or row.level == "core"
        code = {n: "\n".join(lines(name, p)) for n, p in problems.get(name, {}).items() if core}
        model = "\n".join(in_transformers(name)) if core and look.family != "parallel" else ""
        found[str(look.number)] = {**said, "code": code, "transformers": model}
    return found


def _row(row: Variant, problems: Mapping[int, Problem]) -> dict[str, Any]:
    device = next((p.device for p in problems.values()), row.devices[0])
    takes = [", ".join(row.on(device, what)) for what in ("phases", "masks", "dtypes")]
    shapes = ["grouped-query heads"] * bool(row.gqa)
    shapes += ["unequal lengths" + " in decoding" * (row.cross == "decode")] * bool(row.cross)
    shapes += ["values of another width"] * row.value_dim
    shapes += [f"head sizes {row.head_dims[0]} to {row.head_dims[1]}"] if row.head_dims else []
    needs = [*row.requires, *["CUDA"] * (row.devices == ("cuda",))]
    needs = [", ".join(needs) + f" ({row.install})" * bool(row.install)] if needs else []
    facts = {
        "Paper": row.paper,
        "Written by": row.origin,
        "Needs": needs[0] if needs else "torch alone",
        "Phases": takes[0],
        "Masks": takes[1].replace("none,", "no mask,"),
        "Types": takes[2],
        "Also takes": ", ".join(shapes),
        "Options": ", ".join(f"{k}={v}" for k, v in row.chosen.items() if k != "core"),
    }
    given = [[name, value] for name, value in facts.items() if value]
    return {"title": row.title, "mathematics": mathematics(row.build), "facts": given}
