"""The cost of a variant in a trained model: intervals, ranks, verdicts, and sentences on them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from attnbench.core import stats
from attnbench.core.format import name_and_kind
from attnbench.core.stats import Comparison, Verdict

Row = Mapping[str, Any]
Cosines = Sequence[float | None]


def timed_steps(row: Row) -> list[Row]:
    """The steps of a variant that have a time: the others say why not."""
    return [step for step in row.get("steps") or () if "why" not in step]


def comparison_of(step: Row) -> Comparison:
    """A step's pairs with the original; in older files the samples stand beside the verdict."""
    samples = step.get("samples_s") or {"a_s": step.get("a_s"), "b_s": step.get("b_s")}
    both = {side: some for side, some in zip(("a_s", "b_s"), samples.values(), strict=True) if some}
    return msgspec.convert({**both, **step["comparison"]}, Comparison)


def estimate_median(values: Cosines) -> dict[str, Any] | None:
    """The median and its 95 % interval, by order statistics; None of no values."""
    numbers = [x for x in values if x is not None]
    if not numbers:
        return None
    low, high = stats.median_interval(numbers)
    estimate = {"value": statistics.median(numbers), "low": low, "high": high}
    return {**estimate, "n": len(numbers), "worst": min(numbers)}


LONG, ENOUGH = 128, 8
"""Tokens from which a text is long (in a shorter one, many patterns leave nothing out), and how
many long texts there must be for ranks to go by these alone."""


def long_texts(original: Row) -> list[int]:
    """The places of texts that ranks go by: the long ones, or all where those are few."""
    long = [place for place, length in enumerate(original["tokens"]) if length >= LONG]
    return long if len(long) >= ENOUGH else list(range(len(original["tokens"])))


def summarize(row: Row, original: Row) -> dict[str, Any]:
    """The row with the medians of its raw figures."""
    more: dict[str, Any] = {}
    long = long_texts(original)
    if cosines := row.get("cosines"):
        more["cosine"] = {"long": estimate_median([cosines[n] for n in long])}
    if row.get("layers"):
        more["by_layer"] = [estimate_median(layer) for layer in row["layers"]]
    return {**row, **more}


RANKED = ("approximates softmax", "softmax on its own pattern")


def with_ranks(rows: Sequence[Row], original: Row) -> list[dict[str, Any]]:
    """The rows with their ranks: 1 for the nearest to the original and all that tie with it.

    One is nearer where it is text by text, beyond doubt. None for other operators.
    """
    places, cosines = long_texts(original), dict[str, list[float]]()
    for row in rows:
        if row["status"] == "measured" and row["computes"] in RANKED:
            cosines[row["variant"]] = [row["cosines"][n] for n in places]
    ranks: dict[str, int] = {}
    leader: list[float] = []
    for name in sorted(cosines, key=lambda name: -sorted(cosines[name])[len(places) // 2]):
        ahead = [x - y for x, y in zip(leader, cosines[name], strict=False)]
        if not ranks or stats.median_interval(ahead, stats.VERDICT_CONFIDENCE)[0] > 0:
            leader, rank = cosines[name], len(ranks) + 1
        ranks[name] = rank
    return [{**row, "rank": ranks.get(row["variant"])} for row in rows]


def with_verdicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows, the verdicts of their steps with Holm's correction over all of them."""
    comparisons = [comparison_of(step) for row in rows for step in timed_steps(row)]
    corrected = iter(msgspec.to_builtins(stats.holm(comparisons)))

    def step_of(step: Row) -> Row:
        return step if "why" in step else {**step, "comparison": next(corrected)}

    return [{**row, "steps": [*map(step_of, row.get("steps") or ())]} for row in rows]


LEVELS, LEVEL = (0.999, 0.99, 0.95, 0.9), 0.99
"""Levels of the median cosine to the original's embeddings, and the one that is named first."""
Triple = tuple[float, float, float]
"""A figure and its interval."""


@dataclass(frozen=True)
class CostPoint:
    """A variant with both: its cosine over long texts, and its step over the original's."""

    variant: str
    family: str
    computes: str
    cosine: Triple
    ratio: Triple
    step_s: float
    faster: bool
    """Than the original: the verdict of its pairs, which survived Holm's correction over all."""


class Level(NamedTuple):
    """Those whose whole interval is above a cosine, the fastest first, and what ties with it."""

    cosine: float
    keep: Sequence[CostPoint]
    tied: Sequence[CostPoint]
    doubtful: Sequence[CostPoint]
    """Whose interval of the cosine holds the level: more texts would tell."""


def lengths_of(rows: Sequence[Row]) -> list[int]:
    """The lengths at which any step was timed."""
    return sorted({step["seq"] for row in rows for step in timed_steps(row)})


def points(rows: Sequence[Row], seq: int) -> list[CostPoint]:
    """The variants that have both at a length."""
    both = []
    for row in rows:
        cosine = (row.get("cosine") or {}).get("long")
        step = next((s for s in timed_steps(row) if s["seq"] == seq), None)
        if row["status"] != "measured" or cosine is None or step is None:
            continue
        compared = comparison_of(step)
        likeness = cosine["value"], cosine["low"], cosine["high"]
        ratio = compared.ratio, compared.low, compared.high
        step_s, faster = statistics.median_high(compared.b_s), compared.verdict is Verdict.FASTER
        about = row["variant"], row["family"], row["computes"]
        both.append(CostPoint(*about, likeness, ratio, step_s, faster))
    return both


def levels_of(some: Sequence[CostPoint], levels: Sequence[float] = LEVELS) -> list[Level]:
    """At each level: those whose whole interval is above it, and those that may be."""
    by_time = sorted(some, key=lambda p: (p.ratio[0], p.variant))
    standings = []
    for level in levels:
        keep = [p for p in by_time if p.cosine[1] >= level]
        doubtful = [p for p in some if p.cosine[1] < level <= p.cosine[2]]
        tied = [p for p in keep[1:] if p.ratio[1] <= keep[0].ratio[2]]
        standings.append(Level(level, keep, tied, doubtful))
    return standings


def format_triple(triple: Sequence[float]) -> str:
    """``0.987 [0.981, 0.993]``"""
    return "{:.3f} [{:.3f}, {:.3f}]".format(*triple)


def conclude(rows: Sequence[Row], original: Row) -> Iterator[str]:
    """The variants both faster and as good at each length; then the most that is to gain."""
    lengths = lengths_of(rows)
    for seq in lengths:
        at = f"at {seq:,} tokens: " if len(lengths) > 1 else ""
        if not (some := points(rows, seq)):
            continue
        yield at + finding(some)
        if faster := [p for p in some if p.faster]:
            near = max(faster, key=lambda p: p.cosine)
            name = name_and_kind(near.variant, near.computes)
            yield (
                f"{at}the nearest to the original of what is faster beyond doubt is "
                f"{name}: a cosine of {format_triple(near.cosine)} in "
                f"{format_triple(near.ratio)} of the time"
            )
        else:
            yield f"{at}nothing at all is faster than the original beyond doubt"
    for step in original["floor"]:
        ratio = format_triple([step["comparison"][end] for end in ("ratio", "low", "high")])
        yield (
            f"without any attention a step of {step['seq']:,} tokens takes {ratio} of the "
            "original's time: what a variant can gain ends there"
        )


def finding(some: Sequence[CostPoint]) -> str:
    """The fastest of those that keep the level, and whether it is faster than the original."""
    (level,) = levels_of(some, (LEVEL,))
    if not level.keep:
        return f"no variant keeps a median cosine of {LEVEL:g}"
    first = level.keep[0]
    name = name_and_kind(first.variant, first.computes)
    fastest = f"{name}, in {first.ratio[0]:.3f} of the original's time"
    if not first.faster:
        return f"at a cosine of {LEVEL:g} none is faster than the original; next to it: {fastest}"
    return f"at a cosine of {LEVEL:g} the fastest is {fastest}"
