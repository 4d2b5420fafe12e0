"""What ``quality model`` and ``quality real`` show: lines, tables, and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.answer.regimes import frontier
from attnbench.core import format
from attnbench.core.evidence import Evidence
from attnbench.core.stats import Pairs
from attnbench.features.quality import model_results as results
from attnbench.features.quality.model_results import (
    format_triple,
    points,
    status_words,
    timed_steps,
)
from attnbench.report import tidy
from attnbench.report.figures import sheet as labels
from attnbench.report.figures import style
from attnbench.report.figures.sheet import FAINT, GRID, Plot, finish, sheet
from attnbench.report.tables import BAD, GOOD, VERDICTS, Styled, Table, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
LEVELS_TITLE = "at the same quality, who is fastest"
KEPT, TOLERATED = "✓", 0.99
"""The cosine of the worst text: a layer that keeps so much tolerates a variant."""


def format_cosine(value: float | None) -> str:
    """``0.9876``, or ``> 0.9999``"""
    if value is None:
        return format.NONE
    return "> 0.9999" if value >= 0.99995 else f"{value:.4f}"


def format_interval(found: Row | None, form: Callable[[float], str] = format_cosine) -> str:
    """``0.9876 [0.9812, 0.9899]``"""
    if found is None:
        return format.NONE
    return f"{form(found['value'])} [{form(found['low'])}, {form(found['high'])}]"


def sentence(text: str) -> str:
    """The text with a capital letter."""
    return text[0].upper() + text[1:]


def model_tables(found: Evidence, named: int = results.NAMED) -> Iterator[Table]:
    """Some without rows; so many are named where some tie."""
    rows, original = found.rows, found.made["original"]
    tried = sorted((r for r in rows if r.get("cosines")), key=lambda row: str(row["variant"]))
    near = [row for row in tried if row["computes"] in results.RANKED]
    near.sort(key=lambda row: -(row["cosine"]["long"] or {"value": -2.0})["value"])
    others = [row for row in tried if row["computes"] == "its own operator"]
    right: tuple[str, ...] = ("largest error", "relative error", "of the original's own")
    lines: list[tuple[Any, ...]] = []
    for row in (r for r in rows if r.get("cosines") and r["computes"] == "softmax"):
        largest, relative = row["error"]["max"], row["error"]["relative"]
        errors = (None if x is None else f"{x:.1e}" for x in (largest, relative))
        plain = original["plain"]["relative"]
        share = format.ratio(None if relative is None else relative / plain)
        agrees = Styled("NO", BAD) if row["status"] == "wrong" else Styled("yes", GOOD)
        lines.append((row["variant"], *errors, share, _batching(row), agrees))
    heads = columns("variant", *right, "texts", "agrees", right=right)
    yield Table("exact softmax: it has to agree with the original", heads, lines)
    title = "near softmax, or softmax on its own pattern: the nearest to the original first"
    other = "operators of their own: another function, in no order with the rest"
    right = ("long texts: cosine", "worst", "short texts", "rank correlation")
    for name, some, rank in ((title, near, ["rank"]), (other, others, [])):
        lines = []
        for row in some:
            long, short = row["cosine"]["long"], row["cosine"]["short"]
            cosines = (format_cosine(x) for x in (long and long["worst"], short and short["value"]))
            correlation = format_interval(row["spearman"], "{:.3f}".format)
            cells = (format_interval(long), *cosines, correlation)
            lines.append((*map(row.get, rank), row["variant"], *cells, _batching(row)))
        heads = columns(*rank, "variant", *right, "texts", right=(*right, "rank"))
        yield Table(name, heads, lines)
    yield _steps_table(rows, original)
    yield _levels_table(rows, named)
    yield _layers_table([*near, *others])
    yield _distilled_table(rows)


def model_rows(evidence: Evidence) -> Iterator[tidy.Row]:
    """A row a variant and a length of a step: how near the model's embeddings stay to the
    original's, and a step's time over the original's. The first rows are of no attention at all.
    """
    floor: Row = {"variant": "no attention at all", "steps": evidence.made["original"]["floor"]}
    for row in [floor, *evidence.rows]:
        error, cosines = row.get("error") or {}, row.get("cosine") or {}
        layers = row.get("by_layer")
        about = {
            "variant": row["variant"],
            "computes": row.get("computes", ""),
            "status": row.get("status", "measured").replace("_", " "),
            "rank": row.get("rank"),
            **_estimate("cosine_long", cosines.get("long")),
            **_estimate("cosine_short", cosines.get("short")),
            **_estimate("rank_correlation", row.get("spearman")),
            "largest_error": error.get("max"),
            "error": error.get("relative"),
            "layers_kept": layers and sum(map(_keeps, layers)),
            **_estimate("cosine_distilled", (row.get("distilled") or {}).get("cosine_after")),
        }
        for step in row.get("steps") or [{}]:
            compared = step.get("comparison")
            took = statistics.median_high(Pairs.from_dict(step).b_s) if compared else None
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


def real_rows(evidence: Evidence) -> Iterator[tidy.Row]:
    """A row a variant and a source of q, k and v."""
    wanted = {name: evidence.made["wanted"][name] for name in ("seq", "batch", "dtype", "device")}
    names = ("status", "skill", "distance", "entropy", "reason", "remedy")
    for row in evidence.rows:
        about = {name: row[name] for name in ("variant", "computes", "source")}
        yield tidy.flat({**about, **wanted, **{name: row.get(name) for name in names}})


def _keeps(layer: Row | None) -> bool:
    """Whether a layer tolerates a variant: on all of some long texts."""
    return layer is not None and layer["worst"] >= TOLERATED


def _batching(row: Row) -> str:
    left = sum(len(places) for places in row["left_out"].values())
    return ("together" if row["together"] else "alone") + (f", {left} refused" if left else "")


def _steps_table(rows: Sequence[Row], original: Row) -> Table:
    right = ("tokens", "ms", "of the original's", "99 %", "pairs", "could be seen")
    floor: Row = {"variant": "no attention at all", "steps": original["floor"]}
    steps = [(row["variant"], step) for row in [floor, *rows] for step in timed_steps(row)]
    steps.sort(key=lambda each: (each[1]["seq"], each[1]["comparison"]["ratio"], each[0]))
    lines = []
    for name, step in steps:
        compared, times = step["comparison"], sorted(Pairs.from_dict(step).b_s)
        ratio, ends = f"{compared['ratio']:.3f}", f"[{compared['low']:.3f}, {compared['high']:.3f}]"
        verdict = Styled(compared["verdict"], VERDICTS[compared["verdict"]])
        effect = compared["n"], format.percent(compared["smallest_effect"]), verdict
        took = f"{step['seq']:,}", format.ms(times[len(times) // 2])
        lines.append((name, *took, ratio, ends, *effect))
    heads = columns("variant", *right, "verdict", right=right)
    return Table("what a step takes, in pairs with the original", heads, lines)


def _levels_table(rows: Sequence[Row], named: int) -> Table:
    names = ("tokens", "cosine", "keep it", "fastest of them", "step", "tied with it")
    lines = []
    for seq in results.lengths_of(rows):
        for level in results.levels_of(points(rows, seq)):
            fastest, step, ties = "none", "", results.name_points(level.tied, named)
            for first in level.keep[:1]:
                fastest = first.variant
                step = format_triple(first.ratio) + ", no gain" * (not first.faster)
            doubtful = results.name_points(level.doubtful, named)
            may = f"may keep it: {doubtful}" * bool(doubtful)
            keep = (f"{seq:,}", f"≥ {level.cosine:g}", len(level.keep))
            lines.append((*keep, fastest, step, "; ".join(filter(None, (ties, may)))))
    return Table(LEVELS_TITLE, columns(*names, right=names[:3], wrap=names[-1:]), lines)


def _layers_table(rows: Sequence[Row]) -> Table:
    lines = []
    for row in rows:
        cells: list[str | Styled] = []
        for found in row.get("by_layer") or ():
            cell = format_cosine(found and found["value"])
            cells.append(Styled(f"{KEPT} {cell}", GOOD) if _keeps(found) else cell)
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


def model_lines(found: Evidence) -> Iterator[str]:
    """What has no figures and why, and what the words of the tables mean."""
    original, texts, wanted = (found.made[name] for name in ("original", "texts", "wanted"))
    yield from _unavailable(found.rows)
    for row in found.rows:
        notes = [*row.get("amiss", ()), (row.get("distilled") or {}).get("why")]
        if row["status"] not in ("measured", "unavailable"):
            notes.insert(0, status_words(row))
        refused = (row.get("left_out") or {}).items()
        notes += [f"{len(places)} texts refused: {why}" for why, places in refused]
        notes += [f"step at {s['seq']}: {s['why']}" for s in row.get("steps") or () if "why" in s]
        yield from (f"! {row['variant']}: {note}" for note in notes if note)
    tokens = original["tokens"]
    long = sum(length >= results.LONG for length in tokens)
    less = long < len(results.long_texts(original))
    few = "; too few, so what is said of long texts is of all" * less
    yield (
        f"{found.made['model']['name']}, {wanted['dtype']} on {wanted['device']}; "
        f"{texts['texts']} texts ({texts['source']}, {texts['digest']}) of {min(tokens)} to "
        f"{max(tokens)} tokens, {long} of them long ({results.LONG} and more){few}"
    )
    yield "cosine: with the original's embedding in float64; median over texts, its 95 % interval"
    yield "same rank: tied; alone: each text by itself, as it takes no padding mask"
    yield "a step: one text, no padding, no gradients; verdicts after Holm's correction over all"
    yield "rank correlation: Spearman's, of the similarities of pairs with the original's"
    if same := [r["variant"] for r in found.rows if r.get("equal") and r["computes"] != "softmax"]:
        yield (
            f"equal to the original within rounding on all of these texts, of whom that need not "
            f"be: {', '.join(same)}; at such lengths they leave nothing out"
        )


def _unavailable(rows: Sequence[Row]) -> Iterator[str]:
    if away := dict.fromkeys(row["variant"] for row in rows if row["status"] == "unavailable"):
        yield f"not available here ('attnbench list' says why): {', '.join(away)}"


TITLES = {
    "softmax": "exact softmax",
    "approximates softmax": "near softmax",
    "softmax on its own pattern": "softmax on its own pattern",
    "its own operator": "operators of their own: their distance is information, not a fault",
}


def real_tables(found: Evidence) -> Iterator[Table]:
    """The entropies, then skill and distance of each kind, the best mean skill on layers first."""
    sources = list(dict.fromkeys(row["source"] for row in found.rows))
    entropies = {r["source"]: f"{r['entropy']:.3f}" for r in found.rows if r["entropy"] is not None}
    title = "how spread the attention is: its mean entropy, as a share of the most"
    spread = ("entropy", *map(entropies.get, sources))
    yield Table(title, columns("", *sources, right=sources), [spread])
    left_out = ("refused", "unavailable")
    tried = {row["variant"] for row in found.rows if row["status"] not in left_out}
    for computes, title in TITLES.items():
        cells: dict[str, dict[str, Row]] = {}
        for row in found.rows:
            if row["computes"] == computes and row["variant"] in tried:
                cells.setdefault(row["variant"], {})[row["source"]] = row
        means = {}
        for name, by_source in cells.items():
            layers = [row["skill"] for s, row in by_source.items() if s.startswith("layer")]
            known = [skill for skill in layers if skill is not None]
            means[name] = sum(known) / len(known) if known else float("-inf")
        order = sorted(cells, key=lambda name: -means[name])
        for what, words in (("skill", "skill"), ("distance", "distance from softmax")):
            lines = [
                (name, *(_source_cell(cells[name].get(source), what) for source in sources))
                for name in order
            ]
            if lines:
                heads = columns("variant", *sources, right=sources)
                yield Table(f"{title}: {words}", heads, lines)


def _source_cell(row: Row | None, what: str) -> str | Styled | None:
    if row is not None and row["status"] != "measured":
        return Styled(row["status"].replace("_", " "), BAD)
    if row is None or (value := row[what]) is None:
        return None
    if what == "distance":
        return f"{value:.3g}"
    return Styled(f"{value:.3f}", GOOD if value >= 0.5 else "")


def real_lines(found: Evidence) -> Iterator[str]:
    """What has no figures and why, once for all sources where it is the same; what words mean."""
    yield from _unavailable(found.rows)
    sources_of: dict[tuple[str, str], list[str]] = {}
    for row in found.rows:
        if row["status"] not in ("measured", "unavailable"):
            sources_of.setdefault((row["variant"], status_words(row)), []).append(row["source"])
    every = len({row["source"] for row in found.rows})
    for (name, why), sources in sources_of.items():
        on = f" on {', '.join(sources)}" if len(sources) < every else ""
        yield f"! {name}{on}: {why}"
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


WIDE, HIGH = 500.0, 320.0
"""Points: of the figure, and of its axes."""
LEFT, RIGHT, ABOVE, BELOW = 52.0, 122.0, 52.0, 32.0
NAMED = 22
NEAREST = 1e-4
"""One minus a cosine: what is nearer to the original lies at the top edge."""
TICKS = (0.9999, 0.999, 0.99, 0.95, 0.9, 0.8, 0.6, 0.4, 0.0)
RATIOS = (0.2, 0.5, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)


def draw_model(found: Evidence) -> Plot | None:
    """Likeness × time at the longest step that was timed; None where none was."""
    lengths, made = results.lengths_of(found.rows), found.made
    shown = points(found.rows, lengths[-1]) if lengths else []
    if not shown:
        return None
    seq, look = lengths[-1], style.looks(shown)
    front = frontier({p.variant: (p.ratio[0], 1 - p.cosine[0]) for p in shown})
    floors = {s["seq"]: s["comparison"]["ratio"] for s in made["original"]["floor"]}
    title = f"What a variant costs {made['model']['name']}: likeness × time"
    where = f"{made['wanted']['dtype']}, {made['machine']['name']}"
    under = f"a step of {seq:,} tokens, {where}; intervals: 95 % up, 99 % across"
    with sheet(WIDE / 72, (BELOW + HIGH + ABOVE) / 72) as figure:
        labels.heading(figure, title, under, sentence(results.finding(shown)))
        axes = labels.add_axes(figure, (LEFT, BELOW, WIDE - RIGHT, BELOW + HIGH))
        xs = style.limits([x for p in shown for x in p.ratio] + [1.0, *floors.values()], least=1.5)
        _draw_axes(axes, xs, 1.4 * max(0.15, *(_far(p.cosine[0]) for p in shown)), floors.get(seq))
        cloud = [p for name in front for p in shown if p.variant == name]
        times, heights = [p.ratio[0] for p in cloud], [_far(p.cosine[0]) for p in cloud]
        steps = [times[0], *times, xs[1]], [axes.get_ylim()[0], *heights, heights[-1]]
        axes.step(*steps, where="post", color=FAINT, linewidth=1.0, alpha=0.8)
        for p in shown:
            (x, low, high), (y, under_y, over) = p.ratio, map(_far, p.cosine)
            leads = p.variant in front
            across, up = [[x - low], [high - x]], [[y - over], [under_y - y]]
            more: dict[str, Any] = {"alpha": 1.0 if leads else 0.75, "zorder": 3, "clip_on": False}
            more |= look[p.variant].marks(5.5 if leads else 4.5)
            axes.errorbar([x], [y], up, across, elinewidth=0.9, **more)
        order = sorted(shown, key=lambda p: (p.variant not in front, p.ratio))
        style.legend(figure, (look[p.variant] for p in order[:NAMED]), lines=False)
        some = (
            f"{p.variant} (cosine {format_cosine(p.cosine[0])}, {p.ratio[0]:.3f})" for p in cloud
        )
        words = f"Beaten by none both ways: {', '.join(some)}"
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
