"""What isn't exact, on real and made-up inputs: skill and distance, a column a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table as Grid

from attnbench.report.quality_said import NOTHING
from attnbench.report.tables import BAD, FAINT, GOOD, console, grid, put

if TYPE_CHECKING:
    from attnbench.store.evidence import Evidence

Row = Mapping[str, Any]
SAME = 1e-4
"""A distance from softmax that is rounding: what leaves anything out is off by far more."""
ORDER = ("softmax", "approximates softmax", "softmax on its own pattern", "its own operator")
TITLES = {
    "softmax": "exact softmax",
    "approximates softmax": "near softmax",
    "softmax on its own pattern": "softmax on its own pattern",
    "its own operator": "operators of their own: their distance is information, not a fault",
}


def show_real(found: Evidence) -> None:
    """``quality real``"""
    out = console()
    for title, made in real_tables(found):
        out.print(f"\n[bold]{escape(title)}[/]")
        put(made)
    out.print()
    for line in real_lines(found):
        out.print(escape(line), style=FAINT)


def real_tables(found: Evidence) -> list[tuple[str, Grid]]:
    """The tables by their titles: the entropies, then skill and distance of each kind."""
    sources = list(dict.fromkeys(row["source"] for row in found.rows))
    made = [("how spread the attention is: its mean entropy, as a share of the most",
             _entropies(found.rows, sources))]  # fmt: skip
    for computes in ORDER:
        some = [row for row in found.rows if row["computes"] == computes]
        if _tried(some):
            made += [(f"{TITLES[computes]}: skill", _grid(some, sources, "skill")),
                     (f"{TITLES[computes]}: distance from softmax",
                      _grid(some, sources, "distance"))]  # fmt: skip
    return made


def real_lines(found: Evidence) -> list[str]:
    """What the tables leave out, and what their words mean."""
    return [*_amiss(found.rows), *_foot(found)]


def entropies(rows: Sequence[Row]) -> dict[str, float]:
    """By source: the entropy of softmax's weights there."""
    return {row["source"]: row["entropy"] for row in rows if row["entropy"] is not None}


def _entropies(rows: Sequence[Row], sources: Sequence[str]) -> Grid:
    found = entropies(rows)
    made = grid("", *sources, right=sources)
    cells = [f"{found[s]:.3f}" if s in found else NOTHING for s in sources]
    made.add_row("entropy", *cells)
    return made


def _tried(rows: Sequence[Row]) -> list[str]:
    """The variants of which anything was asked."""
    return list(dict.fromkeys(r["variant"] for r in rows
                              if r["status"] not in ("refused", "unavailable")))  # fmt: skip


def _grid(rows: Sequence[Row], sources: Sequence[str], what: str) -> Grid:
    made = grid("variant", *sources, right=sources)
    by = {(row["variant"], row["source"]): row for row in rows}
    for name in sorted(_tried(rows), key=lambda name: -mean_skill(rows, name)):
        cells = [_cell(by.get((name, source)), what) for source in sources]
        made.add_row(escape(name), *cells)
    return made


def mean_skill(rows: Sequence[Row], name: str) -> float:
    """Over the model's layers; what has none comes last."""
    skills = [r["skill"] for r in rows if r["variant"] == name and r["skill"] is not None
              and r["source"].startswith("layer")]  # fmt: skip
    return sum(skills) / len(skills) if skills else float("-inf")


def _cell(row: Row | None, what: str) -> str:
    if row is None:
        return NOTHING
    if row["status"] != "measured":
        return f"[{BAD}]{escape(row['status'].replace('_', ' '))}[/]"
    value = row[what]
    if value is None:
        return NOTHING
    if what == "distance":
        return f"{value:.3g}"
    return f"[{GOOD}]{value:.3f}[/]" if value >= 0.5 else f"{value:.3f}"


def _amiss(rows: Sequence[Row]) -> Iterator[str]:
    """Whoever has no figures, and why; once for all sources where it is the same."""
    whys: dict[tuple[str, str], list[str]] = {}
    away = dict.fromkeys(row["variant"] for row in rows if row["status"] == "unavailable")
    if away:
        yield f"not available here ('attnbench list' says why): {', '.join(away)}"
    for row in rows:
        if row["status"] not in ("measured", "unavailable"):
            why = f"{row['status'].replace('_', ' ')}: {row['reason']}"
            whys.setdefault((row["variant"], why), []).append(row["source"])
    every = len({row["source"] for row in rows})
    for (name, why), where in whys.items():
        on = f" on {', '.join(where)}" * (len(where) < every)
        yield f"! {name}{on}: {why}"


def _leave_nothing_out(rows: Sequence[Row]) -> list[str]:
    """Who is as near to softmax as rounding, on every source."""
    names = dict.fromkeys(row["variant"] for row in rows if row["distance"] is not None)
    far = {row["variant"] for row in rows if (row["distance"] or 0.0) > SAME}
    return [name for name in names if name not in far]


def _foot(found: Evidence) -> Iterator[str]:
    wanted, made = found.made["wanted"], found.made
    problem = next((row["problem"] for row in found.rows), "")
    yield (
        f"{made['model']['name']}: q, k and v of each layer on {wanted['batch']} rows of "
        f"{wanted['seq']} tokens, passages one after the other ({made['texts']['digest']}); all "
        f"sources are {problem}"
    )
    if same := _leave_nothing_out(found.rows):
        yield (
            f"no further from softmax than {SAME:g} anywhere: {', '.join(same)}; at this length "
            "they leave nothing out"
        )
    yield (
        "skill: one minus the distance from softmax over that of mean_v, which gives every query "
        "the mean of the values: 1 is exact, 0 knows nothing of the scores, below it is worse"
    )
    yield "entropy: of softmax's weights in float64; 1 is uniform, 0 picks one key"
    yield "peaky: logits in the hundreds; outliers: a few channels of keys and values are loud"
