"""The tables of ``quality model`` and ``quality real``; the report's page has the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.core import format
from attnbench.core.stats import Pairs, Verdict
from attnbench.features.commits.view import STYLE
from attnbench.features.quality.model_results import (
    LONG,
    NAMED,
    RANKED,
    conclude,
    format_cosine,
    format_interval,
    format_triple,
    lengths_of,
    levels_of,
    long_texts,
    name_points,
    order_kept,
    points,
    timed_steps,
)
from attnbench.report.tables import BAD, GOOD, Styled, Table, columns

if TYPE_CHECKING:
    from attnbench.core.evidence import Evidence


Row = Mapping[str, Any]
LEVELS_TITLE = "at the same quality, who is fastest"
KEPT, TOLERATED = "✓", 0.99
"""The cosine of the worst text: a layer that keeps so much tolerates a variant."""


def status_words(row: Row) -> str:
    """``timed out: it was still running after 240 s``"""
    return f"{row['status'].replace('_', ' ')}: {row['reason']}"


def progress_line(row: Row) -> str:
    """One variant in the model, as it ends."""
    if row["status"] != "measured":
        return f"{row['variant']}: {status_words(row)}"
    steps = (f"step {s['comparison']['ratio']:.3f} at {s['seq']}" for s in timed_steps(row))
    words = [f"cosine {format_interval(row['cosine']['long'])}", ", ".join(steps), *row["amiss"]]
    return f"{row['variant']}: {'; '.join(filter(None, words))}"


def model_conclusions(found: Evidence) -> list[str]:
    """What is faster and as good, and what there was to gain at all."""
    return list(conclude(found.rows, found.made["original"]))


def model_tables(found: Evidence, named: int = NAMED) -> list[Table]:
    """The tables that have rows; so many are named where some tie."""
    rows, original = found.rows, found.made["original"]
    tried = [row for row in rows if row.get("cosines")]
    near = [row for row in tried if row["computes"] in RANKED]
    near.sort(
        key=lambda row: (-(row["cosine"]["long"] or {"value": -2.0})["value"], row["variant"])
    )
    others = [row for row in tried if row["computes"] == "its own operator"]
    others.sort(key=lambda row: str(row["variant"]))
    tables = (
        _exact_table([row for row in tried if row["computes"] == "softmax"], original),
        _near_table(
            "near softmax, or softmax on its own pattern: the nearest to the original first",
            near,
            ranks=True,
        ),
        _near_table("operators of their own: another function, in no order with the rest", others),
        _steps_table(rows, original),
        _levels_table(rows, named),
        _layers_table([*near, *others]),
        _distilled_table(rows),
    )
    return [table for table in tables if table.rows]


def _exact_table(rows: Sequence[Row], original: Row) -> Table:
    right = ("largest error", "relative error", "of the original's own")
    lines, plain = [], original["plain"]["relative"]
    for row in rows:
        largest, relative = row["error"]["max"], row["error"]["relative"]
        errors = (None if x is None else f"{x:.1e}" for x in (largest, relative))
        share = format.ratio(None if relative is None else relative / plain)
        agrees = Styled("NO", BAD) if row["status"] == "wrong" else Styled("yes", GOOD)
        lines.append((row["variant"], *errors, share, _batching(row), agrees))
    heads = columns("variant", *right, "texts", "agrees", right=right)
    return Table("exact softmax: it has to agree with the original", heads, lines)


def _near_table(title: str, rows: Sequence[Row], *, ranks: bool = False) -> Table:
    right = ("long texts: cosine", "worst", "short texts", "rank correlation", "paraphrases found")
    heads = columns(*["rank"] * ranks, "variant", *right, "texts", right=(*right, "rank"))
    lines = []
    for row in rows:
        long, short = row["cosine"]["long"], row["cosine"]["short"]
        cosines = (format_cosine(x) for x in (long and long["worst"], short and short["value"]))
        correlation = format_interval(row["spearman"], "{:.3f}".format)
        found = (format_interval(long), *cosines, correlation, format.share(row["order"]))
        lines.append((*[row.get("rank")] * ranks, row["variant"], *found, _batching(row)))
    return Table(title, heads, lines)


def _batching(row: Row) -> str:
    """Whether the texts went in batches or each alone; and how many were refused."""
    left = sum(len(places) for places in row["left_out"].values())
    return ("together" if row["together"] else "alone") + (f", {left} refused" if left else "")


def _steps_table(rows: Iterable[Row], original: Row) -> Table:
    right = ("tokens", "ms", "of the original's", "99 %", "pairs", "could be seen")
    floor: Row = {"variant": "no attention at all", "steps": original["floor"]}
    steps = [(row["variant"], step) for row in [floor, *rows] for step in timed_steps(row)]
    steps.sort(key=lambda each: (each[1]["seq"], each[1]["comparison"]["ratio"], each[0]))
    lines = []
    for name, step in steps:
        compared, times = step["comparison"], sorted(Pairs.from_dict(step).b_s)
        ratio, ends = f"{compared['ratio']:.3f}", f"{compared['low']:.3f}–{compared['high']:.3f}"
        verdict = Styled(compared["verdict"], STYLE[Verdict(compared["verdict"])])
        effect = compared["n"], f"{compared['smallest_effect']:.1%}", verdict
        took = f"{step['seq']:,}", format.ms(times[len(times) // 2])
        lines.append((name, *took, ratio, ends, *effect))
    heads = columns("variant", *right, "verdict", right=right)
    return Table("what a step takes, in pairs with the original", heads, lines)


def _levels_table(rows: Sequence[Row], named: int) -> Table:
    names = ("tokens", "cosine", "keep it", "fastest of them", "step", "can't be told from it")
    lines = []
    for seq in lengths_of(rows):
        for level in levels_of(points(rows, seq)):
            fastest, step, ties = "nobody", "", name_points(level.tied, named)
            if level.fastest is not None:
                fastest = level.fastest.variant
                step = format_triple(level.fastest.ratio) + ", no gain" * (not level.gains)
            may = f"may keep it: {name_points(level.doubtful, named)}" if level.doubtful else ""
            keep = (f"{seq:,}", f"≥ {level.cosine:g}", len(level.keep))
            lines.append((*keep, fastest, step, "; ".join(filter(None, (ties, may)))))
    return Table(LEVELS_TITLE, columns(*names, right=names[:3], wrap=names[-1:]), lines)


def _layers_table(rows: Sequence[Row]) -> Table:
    lines = []
    for row in rows:
        cells: list[str | Styled] = []
        for found in row.get("by_layer") or ():
            cell = format_cosine(found and found["value"])
            kept = found is not None and found["worst"] >= TOLERATED
            cells.append(Styled(f"{KEPT} {cell}", GOOD) if kept else cell)
        kept = sum(isinstance(cell, Styled) for cell in cells)
        if cells:
            lines.append((row["variant"], *cells, f"{kept} of {len(cells)}"))
    layers = [f"layer {n}" for n in range(max(map(len, lines), default=2) - 2)]
    title = (
        f"each layer alone, the others as they were: median cosine, {KEPT} where it keeps "
        f"{TOLERATED} on all of some long texts"
    )
    return Table(title, columns("variant", *layers, "keeps it in", right=layers), lines)


def _distilled_table(rows: Sequence[Row]) -> Table:
    right = ("before", "after", "change, text by text", "loss, first and last step")
    lines = []
    for row in rows:
        if (learnt := row.get("distilled")) and "why" not in learnt:
            both = (learnt["cosine_before"], learnt["cosine_after"])
            cosines = (format_cosine(x and x["value"]) for x in both)
            change = format_interval(learnt["change"], "{:+.4f}".format)
            loss = f"{learnt['losses'][0]:.3g} → {learnt['losses'][-1]:.3g}"
            lines.append((row["variant"], *cosines, change, loss))
    title = "after distillation, on texts that were not learnt from"
    return Table(title, columns("variant", *right, right=right), lines)


def model_lines(found: Evidence) -> list[str]:
    """What the tables leave out, and what their words mean."""
    return [*_model_problems(found.rows), *_model_notes(found)]


def _model_problems(rows: Sequence[Row]) -> Iterator[str]:
    """What has no figures, and why; of what this machine can't run, the names."""
    if away := [row["variant"] for row in rows if row["status"] == "unavailable"]:
        yield f"{UNAVAILABLE}: {', '.join(away)}"
    for row in rows:
        notes = [*row.get("amiss", ()), (row.get("distilled") or {}).get("why")]
        if row["status"] not in ("measured", "unavailable"):
            notes.insert(0, status_words(row))
        refused = (row.get("left_out") or {}).items()
        notes += [f"{len(places)} texts refused: {why}" for why, places in refused]
        notes += [f"step at {s['seq']}: {s['why']}" for s in row.get("steps") or () if "why" in s]
        yield from (f"! {row['variant']}: {note}" for note in notes if note)


UNAVAILABLE = "not available here ('attnbench list' says why)"


def _model_notes(found: Evidence) -> Iterator[str]:
    original, texts, wanted = (found.made[name] for name in ("original", "texts", "wanted"))
    tokens = original["tokens"]
    long = sum(length >= LONG for length in tokens)
    few = "; too few, so what is said of long texts is of all"
    yield (
        f"{found.made['model']['name']}, {wanted['dtype']} on {wanted['device']}; "
        f"{texts['texts']} texts ({texts['source']}, {texts['digest']}) of {min(tokens)} to "
        f"{max(tokens)} tokens, {long} of them long ({LONG} and more)"
        + few
        * (long < len(long_texts(original)))
    )
    yield (
        "cosine: of a text's embedding with that of the original in float64; median over texts, "
        "with its 95 % interval"
    )
    yield "same rank: can't be told apart; alone: each text by itself, as it takes no padding mask"
    yield (
        "a step: one text without padding, without gradients; its verdicts survive Holm's "
        "correction over all of them"
    )
    own = format.share(order_kept(original["similarities"], original["pairs"]))
    yield (
        "rank correlation: Spearman's, of the similarities of pairs with the original's; "
        "paraphrases found: how often a paraphrase is more alike than an unrelated pair (the "
        f"original: {own})"
    )
    if same := [r["variant"] for r in found.rows if r.get("equal") and r["computes"] != "softmax"]:
        yield (
            f"equal to the original within rounding on all of these texts, of whom that need not "
            f"be: {', '.join(same)}; at such lengths they leave nothing out"
        )


TITLES = {
    "softmax": "exact softmax",
    "approximates softmax": "near softmax",
    "softmax on its own pattern": "softmax on its own pattern",
    "its own operator": "operators of their own: their distance is information, not a fault",
}


def real_tables(found: Evidence) -> list[Table]:
    """The entropies, then skill and distance of each kind."""
    sources = list(dict.fromkeys(row["source"] for row in found.rows))
    entropies = {r["source"]: f"{r['entropy']:.3f}" for r in found.rows if r["entropy"] is not None}
    title = "how spread the attention is: its mean entropy, as a share of the most"
    spread = ("entropy", *map(entropies.get, sources))
    tables = [Table(title, columns("", *sources, right=sources), [spread])]
    left_out = ("refused", "unavailable")
    tried = {row["variant"] for row in found.rows if row["status"] not in left_out}
    for computes, title in TITLES.items():
        rows = [r for r in found.rows if r["computes"] == computes and r["variant"] in tried]
        for what, words in (("skill", "skill"), ("distance", "distance from softmax")):
            if rows:
                tables.append(_source_table(f"{title}: {words}", rows, sources, what))
    return tables


def real_lines(found: Evidence) -> list[str]:
    """What the tables leave out, and what their words mean."""
    return [*_real_problems(found.rows), *_real_notes(found)]


def _source_table(title: str, rows: Sequence[Row], sources: Sequence[str], what: str) -> Table:
    """A line a variant, the best mean skill on the model's layers first."""
    by_variant: dict[str, dict[str, Row]] = {}
    skills: dict[str, list[float]] = {}
    for row in rows:
        by_variant.setdefault(row["variant"], {})[row["source"]] = row
        if row["source"].startswith("layer") and row["skill"] is not None:
            skills.setdefault(row["variant"], []).append(row["skill"])
    mean = {name: sum(some) / len(some) for name, some in skills.items()}
    lines = [
        (name, *(_source_cell(by_variant[name].get(source), what) for source in sources))
        for name in sorted(by_variant, key=lambda name: -mean.get(name, float("-inf")))
    ]
    return Table(title, columns("variant", *sources, right=sources), lines)


def _source_cell(row: Row | None, what: str) -> str | Styled | None:
    if row is not None and row["status"] != "measured":
        return Styled(row["status"].replace("_", " "), BAD)
    if row is None or (value := row[what]) is None:
        return None
    if what == "distance":
        return f"{value:.3g}"
    return Styled(f"{value:.3f}", GOOD if value >= 0.5 else "")


def _real_problems(rows: Sequence[Row]) -> Iterator[str]:
    """What has no figures, and why; once for all sources where it is the same."""
    if away := dict.fromkeys(row["variant"] for row in rows if row["status"] == "unavailable"):
        yield f"{UNAVAILABLE}: {', '.join(away)}"
    sources_of: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["status"] not in ("measured", "unavailable"):
            sources_of.setdefault((row["variant"], status_words(row)), []).append(row["source"])
    every = len({row["source"] for row in rows})
    for (name, why), sources in sources_of.items():
        on = f" on {', '.join(sources)}" if len(sources) < every else ""
        yield f"! {name}{on}: {why}"


def _real_notes(found: Evidence) -> Iterator[str]:
    wanted, made = found.made["wanted"], found.made
    problem = next((row["problem"] for row in found.rows), "")
    yield (
        f"{made['model']['name']}: q, k and v of each layer on {wanted['batch']} rows of "
        f"{wanted['seq']} tokens, passages one after the other ({made['texts']['digest']}); all "
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
