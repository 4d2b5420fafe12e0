"""What a variant costs a model, as tables: exact softmax, what is near it, other operators.

The report's page has the same tables; every figure is in the evidence too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table as Grid

from attnbench.core import format
from attnbench.core.stats import Pairs, Verdict
from attnbench.features.commits.view import STYLE
from attnbench.features.quality import words as iso
from attnbench.features.quality.words import (
    LONG,
    NAMED,
    NOTHING,
    RANKED,
    alone,
    cosine,
    equal,
    floors,
    frontier_said,
    interval,
    level_words,
    long_texts,
    order_words,
)
from attnbench.report.tables import BAD, FAINT, GOOD, console, grid, put

if TYPE_CHECKING:
    from attnbench.core.evidence import Evidence


Row = Mapping[str, Any]
LEVELS = "at the same quality, who is fastest"
KEPT = "✓"
TOLERATED = 0.99
"""The cosine of the worst text: a layer that keeps so much tolerates a variant."""


def line(row: Row) -> str:
    """One variant, as it ends."""
    if row["status"] != "measured":
        return f"{row['variant']}: {row['status'].replace('_', ' ')}: {row['reason']}"
    steps = [s for s in row["steps"] if "why" not in s]
    took = ", ".join(f"step {s['comparison']['ratio']:.3f} at {s['seq']}" for s in steps)
    words = [f"cosine {interval(row['cosine']['long'], cosine)}", took, *row["amiss"]]
    return f"{row['variant']}: {'; '.join(filter(None, words))}"


def show_model(found: Evidence) -> None:
    """``quality model``"""
    said = [f"{words[0].upper()}{words[1:]}." for words in model_said(found)]
    _shown(model_tables(found), said, model_lines(found))


def model_said(found: Evidence) -> list[str]:
    """What follows: who is faster and as good, and what there was to gain at all."""
    return [*frontier_said(found.rows), *floors(found.made["original"])]


def model_tables(found: Evidence, named: int = NAMED) -> list[tuple[str, Grid]]:
    """The tables by their titles, those that have rows; so many are named where some tie."""
    rows, original = found.rows, found.made["original"]
    tried = [row for row in rows if row.get("cosines")]
    exact = [row for row in tried if row["computes"] == "softmax"]
    near = sorted((row for row in tried if row["computes"] in RANKED), key=_nearest)
    others = sorted(
        (row for row in tried if row["computes"] == "its own operator"),
        key=lambda row: str(row["variant"]),
    )
    made = [
        ("exact softmax: it has to agree with the original", _exact(exact, original)),
        (
            "near softmax, or softmax on its own pattern: the nearest to the original first",
            _near(near, ranks=True),
        ),
        (
            "operators of their own: another function, in no order with the rest",
            _near(others, ranks=False),
        ),
        ("what a step takes, in pairs with the original", _steps(rows, original)),
        (LEVELS, _levels(rows, named)),
        (
            f"each layer alone, the others as they were: median cosine, {KEPT} where it keeps "
            f"{TOLERATED} on all of some long texts",
            _layers([*near, *others]),
        ),
        ("after distillation, on texts that were not learnt from", _distilled(rows)),
    ]
    return [(title, table) for title, table in made if table.row_count]


def model_lines(found: Evidence) -> list[str]:
    """What the tables leave out, and what their words mean."""
    return [*_amiss(found.rows), *_foot(found)]


def _shown(tables: Iterable[tuple[str, Grid]], said: Iterable[str], foot: Iterable[str]) -> None:
    out = console()
    for title, made in tables:
        out.print(f"\n[bold]{escape(title)}[/]")
        put(made)
    out.print()
    for each in said:
        out.print(escape(each))
    for each in foot:
        out.print(escape(each), style=FAINT)


def _nearest(row: Row) -> tuple[float, str]:
    found = row["cosine"]["long"]
    return (-found["value"] if found else 2.0, str(row["variant"]))


def _exact(rows: Sequence[Row], original: Row) -> Grid:
    right = ("largest error", "relative error", "of the original's own")
    made = grid("variant", *right, "texts", "agrees", right=right)
    plain = original["plain"]["relative"]
    for row in rows:
        error = row["error"]
        far = None if error["relative"] is None else error["relative"] / plain
        agrees = f"[{BAD}]NO[/]" if row["status"] == "wrong" else f"[{GOOD}]yes[/]"
        made.add_row(
            escape(row["variant"]),
            _e(error["max"]),
            _e(error["relative"]),
            format.ratio(far),
            _how(row),
            agrees,
        )
    return made


def _near(rows: Sequence[Row], *, ranks: bool) -> Grid:
    right = ("long texts: cosine", "worst", "short texts", "rank correlation", "paraphrases found")
    made = grid(*["rank"] * ranks, "variant", *right, "texts", right=(*right, "rank"))
    for row in rows:
        long, short = row["cosine"]["long"], row["cosine"]["short"]
        order = NOTHING if row["order"] is None else format.share(row["order"])
        cells = (
            interval(long, cosine),
            cosine(long and long["worst"]),
            cosine(short and short["value"]),
            interval(row["spearman"], "{:.3f}".format),
            order,
            _how(row),
        )
        rank = [NOTHING if row.get("rank") is None else str(row["rank"])] * ranks
        made.add_row(*rank, escape(row["variant"]), *cells)
    return made


def _how(row: Row) -> str:
    """How the texts went through: in batches, or each alone; and those that were refused."""
    left = sum(len(places) for places in row["left_out"].values())
    return ("together" if row["together"] else "alone") + f", {left} refused" * bool(left)


def _steps(rows: Iterable[Row], original: Row) -> Grid:
    right = ("tokens", "ms", "of the original's", "99 %", "pairs", "could be seen")
    made = grid("variant", *right, "verdict", right=right)
    floor: Row = {"variant": "no attention at all", "steps": original["floor"]}
    timed = [
        (step["seq"], step["comparison"]["ratio"], row["variant"], step)
        for row in [floor, *rows]
        for step in row.get("steps") or ()
        if "why" not in step
    ]
    for seq, ratio, name, step in sorted(timed, key=lambda each: each[:3]):
        said = step["comparison"]
        times = sorted(Pairs.from_dict(step).b_s)
        middle = times[len(times) // 2]
        verdict = f"[{STYLE[Verdict(said['verdict'])]}]{said['verdict']}[/]"
        made.add_row(
            escape(name),
            f"{seq:,}",
            format.ms(middle),
            f"{ratio:.3f}",
            f"{said['low']:.3f}–{said['high']:.3f}",
            str(said["n"]),
            f"{said['smallest_effect']:.1%}",
            verdict,
        )
    return made


def _levels(rows: Sequence[Row], named: int) -> Grid:
    made = grid(
        "tokens",
        "cosine",
        "keep it",
        "fastest of them",
        "step",
        "can't be told from it",
        right=("tokens", "cosine", "keep it"),
        words=["can't be told from it"],
    )
    for seq in iso.lengths_of(rows):
        for level in iso.levels_of(iso.points(rows, seq)):
            fastest, step, tied = level_words(level, named)
            made.add_row(
                f"{seq:,}",
                f"≥ {level.cosine:g}",
                str(level.keep),
                escape(fastest),
                escape(step),
                escape(tied),
            )
    return made


def _layers(rows: Sequence[Row]) -> Grid:
    tried = [row for row in rows if row.get("by_layer")]
    count = max((len(row["by_layer"]) for row in tried), default=0)
    layers = [f"layer {n}" for n in range(count)]
    made = grid("variant", *layers, "keeps it in", right=layers)
    for row in tried:
        cells, kept = [], 0
        for found in row["by_layer"]:
            holds = found is not None and found["worst"] >= TOLERATED
            words = cosine(found and found["value"])
            cells.append(f"[{GOOD}]{KEPT} {words}[/]" if holds else words)
            kept += holds
        made.add_row(escape(row["variant"]), *cells, f"{kept} of {len(cells)}")
    return made


def _distilled(rows: Sequence[Row]) -> Grid:
    right = ("before", "after", "change, text by text", "loss, first and last step")
    made = grid("variant", *right, right=right)
    for row in rows:
        learnt = row.get("distilled")
        if learnt and "why" not in learnt:
            before, after = learnt["cosine_before"], learnt["cosine_after"]
            losses = f"{learnt['losses'][0]:.3g} → {learnt['losses'][-1]:.3g}"
            made.add_row(
                escape(row["variant"]),
                cosine(before and before["value"]),
                cosine(after and after["value"]),
                interval(learnt["change"], "{:+.4f}".format),
                losses,
            )
    return made


def _amiss(rows: Sequence[Row]) -> Iterator[str]:
    """What has no figures, and why; of whom this machine can't run, the names."""
    away = [row["variant"] for row in rows if row["status"] == "unavailable"]
    if len(away) == 1:
        (row,) = (row for row in rows if row["status"] == "unavailable")
        yield f"! {row['variant']}: unavailable: {row['reason']}; {row['remedy']}"
    elif away:
        yield f"not available here ('attnbench list' says why): {', '.join(away)}"
    for row in rows:
        if row["status"] not in ("measured", "unavailable"):
            yield f"! {row['variant']}: {row['status'].replace('_', ' ')}: {row['reason']}"
        for why, places in (row.get("left_out") or {}).items():
            yield f"! {row['variant']}: {len(places)} texts refused: {why}"
        notes = [*row.get("amiss", ()), (row.get("distilled") or {}).get("why")]
        notes += [f"step at {s['seq']}: {s['why']}" for s in row.get("steps") or () if "why" in s]
        yield from (f"! {row['variant']}: {note}" for note in notes if note)


def _foot(found: Evidence) -> Iterator[str]:
    made = found.made
    original, texts, wanted = made["original"], made["texts"], made["wanted"]
    long = sum(length >= LONG for length in original["tokens"])
    few = "; too few, so what is said of long texts is of all" * (long < len(long_texts(original)))
    yield (
        f"{made['model']['name']}, {wanted['dtype']} on {wanted['device']}; {texts['texts']} texts "
        f"({texts['source']}, {texts['digest']}) of {min(original['tokens'])} to "
        f"{max(original['tokens'])} tokens, {long} of them long ({LONG} and more){few}"
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
    yield order_words(original)
    if same := [row["variant"] for row in found.rows if equal(row)]:
        yield (
            f"equal to the original within rounding on all of these texts, of whom that need not "
            f"be: {', '.join(same)}; at such lengths they leave nothing out"
        )
    if any(alone(row) for row in found.rows):
        yield "alone: it takes no padding mask, so each text goes by itself, without padding"


def _e(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1e}"


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
    made = [
        (
            "how spread the attention is: its mean entropy, as a share of the most",
            _entropies(found.rows, sources),
        )
    ]
    for computes in ORDER:
        some = [row for row in found.rows if row["computes"] == computes]
        if _tried(some):
            made += [
                (f"{TITLES[computes]}: skill", _grid(some, sources, "skill")),
                (f"{TITLES[computes]}: distance from softmax", _grid(some, sources, "distance")),
            ]
    return made


def real_lines(found: Evidence) -> list[str]:
    """What the tables leave out, and what their words mean."""
    return [*_amiss_of_quality_real_view(found.rows), *_foot_of_quality_real_view(found)]


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
    return list(
        dict.fromkeys(r["variant"] for r in rows if r["status"] not in ("refused", "unavailable"))
    )


def _grid(rows: Sequence[Row], sources: Sequence[str], what: str) -> Grid:
    made = grid("variant", *sources, right=sources)
    by = {(row["variant"], row["source"]): row for row in rows}
    for name in sorted(_tried(rows), key=lambda name: -mean_skill(rows, name)):
        cells = [_cell(by.get((name, source)), what) for source in sources]
        made.add_row(escape(name), *cells)
    return made


def mean_skill(rows: Sequence[Row], name: str) -> float:
    """Over the model's layers; what has none comes last."""
    skills = [
        r["skill"]
        for r in rows
        if r["variant"] == name and r["skill"] is not None and r["source"].startswith("layer")
    ]
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


def _amiss_of_quality_real_view(rows: Sequence[Row]) -> Iterator[str]:
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


def _foot_of_quality_real_view(found: Evidence) -> Iterator[str]:
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
