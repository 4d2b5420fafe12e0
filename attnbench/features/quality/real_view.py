"""The view of ``quality real``: the skill on each source of q, k and v."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attnbench.core.evidence import Evidence
from attnbench.features.quality.model_view import unavailable_note
from attnbench.features.quality.rows import status_words
from attnbench.report import tidy
from attnbench.report.tables import BAD, GOOD, Styled, Table, columns

Row = Mapping[str, Any]
TITLES = {
    "softmax": "exact softmax",
    "approximates softmax": "near softmax",
    "softmax on its own pattern": "softmax on its own pattern",
    "its own operator": "operators of their own: a low skill is information, not a fault",
}


def conclusions(evidence: Evidence) -> list[str]:
    """None: the tables say it all."""
    return []


def tables(evidence: Evidence) -> list[Table]:
    """The entropies, then the skill of each variant, the best mean on layers first."""
    rows = evidence.rows
    sources = list(dict.fromkeys(row["source"] for row in rows))
    entropies = {r["source"]: f"{r['entropy']:.3f}" for r in rows if r["entropy"] is not None}
    title = "how spread the attention is: its mean entropy, as a share of the most"
    spread = Table(
        title, columns("", *sources, right=sources), [["entropy", *map(entropies.get, sources)]]
    )
    all_tables = [spread]
    for computes, title in TITLES.items():
        cells: dict[str, dict[str, Row]] = {}
        for row in rows:
            if row["computes"] == computes:
                cells.setdefault(row["variant"], {})[row["source"]] = row
        lines = [
            (name, *(_cell(by_source.get(source)) for source in sources))
            for name, by_source in sorted(cells.items(), key=lambda each: -_mean_skill(each[1]))
            if any(row["status"] not in ("refused", "unavailable") for row in by_source.values())
        ]
        heads = columns("variant", *sources, right=sources)
        all_tables += [Table(f"{title}: skill", heads, lines)] if lines else []
    return all_tables


def _mean_skill(by_source: Mapping[str, Row]) -> float:
    layers = [row["skill"] for source, row in by_source.items() if source.startswith("layer")]
    numbers = [skill for skill in layers if skill is not None]
    return sum(numbers) / len(numbers) if numbers else float("-inf")


def _cell(row: Row | None) -> str | Styled | None:
    if row is not None and row["status"] != "measured":
        return Styled(row["status"].replace("_", " "), BAD)
    if row is None or (skill := row["skill"]) is None:
        return None
    return Styled(f"{skill:.3f}", GOOD if skill >= 0.5 else "")


def notes(evidence: Evidence) -> Iterator[str]:
    """The variants without figures and why, once where it is the same; the meaning of words."""
    yield from unavailable_note(evidence.rows)
    sources_of: dict[tuple[str, str], list[str]] = {}
    for row in evidence.rows:
        if row["status"] not in ("measured", "unavailable"):
            sources_of.setdefault((row["variant"], status_words(row)), []).append(row["source"])
    every = len({row["source"] for row in evidence.rows})
    for (name, why), sources in sources_of.items():
        on = f" on {', '.join(sources)}" if len(sources) < every else ""
        yield f"! {name}{on}: {why}"
    header, options = evidence.made, evidence.made["wanted"]
    problem = next((row["problem"] for row in evidence.rows), "")
    yield (
        f"{header['model']['name']}: q, k and v of each layer on {options['batch']} rows of "
        f"{options['seq']} tokens, passages one after the other ({header['texts']['digest']}); all "
        f"sources are {problem}"
    )
    yield (
        "skill: one minus the distance from softmax over that of mean_v, which gives every query "
        "the mean of the values: 1 is exact, 0 knows nothing of the scores, below it is worse"
    )
    yield (
        "entropy: of softmax's weights in float64; 1 is uniform, 0 picks one key; peaky: logits in "
        "the hundreds; outliers: a few channels of keys and values are loud"
    )


def csv_rows(evidence: Evidence) -> Iterator[tidy.Row]:
    """A row a variant and a source of q, k and v."""
    options = {name: evidence.made["wanted"][name] for name in ("seq", "batch", "dtype", "device")}
    names = ("status", "skill", "distance", "entropy", "reason", "remedy")
    for row in evidence.rows:
        about = {name: row[name] for name in ("variant", "computes", "source")}
        yield tidy.flat({**about, **options, **{name: row.get(name) for name in names}})


def draw(evidence: Evidence) -> None:
    """No picture."""
