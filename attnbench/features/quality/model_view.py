"""The tables of ``quality model`` and ``quality real``; the report's page has the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

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
from attnbench.report.tables import BAD, FAINT, GOOD, Styled, Table, columns, console
from attnbench.report.tables import show as show_table

if TYPE_CHECKING:
    from attnbench.core.evidence import Evidence


Row = Mapping[str, Any]
LEVELS_TITLE = "at the same quality, who is fastest"
KEPT = "✓"
TOLERATED = 0.99
"""The cosine of the worst text: a layer that keeps so much tolerates a variant."""


def show(tables: Iterable[Table], conclusions: Iterable[str], lines: Iterable[str]) -> None:
    """Print tables, what follows from them, and what they leave out."""
    out = console()
    for table in tables:
        show_table(table)
    out.print()
    for line in conclusions:
        out.print(escape(f"{line[0].upper()}{line[1:]}."))
    for line in lines:
        out.print(escape(line), style=FAINT)


def show_model(found: Evidence) -> None:
    """Print what ``quality model`` found."""
    show(model_tables(found), model_conclusions(found), model_lines(found))


def show_real(found: Evidence) -> None:
    """Print what ``quality real`` found."""
    show(real_tables(found), (), real_lines(found))


def status_words(row: Row) -> str:
    """``timed out: it was still running after 240 s``"""
    return f"{row['status'].replace('_', ' ')}: {row['reason']}"


def progress_line(row: Row) -> str:
    """One variant in the model, as it ends."""
    if row["status"] != "measured":
        return f"{row['variant']}: {status_words(row)}"
    steps = ", ".join(
        f"step {step['comparison']['ratio']:.3f} at {step['seq']}" for step in timed_steps(row)
    )
    words = [f"cosine {format_interval(row['cosine']['long'])}", steps, *row["amiss"]]
    return f"{row['variant']}: {'; '.join(filter(None, words))}"


def model_conclusions(found: Evidence) -> list[str]:
    """What is faster and as good, and what there was to gain at all."""
    return list(conclude(found.rows, found.made["original"]))


def model_tables(found: Evidence, named: int = NAMED) -> list[Table]:
    """The tables that have rows; so many are named where some tie."""
    rows, original = found.rows, found.made["original"]
    tried = [row for row in rows if row.get("cosines")]
    exact = [row for row in tried if row["computes"] == "softmax"]
    near = sorted((row for row in tried if row["computes"] in RANKED), key=_nearest_first)
    others = sorted(
        (row for row in tried if row["computes"] == "its own operator"),
        key=lambda row: str(row["variant"]),
    )
    tables = (
        _exact_table(exact, original),
        _near_table(
            "near softmax, or softmax on its own pattern: the nearest to the original first",
            near,
            ranks=True,
        ),
        _near_table(
            "operators of their own: another function, in no order with the rest",
            others,
            ranks=False,
        ),
        _steps_table(rows, original),
        _levels_table(rows, named),
        _layers_table([*near, *others]),
        _distilled_table(rows),
    )
    return [table for table in tables if table.rows]


def model_lines(found: Evidence) -> list[str]:
    """What the tables leave out, and what their words mean."""
    return [*_model_problems(found.rows), *_model_notes(found)]


def _nearest_first(row: Row) -> tuple[float, str]:
    found = row["cosine"]["long"]
    return (-found["value"] if found else 2.0, str(row["variant"]))


def _exact_table(rows: Sequence[Row], original: Row) -> Table:
    right = ("largest error", "relative error", "of the original's own")
    heads = columns("variant", *right, "texts", "agrees", right=right)
    plain = original["plain"]["relative"]
    lines = []
    for row in rows:
        largest, relative = row["error"]["max"], row["error"]["relative"]
        lines.append(
            (
                row["variant"],
                None if largest is None else f"{largest:.1e}",
                None if relative is None else f"{relative:.1e}",
                format.ratio(None if relative is None else relative / plain),
                _batching(row),
                Styled("NO", BAD) if row["status"] == "wrong" else Styled("yes", GOOD),
            )
        )
    return Table("exact softmax: it has to agree with the original", heads, lines)


def _near_table(title: str, rows: Sequence[Row], *, ranks: bool) -> Table:
    right = ("long texts: cosine", "worst", "short texts", "rank correlation", "paraphrases found")
    heads = columns(*["rank"] * ranks, "variant", *right, "texts", right=(*right, "rank"))
    lines = []
    for row in rows:
        long, short = row["cosine"]["long"], row["cosine"]["short"]
        cells = (
            format_interval(long),
            format_cosine(long and long["worst"]),
            format_cosine(short and short["value"]),
            format_interval(row["spearman"], "{:.3f}".format),
            None if row["order"] is None else format.share(row["order"]),
            _batching(row),
        )
        lines.append((*[row.get("rank")] * ranks, row["variant"], *cells))
    return Table(title, heads, lines)


def _batching(row: Row) -> str:
    """Whether the texts went in batches or each alone; and how many were refused."""
    left = sum(len(places) for places in row["left_out"].values())
    return ("together" if row["together"] else "alone") + (f", {left} refused" if left else "")


def _steps_table(rows: Iterable[Row], original: Row) -> Table:
    right = ("tokens", "ms", "of the original's", "99 %", "pairs", "could be seen")
    heads, lines = columns("variant", *right, "verdict", right=right), []
    floor: Row = {"variant": "no attention at all", "steps": original["floor"]}
    steps = [
        (step["seq"], step["comparison"]["ratio"], row["variant"], step)
        for row in [floor, *rows]
        for step in timed_steps(row)
    ]
    for seq, ratio, name, step in sorted(steps, key=lambda each: each[:3]):
        compared = step["comparison"]
        times = sorted(Pairs.from_dict(step).b_s)
        lines.append(
            (
                name,
                f"{seq:,}",
                format.ms(times[len(times) // 2]),
                f"{ratio:.3f}",
                f"{compared['low']:.3f}–{compared['high']:.3f}",
                compared["n"],
                f"{compared['smallest_effect']:.1%}",
                Styled(compared["verdict"], STYLE[Verdict(compared["verdict"])]),
            )
        )
    return Table("what a step takes, in pairs with the original", heads, lines)


def _levels_table(rows: Sequence[Row], named: int) -> Table:
    names = ("tokens", "cosine", "keep it", "fastest of them", "step", "can't be told from it")
    lines = []
    for seq in lengths_of(rows):
        for level in levels_of(points(rows, seq)):
            fastest, step = "nobody", ""
            if level.fastest is not None:
                fastest = level.fastest.variant
                step = format_triple(level.fastest.ratio) + ("" if level.gains else ", no gain")
            ties = [name_points(level.tied, named)]
            if level.doubtful:
                ties.append(f"may keep it: {name_points(level.doubtful, named)}")
            keep = (f"{seq:,}", f"≥ {level.cosine:g}", level.keep)
            lines.append((*keep, fastest, step, "; ".join(filter(None, ties))))
    return Table(LEVELS_TITLE, columns(*names, right=names[:3], wrap=names[-1:]), lines)


def _layers_table(rows: Sequence[Row]) -> Table:
    tried = [row for row in rows if row.get("by_layer")]
    count = max((len(row["by_layer"]) for row in tried), default=0)
    layers = [f"layer {n}" for n in range(count)]
    lines = []
    for row in tried:
        cells: list[str | Styled] = []
        kept = 0
        for found in row["by_layer"]:
            cell = format_cosine(found and found["value"])
            if found is not None and found["worst"] >= TOLERATED:
                cells.append(Styled(f"{KEPT} {cell}", GOOD))
                kept += 1
            else:
                cells.append(cell)
        lines.append((row["variant"], *cells, f"{kept} of {len(cells)}"))
    title = (
        f"each layer alone, the others as they were: median cosine, {KEPT} where it keeps "
        f"{TOLERATED} on all of some long texts"
    )
    return Table(title, columns("variant", *layers, "keeps it in", right=layers), lines)


def _distilled_table(rows: Sequence[Row]) -> Table:
    right = ("before", "after", "change, text by text", "loss, first and last step")
    lines = []
    for row in rows:
        learnt = row.get("distilled")
        if learnt and "why" not in learnt:
            before, after = learnt["cosine_before"], learnt["cosine_after"]
            lines.append(
                (
                    row["variant"],
                    format_cosine(before and before["value"]),
                    format_cosine(after and after["value"]),
                    format_interval(learnt["change"], "{:+.4f}".format),
                    f"{learnt['losses'][0]:.3g} → {learnt['losses'][-1]:.3g}",
                )
            )
    title = "after distillation, on texts that were not learnt from"
    return Table(title, columns("variant", *right, right=right), lines)


def _model_problems(rows: Sequence[Row]) -> Iterator[str]:
    """What has no figures, and why; of what this machine can't run, the names."""
    away = [row for row in rows if row["status"] == "unavailable"]
    if len(away) == 1:
        yield f"! {away[0]['variant']}: {status_words(away[0])}; {away[0]['remedy']}"
    elif away:
        yield _unavailable([row["variant"] for row in away])
    for row in rows:
        if row["status"] not in ("measured", "unavailable"):
            yield f"! {row['variant']}: {status_words(row)}"
        for why, places in (row.get("left_out") or {}).items():
            yield f"! {row['variant']}: {len(places)} texts refused: {why}"
        notes = [*row.get("amiss", ()), (row.get("distilled") or {}).get("why")]
        notes += [f"step at {s['seq']}: {s['why']}" for s in row.get("steps") or () if "why" in s]
        yield from (f"! {row['variant']}: {note}" for note in notes if note)


def _unavailable(names: Iterable[str]) -> str:
    return f"not available here ('attnbench list' says why): {', '.join(names)}"


def _model_notes(found: Evidence) -> Iterator[str]:
    made = found.made
    original, texts, wanted = made["original"], made["texts"], made["wanted"]
    tokens = original["tokens"]
    long = sum(length >= LONG for length in tokens)
    few = "; too few, so what is said of long texts is of all"
    yield (
        f"{made['model']['name']}, {wanted['dtype']} on {wanted['device']}; {texts['texts']} texts "
        f"({texts['source']}, {texts['digest']}) of {min(tokens)} to {max(tokens)} tokens, {long} "
        f"of them long ({LONG} and more){few if long < len(long_texts(original)) else ''}"
    )
    yield (
        "cosine: of a text's embedding with that of the original in float64; median over texts, "
        "with its 95 % interval (bootstrap, no narrower than order statistics)"
    )
    yield (
        "a step: one text without padding, without gradients; its verdicts survive Holm's "
        "correction over all of them"
    )
    yield "same rank: can't be told apart; the 99 % interval of the median difference holds nought"
    correlation = "rank correlation: Spearman's, of the similarities of pairs with the original's"
    if (own := order_kept(original["similarities"], original["pairs"])) is not None:
        correlation += (
            "; paraphrases found: how often a paraphrase is more alike than an unrelated pair "
            f"(the original: {own:.0%})"
        )
    yield correlation
    if same := [r["variant"] for r in found.rows if r.get("equal") and r["computes"] != "softmax"]:
        yield (
            f"equal to the original within rounding on all of these texts, of whom that need not "
            f"be: {', '.join(same)}; at such lengths they leave nothing out"
        )
    if any(row.get("together") is False for row in found.rows):
        yield "alone: it takes no padding mask, so each text goes by itself, without padding"


SAME = 1e-4
"""A distance from softmax that is rounding: what leaves anything out is off by far more."""
TITLES = {
    "softmax": "exact softmax",
    "approximates softmax": "near softmax",
    "softmax on its own pattern": "softmax on its own pattern",
    "its own operator": "operators of their own: their distance is information, not a fault",
}


def real_tables(found: Evidence) -> list[Table]:
    """The entropies, then skill and distance of each kind."""
    sources = list(dict.fromkeys(row["source"] for row in found.rows))
    entropies = {r["source"]: r["entropy"] for r in found.rows if r["entropy"] is not None}
    spread = ("entropy", *(f"{entropies[s]:.3f}" if s in entropies else None for s in sources))
    title = "how spread the attention is: its mean entropy, as a share of the most"
    tables = [Table(title, columns("", *sources, right=sources), [spread])]
    left_out = ("refused", "unavailable")
    tried = {row["variant"] for row in found.rows if row["status"] not in left_out}
    for computes, title in TITLES.items():
        rows = [
            row for row in found.rows if row["computes"] == computes and row["variant"] in tried
        ]
        if rows:
            tables += [
                _source_table(f"{title}: skill", rows, sources, "skill"),
                _source_table(f"{title}: distance from softmax", rows, sources, "distance"),
            ]
    return tables


def real_lines(found: Evidence) -> list[str]:
    """What the tables leave out, and what their words mean."""
    return [*_real_problems(found.rows), *_real_notes(found)]


def _source_table(title: str, rows: Sequence[Row], sources: Sequence[str], what: str) -> Table:
    """A line a variant, the best mean skill on the model's layers first."""
    by_variant: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_variant.setdefault(row["variant"], {})[row["source"]] = row
    lines = [
        (name, *(_source_cell(by_source.get(source), what) for source in sources))
        for name, by_source in sorted(by_variant.items(), key=lambda each: -_mean_skill(each[1]))
    ]
    return Table(title, columns("variant", *sources, right=sources), lines)


def _mean_skill(by_source: Mapping[str, Row]) -> float:
    """Over the model's layers; minus infinity where there is none."""
    skills = [
        row["skill"]
        for source, row in by_source.items()
        if source.startswith("layer") and row["skill"] is not None
    ]
    return sum(skills) / len(skills) if skills else float("-inf")


def _source_cell(row: Row | None, what: str) -> str | Styled | None:
    if row is None:
        return None
    if row["status"] != "measured":
        return Styled(row["status"].replace("_", " "), BAD)
    value = row[what]
    if value is None:
        return None
    if what == "distance":
        return f"{value:.3g}"
    return Styled(f"{value:.3f}", GOOD if value >= 0.5 else "")


def _real_problems(rows: Sequence[Row]) -> Iterator[str]:
    """What has no figures, and why; once for all sources where it is the same."""
    away = dict.fromkeys(row["variant"] for row in rows if row["status"] == "unavailable")
    if away:
        yield _unavailable(away)
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
    distances: dict[str, float] = {}
    for row in found.rows:
        if row["distance"] is not None:
            name = row["variant"]
            distances[name] = max(row["distance"], distances.get(name, 0.0))
    if same := [name for name, distance in distances.items() if distance <= SAME]:
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
