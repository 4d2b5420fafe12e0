"""The view of ``quality model``: sentences, tables, and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.answer.regimes import frontier
from attnbench.core import format
from attnbench.core.evidence import Evidence
from attnbench.features.quality import model_results as results
from attnbench.features.quality.model_results import (
    comparison_of,
    format_triple,
    points,
    timed_steps,
)
from attnbench.features.quality.rows import sentence, status_words
from attnbench.report import tidy
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, GRID, Plot, finish, sheet
from attnbench.report.tables import BAD, GOOD, VERDICTS, Styled, Table, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
TICK, TOLERATED = "✓", 0.99
"""The cosine of the worst text: a layer that keeps so much tolerates a variant."""
NO_ATTENTION = {"variant": "no attention at all", "computes": "softmax", "status": "measured"}


def format_cosine(value: float | None) -> str:
    """``0.9876``, or ``> 0.9999``"""
    if value is None:
        return format.NONE
    return "> 0.9999" if value >= 0.99995 else f"{value:.4f}"


def format_interval(estimate: Row | None) -> str:
    """``0.9876 [0.9812, 0.9899]``"""
    if estimate is None:
        return format.NONE
    return "{} [{}, {}]".format(*(format_cosine(estimate[end]) for end in ("value", "low", "high")))


def conclusions(evidence: Evidence) -> list[str]:
    """The sentences."""
    return list(results.conclude(evidence.rows, evidence.made["original"]))


def tables(evidence: Evidence) -> list[Table]:
    """The table that answers first, then those that stand behind it."""
    rows = [row for row in evidence.rows if row.get("cosines")]
    rows.sort(key=lambda row: (_kind(row), -_value(row), row["variant"]))
    floor: Row = {**NO_ATTENTION, "steps": evidence.made["original"]["floor"]}
    all_tables = [_levels_table(rows), _variants_table([floor, *rows]), _layers_table(rows)]
    return [table for table in all_tables if table.rows]


def _kind(row: Row) -> int:
    """Exact variants come first, and operators of their own last, which are in no order."""
    return 0 if row["computes"] == "softmax" else 1 + (row["computes"] not in results.RANKED)


def _value(row: Row) -> float:
    return float((row["cosine"]["long"] or {"value": -2.0})["value"])


def _variants_table(rows: Sequence[Row]) -> Table:
    lines = []
    for row in rows:
        long = (row.get("cosine") or {}).get("long")
        cosines = (format_interval(long), format_cosine(long["worst"])) if long else (None, None)
        name = format.name_with_star(row["variant"], row["computes"])
        for step in timed_steps(row):
            compared = comparison_of(step)
            took = f"{step['seq']:,}", format.ms(statistics.median_high(compared.b_s))
            ratio = format_triple((compared.ratio, compared.low, compared.high))
            verdict = Styled(compared.verdict, VERDICTS[compared.verdict])
            lines.append((row.get("rank"), name, *cosines, *took, ratio, verdict))
        if not timed_steps(row):
            status = Styled("wrong", BAD) if row["status"] == "wrong" else None
            lines.append((row.get("rank"), name, *cosines, None, None, None, status))
    right = ("rank", "cosine", "worst", "tokens", "ms", "step")
    heads = columns("rank", "variant", *right[1:], "verdict", right=right)
    title = "each variant in the model: its likeness, and a step in pairs with the original"
    return Table(title, heads, lines, ["* not softmax attention"])


def csv_rows(evidence: Evidence) -> Iterator[tidy.Row]:
    """A row a variant and a length of a step: how near the model's embeddings stay to the
    original's, and a step's time over the original's. The first rows are of no attention at all.
    """
    floor: Row = {**NO_ATTENTION, "steps": evidence.made["original"]["floor"]}
    for row in [floor, *evidence.rows]:
        error, cosines = row.get("error") or {}, row.get("cosine") or {}
        layers = row.get("by_layer")
        about = {
            "variant": row["variant"],
            "computes": row["computes"],
            "status": row["status"].replace("_", " "),
            "rank": row.get("rank"),
            **_estimate("cosine_long", cosines.get("long")),
            "largest_error": error.get("max"),
            "error": error.get("relative"),
            "layers_kept": layers and sum(map(_keeps, layers)),
        }
        for step in row.get("steps") or [{}]:
            compared = step.get("comparison")
            took = statistics.median_high(comparison_of(step).b_s) if compared else None
            yield {
                **about,
                "seq": step.get("seq"),
                **tidy.flat({"median_s": took}),
                **tidy.of_comparison(compared),
                "verdict": compared["verdict"] if compared else "",
                "reason": step.get("why") or row.get("reason", ""),
                "remedy": row.get("remedy", ""),
            }


def _estimate(name: str, estimate: Row | None) -> tidy.Row:
    """A figure and its interval, as columns."""
    ends = {end: (estimate or {}).get(end) for end in ("value", "low", "high")}
    return tidy.flat({name: ends})


def _keeps(layer: Row | None) -> bool:
    """True for a layer that tolerates a variant on all of some long texts."""
    return layer is not None and layer["worst"] >= TOLERATED


def _levels_table(rows: Sequence[Row]) -> Table:
    right = ("tokens", "cosine", "keep it")
    lines = []
    for seq in results.lengths_of(rows):
        for level in results.levels_of(points(rows, seq)):
            fastest, step = "none", ""
            for first in level.keep[:1]:
                fastest = first.variant
                step = format_triple(first.ratio) + ("" if first.faster else ", no gain")
            tied, doubtful = (", ".join(p.variant for p in s) for s in (level.tied, level.doubtful))
            ties = "; ".join(filter(None, (tied, doubtful and f"may keep it: {doubtful}")))
            lines.append((f"{seq:,}", f"≥ {level.cosine:g}", len(level.keep), fastest, step, ties))
    heads = ("fastest of them", "step", "tied with it")
    title = "at the same quality, who is fastest"
    return Table(title, columns(*right, *heads, right=right, wrap=heads[-1:]), lines)


def _layers_table(rows: Sequence[Row]) -> Table:
    lines = []
    for row in rows:
        cells: list[str | Styled] = []
        for layer in row.get("by_layer") or ():
            cell = format_cosine(layer and layer["value"])
            cells.append(Styled(f"{TICK} {cell}", GOOD) if _keeps(layer) else cell)
        if cells:
            keeps = sum(isinstance(cell, Styled) for cell in cells)
            lines.append((row["variant"], *cells, f"{keeps} of {len(cells)}"))
    layers = [f"layer {n}" for n in range(max(map(len, lines), default=2) - 2)]
    title = (
        f"each layer alone, the others as they were: median cosine, {TICK} where it keeps "
        f"{TOLERATED} on all of some long texts"
    )
    return Table(title, columns("variant", *layers, "keeps it in", right=layers), lines)


def notes(evidence: Evidence) -> Iterator[str]:
    """The variants without figures and why, and the meaning of the words in the tables."""
    original, texts, options = (evidence.made[name] for name in ("original", "texts", "wanted"))
    yield from unavailable_note(evidence.rows)
    for row in evidence.rows:
        reasons = list(row.get("amiss", ()))
        if row["status"] not in ("measured", "unavailable"):
            reasons.insert(0, status_words(row))
        reasons += [f"step at {s['seq']}: {s['why']}" for s in row.get("steps") or () if "why" in s]
        yield from (f"! {row['variant']}: {reason}" for reason in reasons)
    tokens = original["tokens"]
    long = sum(length >= results.LONG for length in tokens)
    few = long < len(results.long_texts(original))
    yield (
        f"{evidence.made['model']['name']}, {options['dtype']} on {options['device']}; "
        f"{texts['texts']} texts ({texts['source']}, {texts['digest']}) of {min(tokens)} to "
        f"{max(tokens)} tokens, {long} of them long ({results.LONG} and more)"
        + ("; too few, so what is said of long texts is of all" if few else "")
    )
    yield (
        "cosine: with the original's embedding in float64; median over long texts, its 95 % "
        "interval; same rank: tied"
    )
    yield (
        "step: its time over the original's, one text, no padding, no gradients, 99 % interval; "
        "verdicts after Holm's correction over all"
    )


def unavailable_note(rows: Sequence[Row]) -> Iterator[str]:
    """A sentence that names those that can't run here, if there are any."""
    if away := dict.fromkeys(row["variant"] for row in rows if row["status"] == "unavailable"):
        yield f"not available here ('attnbench list' says why): {', '.join(away)}"


WIDE, HIGH = 500.0, 320.0
"""Points: of the figure, and of its axes."""
LEFT, RIGHT, ABOVE, BELOW = 52.0, 122.0, 52.0, 32.0
NAMED = 22
NEAREST = 1e-4
"""One minus a cosine: what is nearer to the original lies at the top edge."""
TICKS = (0.9999, 0.999, 0.99, 0.95, 0.9, 0.8, 0.6, 0.4, 0.0)
RATIOS = (0.2, 0.5, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)


def draw(evidence: Evidence) -> Plot | None:
    """Likeness × time at the longest step that was timed; None where none was."""
    lengths, header = results.lengths_of(evidence.rows), evidence.made
    some = points(evidence.rows, lengths[-1]) if lengths else []
    if not some:
        return None
    seq, look = lengths[-1], style.looks(some)
    front = frontier({p.variant: (p.ratio[0], 1 - p.cosine[0]) for p in some})
    floors = {s["seq"]: s["comparison"]["ratio"] for s in header["original"]["floor"]}
    title = f"What a variant costs {header['model']['name']}: likeness × time"
    where = f"{header['wanted']['dtype']}, {header['machine']['name']}"
    under = f"a step of {seq:,} tokens, {where}; intervals: 95 % up, 99 % across"
    with sheet(WIDE / 72, (BELOW + HIGH + ABOVE) / 72) as figure:
        labels.heading(figure, title, under, sentence(results.finding(some)))
        axes = labels.add_axes(figure, (LEFT, BELOW, WIDE - RIGHT, BELOW + HIGH))
        xs = style.limits([x for p in some for x in p.ratio] + [1.0, *floors.values()], least=1.5)
        _draw_axes(axes, xs, 1.4 * max(0.15, *(_far(p.cosine[0]) for p in some)), floors.get(seq))
        cloud = [p for name in front for p in some if p.variant == name]
        times, heights = [p.ratio[0] for p in cloud], [_far(p.cosine[0]) for p in cloud]
        steps = [times[0], *times, xs[1]], [axes.get_ylim()[0], *heights, heights[-1]]
        axes.step(*steps, where="post", color=FAINT, linewidth=1.0, alpha=0.8)
        for p in some:
            (x, low, high), (y, under_y, over) = p.ratio, map(_far, p.cosine)
            leads = p.variant in front
            more: dict[str, Any] = {"alpha": 1.0 if leads else 0.75, "zorder": 3, "clip_on": False}
            more |= look[p.variant].marks(5.5 if leads else 4.5)
            across, up = [[x - low], [high - x]], [[y - over], [under_y - y]]
            axes.errorbar([x], [y], up, across, elinewidth=0.9, **more)
        order = sorted(some, key=lambda p: (p.variant not in front, p.ratio))
        style.legend(figure, (look[p.variant] for p in order[:NAMED]))
        best = (
            f"{p.variant} (cosine {format_cosine(p.cosine[0])}, {p.ratio[0]:.3f})" for p in cloud
        )
        words = f"Beaten by none both ways: {', '.join(best)}"
        return finish(figure, f"model-{seq}", title, words)


def _far(cosine: float) -> float:
    return max(NEAREST, 1 - cosine)


def _draw_axes(axes: Axes, xs: tuple[float, float], worst: float, floor: float | None) -> None:
    """With the levels, the corner of what is faster and near enough, and times to compare with."""
    top, inside = NEAREST / 1.5, [x for x in RATIOS if xs[0] <= x <= xs[1]]
    axes.set(xscale="log", xlim=xs, yscale="log", ylim=(worst, top))
    axes.set_xticks(inside, [f"{x:g}" for x in inside])
    ticks = [x for x in TICKS if 1 - x <= worst]
    axes.set_yticks([1 - x for x in ticks], [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.set_xlabel("step time over the original's (less is better)", labelpad=1, fontsize=8)
    axes.set_ylabel("median cosine to the original", labelpad=2, fontsize=8)
    for level in results.LEVELS:
        axes.axhline(1 - level, color=GRID, linewidth=1.4)
    axes.fill_between([xs[0], 1.0], 1 - results.LEVEL, top, color=GRID, alpha=0.45, linewidth=0)
    place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "rotation": 90, "ha": "right"}
    for x, dash, words in ((floor, "--", "no attention at all"), (1.0, "-", "the original")):
        if x is not None:
            axes.axvline(x, color=FAINT, linewidth=0.9, linestyle=dash)
            axes.text(x, 0.4, f"{words} ", fontsize=7, color=FAINT, **place)
