"""What a variant costs a model, as tables: exact softmax, what is near it, other operators.

The report's page has the same tables; every figure is in the evidence too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table as Grid

from attnbench.answer.model_cost import iso
from attnbench.answer.model_cost.ranks import RANKED
from attnbench.answer.model_cost.told import LONG, long_texts
from attnbench.comparison import Verdict
from attnbench.pairs import Pairs
from attnbench.report import numbers
from attnbench.report.pairs_view import STYLE
from attnbench.report.quality_said import (
    NAMED,
    NOTHING,
    alone,
    cosine,
    equal,
    floors,
    frontier_said,
    interval,
    level_words,
    order_words,
)
from attnbench.report.tables import BAD, FAINT, GOOD, console, grid, put

if TYPE_CHECKING:
    from attnbench.store.evidence import Evidence

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
    others = sorted((row for row in tried if row["computes"] == "its own operator"),
                    key=lambda row: str(row["variant"]))  # fmt: skip
    made = [
        ("exact softmax: it has to agree with the original", _exact(exact, original)),
        ("near softmax, or softmax on its own pattern: the nearest to the original first",
         _near(near, ranks=True)),
        ("operators of their own: another function, in no order with the rest",
         _near(others, ranks=False)),
        ("what a step takes, in pairs with the original", _steps(rows, original)),
        (LEVELS, _levels(rows, named)),
        (f"each layer alone, the others as they were: median cosine, {KEPT} where it keeps "
         f"{TOLERATED} on all of some long texts", _layers([*near, *others])),
        ("after distillation, on texts that were not learnt from", _distilled(rows)),
    ]  # fmt: skip
    return [(title, table) for title, table in made if table.row_count]


def model_lines(found: Evidence) -> list[str]:
    """What the tables leave out, and what their words mean."""
    return [*_amiss(found.rows), *_foot(found)]


def _shown(tables: Iterable[tuple[str, Grid]], said: Iterable[str],
           foot: Iterable[str]) -> None:  # fmt: skip
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
        made.add_row(escape(row["variant"]), _e(error["max"]), _e(error["relative"]),
                     numbers.ratio(far), _how(row), agrees)  # fmt: skip
    return made


def _near(rows: Sequence[Row], *, ranks: bool) -> Grid:
    right = ("long texts: cosine", "worst", "short texts", "rank correlation", "paraphrases found")
    made = grid(*["rank"] * ranks, "variant", *right, "texts", right=(*right, "rank"))
    for row in rows:
        long, short = row["cosine"]["long"], row["cosine"]["short"]
        order = NOTHING if row["order"] is None else numbers.share(row["order"])
        cells = (
            interval(long, cosine), cosine(long and long["worst"]),
            cosine(short and short["value"]), interval(row["spearman"], "{:.3f}".format),
            order, _how(row),
        )  # fmt: skip
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
            escape(name), f"{seq:,}", numbers.ms(middle), f"{ratio:.3f}",
            f"{said['low']:.3f}–{said['high']:.3f}", str(said["n"]),
            f"{said['smallest_effect']:.1%}", verdict,
        )  # fmt: skip
    return made


def _levels(rows: Sequence[Row], named: int) -> Grid:
    made = grid("tokens", "cosine", "keep it", "fastest of them", "step", "can't be told from it",
                right=("tokens", "cosine", "keep it"), words=["can't be told from it"])  # fmt: skip
    for seq in iso.lengths(rows):
        for level in iso.levels(iso.points(rows, seq)):
            fastest, step, tied = level_words(level, named)
            made.add_row(f"{seq:,}", f"≥ {level.cosine:g}", str(level.keep), escape(fastest),
                         escape(step), escape(tied))  # fmt: skip
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
                escape(row["variant"]), cosine(before and before["value"]),
                cosine(after and after["value"]), interval(learnt["change"], "{:+.4f}".format),
                losses,
            )  # fmt: skip
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
