"""The tables of a report for a paper: a table a regime, medians by variant and length."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.record import Record
from attnbench.report.scenes import Scene

LONG = 60
"""Rows from which a table may break over pages."""
HEAD = """\
% Median milliseconds a call. Bold: the fastest that is exactly softmax, and what can't be told
% from it. Needs the packages booktabs{longtable}.
"""
NONE = "--"
SHORT = {"out_of_memory": "memory", "timed_out": "too slow"}


def tables(scenes: Sequence[Scene]) -> str:
    """Those of all regimes that have a time."""
    made = [_table(scene) for scene in scenes if scene.timed]
    longtable = " and longtable" * any("longtable" in table for table in made)
    return "\n".join([HEAD.format(longtable=longtable), *made])


def _table(scene: Scene) -> str:
    import pandas as pd

    lengths = scene.regime.lengths
    leaders = {s.length: s.leaders for s in scene.standings}
    rows = _rows(scene)
    texts = [[_cell(scene.regime.cells[n].get(v)) for n in lengths] for _, v in rows]
    bold = [["font-weight: bold;" * (v in leaders[n]) for n in lengths] for _, v in rows]
    frame = pd.DataFrame(
        texts,
        index=pd.MultiIndex.from_tuples(rows),
        columns=pd.MultiIndex.from_tuples([(_title(scene), f"{n:,}") for n in lengths]),
    )
    style = frame.style.format(escape="latex")
    style = style.format_index(escape="latex", axis=0).format_index(escape="latex", axis=1)
    style = style.apply(lambda _: pd.DataFrame(bold, frame.index, frame.columns), axis=None)
    text: str = style.to_latex(
        hrules=True, convert_css=True, multirow_align="naive", multicol_align="c",
        column_format="ll" + "r" * len(lengths),
        environment="longtable" if len(rows) > LONG else None,
    )  # fmt: skip
    return text


def _rows(scene: Scene) -> list[tuple[str, str]]:
    """What each computes, and its name: exact ones first, then by time at the longest length."""
    computes: dict[str, str] = {}
    rank: dict[str, tuple[int, float]] = {}
    for length in scene.regime.lengths:
        for name, record in scene.regime.timed(length).items():
            computes[name] = record.computes
            if record.time:
                rank[name] = (-length, record.time.median_s)
    names = sorted(computes, key=lambda v: (computes[v] != "softmax", computes[v], rank[v], v))
    return [(computes[name], name) for name in names]


def _title(scene: Scene) -> str:
    return f"{scene.regime}; {scene.run.machine}; ms"


def _cell(record: Record | None) -> str:
    if record is None:
        return NONE
    if record.time is None:
        return SHORT.get(str(record.status), str(record.status)).replace("measured", NONE)
    return f"{record.time.median_s * 1e3:.4g}"
