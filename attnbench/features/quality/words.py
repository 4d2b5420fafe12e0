"""Sentences on what a replaced attention costs a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.answer.regimes import frontier
from attnbench.core import format
from attnbench.core.stats import (
    CONFIDENCE,
    Comparison,
    Pairs,
    Verdict,
    bootstrap_medians,
    holm,
    median_interval,
)
from attnbench.core.stats import VERDICT_CONFIDENCE as CONFIDENCE_ranks
from attnbench.report.figures.sheet import FAINT, GRID, INK
from attnbench.report.figures.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes


DRAWS = 1000
LEAST = 3
"""Pairs: of fewer no correlation says anything."""


@dataclass(frozen=True)
class CostInterval:
    """A figure, and where it lies with a confidence of 95 in 100."""

    value: float
    low: float
    high: float
    n: int
    worst: float | None = None
    """Of a median: the least value."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, sent: dict[str, Any] | None) -> CostInterval | None:
        """As it was sent; None stays None."""
        return None if sent is None else cls(**sent)


def of_median(values: Sequence[float], confidence: float = CONFIDENCE) -> CostInterval | None:
    """The median with its interval by bootstrap, no narrower than that of the order statistics.

    With few values a bootstrap alone misses the median more often than it says.
    """
    if not values:
        return None
    tail = (1 - confidence) / 2
    drawn = [float(x) for x in np.quantile(bootstrap_medians(values), [tail, 1 - tail])]
    exact = median_interval(values, confidence)
    low, high = min(*drawn, *exact), max(*drawn, *exact)
    return CostInterval(float(np.median(values)), low, high, len(values), min(values))


def ranked(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The rank of each value, from 1; values that are equal share the mean of their ranks."""
    _, which, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: np.ndarray = (last - (counts - 1) / 2)[which]
    return means


def rank_correlation(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    """Spearman's: Pearson's of the ranks; not a number where one side is all alike."""
    x, y = (ranked(side) - (len(side) + 1) / 2 for side in (a, b))
    whole = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / whole if whole else float("nan")


def of_rank_correlation(
    a: Sequence[float], b: Sequence[float], draws: int = DRAWS, seed: int = 0
) -> CostInterval | None:
    """Spearman's with its interval by bootstrap over the pairs; None where nothing can be said."""
    value = rank_correlation(a, b) if len(a) >= LEAST else float("nan")
    if not np.isfinite(value):
        return None
    generator, x, y = np.random.default_rng(seed), np.asarray(a), np.asarray(b)
    picks = generator.integers(len(x), size=(draws, len(x)))
    found = np.array([rank_correlation(x[some], y[some]) for some in picks])
    low, high = (float(q) for q in np.quantile(found[np.isfinite(found)], [0.025, 0.975]))
    return CostInterval(value, min(low, value), max(high, value), len(x))


LONG = 128
"""Tokens from which a text is long: in a shorter one, many patterns leave nothing out."""
ENOUGH = 8
"""Long texts, where ranks go by these alone."""
ALIKE, UNLIKE = "paraphrase", "unrelated"


def long_texts(original: Row) -> list[int]:
    """The places of texts that ranks go by: the long ones, or all where those are few."""
    found = [place for place, length in enumerate(original["tokens"]) if length >= LONG]
    return found if len(found) >= ENOUGH else list(range(len(original["tokens"])))


def short_texts(original: Row) -> list[int]:
    """The places of all others."""
    rest = set(range(len(original["tokens"]))) - set(long_texts(original))
    return sorted(rest)


def told(row: Row, original: Row) -> dict[str, Any]:
    """The row with what it says in short."""
    more: dict[str, Any] = {}
    if row.get("cosines"):
        more["cosine"] = {
            "long": _median(row["cosines"], long_texts(original)),
            "short": _median(row["cosines"], short_texts(original)),
        }
        more["spearman"] = _sent(correlation(row["similarities"], original["similarities"]))
        more["order"] = order_kept(row["similarities"], original["pairs"])
    if row.get("layers"):
        more["by_layer"] = [_median(some, range(len(some))) for some in row["layers"]]
    if (learnt := row.get("distilled")) and "why" not in learnt:
        more["distilled"] = {**learnt, **_learnt(learnt, original)}
    return {**row, **more}


def correlation(got: Sequence[float | None], want: Sequence[float | None]) -> CostInterval | None:
    """Spearman's of the similarities of those pairs that both have."""
    both = [(x, y) for x, y in zip(got, want, strict=True) if x is not None and y is not None]
    return of_rank_correlation([x for x, _ in both], [y for _, y in both])


def order_kept(got: Sequence[float | None], pairs: Sequence[Row]) -> float | None:
    """How often a paraphrase is more alike than an unrelated pair; None where there are none."""
    alike, unlike = (
        [s for s, pair in zip(got, pairs, strict=True) if s is not None and pair["kind"] == kind]
        for kind in (ALIKE, UNLIKE)
    )
    if not alike or not unlike:
        return None
    return sum(a > b for a in alike for b in unlike) / (len(alike) * len(unlike))


def _learnt(learnt: Row, original: Row) -> dict[str, Any]:
    """Before, after and the change, text by text, over the long ones among those judged."""
    long = set(long_texts(original))
    places = [n for n, text in enumerate(learnt["texts"]) if text in long]
    places = places or list(range(len(learnt["texts"])))
    both = [(learnt["before"][n], learnt["after"][n]) for n in places]
    change = [after - before for before, after in both if None not in (before, after)]
    return {
        "cosine_before": _median(learnt["before"], places),
        "cosine_after": _median(learnt["after"], places),
        "change": _sent(of_median(change)),
    }


def _median(values: Sequence[float | None], places: Sequence[int]) -> dict[str, Any] | None:
    return _sent(of_median([x for n in places if (x := values[n]) is not None]))


def _sent(found: CostInterval | None) -> dict[str, Any] | None:
    return None if found is None else found.to_dict()


LEVELS = (0.999, 0.99, 0.95, 0.9)
"""Of the median cosine to the original's embeddings."""


@dataclass(frozen=True)
class CostPoint:
    """A variant with both: its cosine over long texts, and its step over the original's."""

    variant: str
    family: str
    computes: str
    cosine: tuple[float, float, float]
    """The median and its interval."""
    ratio: tuple[float, float, float]
    """Of the step's time, and its interval."""
    step_s: float
    faster: bool
    """Than the original: the verdict of its pairs, which survived Holm's correction over all."""


@dataclass(frozen=True)
class Level:
    """Who is fastest of those that keep so much."""

    cosine: float
    fastest: CostPoint | None
    tied: tuple[CostPoint, ...]
    """Whose interval of time reaches the fastest's."""
    doubtful: tuple[CostPoint, ...]
    """Whose interval of the cosine holds the level: more texts would tell."""
    keep: int
    """How many there are that keep it."""

    @property
    def gains(self) -> bool:
        """Whether the fastest is faster than the original beyond doubt."""
        return self.fastest is not None and self.fastest.faster


def points(rows: Sequence[Row], seq: int) -> list[CostPoint]:
    """The variants that have both at a length."""
    found = []
    for row in rows:
        cosine = (row.get("cosine") or {}).get("long")
        step = next((s for s in row.get("steps") or () if s["seq"] == seq and "why" not in s), None)
        if row["status"] != "measured" or cosine is None or step is None:
            continue
        said, times = step["comparison"], sorted(Pairs.from_dict(step).b_s)
        found.append(
            CostPoint(
                row["variant"],
                row["family"],
                row["computes"],
                (cosine["value"], cosine["low"], cosine["high"]),
                (said["ratio"], said["low"], said["high"]),
                times[len(times) // 2],
                said["verdict"] == Verdict.FASTER,
            )
        )
    return found


def levels_of(found: Sequence[CostPoint], wanted: Sequence[float] = LEVELS) -> list[Level]:
    """At each level: the fastest of those whose whole interval is above it, and who ties."""
    return [_level(found, level) for level in wanted]


def _level(found: Sequence[CostPoint], level: float) -> Level:
    keep = [p for p in found if p.cosine[1] >= level]
    doubtful = tuple(p for p in found if p.cosine[1] < level <= p.cosine[2])
    fastest = min(keep, key=lambda p: (p.ratio[0], p.variant), default=None)
    tied = tuple(
        p
        for p in keep
        if fastest is not None and p is not fastest and p.ratio[1] <= fastest.ratio[2]
    )
    return Level(level, fastest, tied, doubtful, len(keep))


def best(found: Sequence[CostPoint]) -> list[str]:
    """The names that no other beats in time without being further from the original."""
    return frontier({p.variant: (p.ratio[0], 1 - p.cosine[0]) for p in found})


def lengths_of(rows: Sequence[Row]) -> list[int]:
    """The lengths at which any step was timed."""
    return sorted({s["seq"] for row in rows for s in row.get("steps") or () if "why" not in s})


Row = Mapping[str, Any]
NOTHING = "–"
NAMED = 4
"""Of those that can't be told from the fastest, how many are named."""


def cosine(value: float | None) -> str:
    """``0.9876``; what is nearer to one than that is said to be."""
    if value is None:
        return NOTHING
    return "> 0.9999" if value >= 0.99995 else f"{value:.4f}"


def interval(found: Row | None, say: Callable[[float], str]) -> str:
    """``0.9876 [0.9812, 0.9899]``"""
    if found is None:
        return NOTHING
    return f"{say(found['value'])} [{say(found['low'])}, {say(found['high'])}]"


def level_words(level: Level, named: int = NAMED) -> tuple[str, str, str]:
    """Who is fastest at a level, what its step takes, and who can't be told from it."""
    doubtful = _names(level.doubtful, named, "may keep it: ")
    if level.fastest is None:
        return "nobody", "", doubtful
    step = _three(level.fastest.ratio) + ", no gain" * (not level.gains)
    tied = _names(level.tied, named)
    return level.fastest.variant, step, "; ".join(filter(None, [tied, doubtful]))


def _three(found: tuple[float, float, float]) -> str:
    """``0.987 [0.981, 0.993]``"""
    value, low, high = found
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _names(some: Sequence[CostPoint], named: int, before: str = "") -> str:
    if not some:
        return ""
    more = f" and {len(some) - named} more" * (len(some) > named)
    return f"{before}{', '.join(p.variant for p in some[:named])}{more}"


WANTED = 0.99
"""The level that is told first."""


def nearest_level(points: Sequence[CostPoint]) -> str:
    """Who is fastest of those that keep 0.99, or that nobody is faster than the original."""
    level = levels_of(points, (WANTED,))[0]
    if level.fastest is None:
        return f"Nobody keeps a median cosine of {WANTED:g}"
    who = f"{level.fastest.variant} ({level.fastest.ratio[0]:.3f} of the original's time)"
    if not level.gains:
        return f"At a cosine of {WANTED:g} nobody is faster than the original; next to it: {who}"
    return f"At a cosine of {WANTED:g} the fastest is {who}"


def frontier_said(rows: Sequence[Row]) -> Iterator[str]:
    """Who is both faster and as good, at each length that was timed; or what is faster, and not."""
    lengths = lengths_of(rows)
    for seq in lengths:
        at = f"at {seq:,} tokens: " * (len(lengths) > 1)
        some = points(rows, seq)
        yield from (at + words for words in _of_points(some) if some)


def _of_points(points: Sequence[CostPoint]) -> Iterator[str]:
    levels = levels_of(points)
    none = [level for level in levels if not level.gains]
    if none:
        kept = _or([f"{level.cosine:g}" for level in none])
        yield (
            "nothing is both faster than the original beyond doubt and keeps a median cosine of "
            f"{kept}{_fastest(none[0], '; ')}"
        )
    yield from (_fastest(level) for level in levels if level.gains)
    faster = [p for p in points if p.faster]
    if none and not faster:
        yield "nothing at all is faster than the original beyond doubt"
    elif none:
        near = max(faster, key=lambda p: p.cosine)
        yield (
            f"the nearest to the original of what is faster beyond doubt is {near.variant}: a "
            f"cosine of {_three(near.cosine)} in {_three(near.ratio)} of the time"
        )


def _fastest(level: Level, before: str = "") -> str:
    """Of those that keep a level; empty where nobody does."""
    if level.fastest is None:
        return ""
    tied = f"; {_names(level.tied, NAMED)} can't be told from it" * bool(level.tied)
    many = f"of the {level.keep} that keep {level.cosine:g} {level.fastest.variant} is fastest"
    one = f"only {level.fastest.variant} keeps {level.cosine:g}"
    said = many if level.keep > 1 else one
    return f"{before}{said}: {_three(level.fastest.ratio)} of the original's time{tied}"


def _or(words: Sequence[str]) -> str:
    """``0.999, 0.99 or 0.95``"""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def floors(original: Row) -> Iterator[str]:
    """What attention takes of a step: nobody can gain more."""
    for step in original["floor"]:
        said = step["comparison"]
        yield (
            f"without any attention a step of {step['seq']:,} tokens takes {said['ratio']:.3f} "
            f"[{said['low']:.3f}, {said['high']:.3f}] of the original's time: what a variant can "
            "gain ends there"
        )


def order_words(original: Row) -> str:
    """What the other two figures mean, and what the original itself has."""
    own = order_kept(original["similarities"], original["pairs"])
    said = "rank correlation: Spearman's, of the similarities of pairs with the original's"
    if own is None:
        return said
    return (
        f"{said}; paraphrases found: how often a paraphrase is more alike than an unrelated pair "
        f"(the original: {own:.0%})"
    )


def equal(row: Row) -> bool:
    """Whether what isn't exact softmax was, on these texts."""
    return bool(row.get("equal")) and row["computes"] != "softmax"


def alone(row: Row) -> bool:
    """Whether its texts went one by one."""
    return row.get("together") is False


ROW, EDGE, HEAD = 10.5, 4.0, 11.0
"""Points: of a row, above and below all, and of the words above them."""
SIZE = 8.0
WORDS = "as the original, to 0.0001"


def height(rows: int) -> float:
    """How high so many rows are together."""
    return rows * ROW + 2 * EDGE + HEAD if rows else 0.0


def put(
    axes: Axes,
    points: Sequence[CostPoint],
    look: Mapping[str, Look],
    best: Sequence[str],
    *,
    others: bool,
) -> None:
    """The fastest at the top, each with its name; the frontier comes up from below to it."""
    axes.set_ylim(-EDGE / ROW - 0.5, len(points) - 0.5 + (EDGE + HEAD) / ROW)
    axes.set_yticks([])
    axes.axvspan(axes.get_xlim()[0], 1.0, color=GRID, alpha=0.45, linewidth=0)
    axes.annotate(
        WORDS,
        (1, 1),
        xycoords="axes fraction",
        xytext=(-3, -3),
        color=FAINT,
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=SIZE,
    )
    for place, point in enumerate(points):
        y, own = float(len(points) - 1 - place), look[point.variant]
        first = point.variant in best
        if first and others:
            x = point.ratio[0]
            axes.plot([x, x], [axes.get_ylim()[0], y], color=FAINT, linewidth=1.0, alpha=0.8)
        mark(axes, point, (y, y, y), own, best=first)
        axes.annotate(
            point.variant,
            (point.ratio[2], y),
            xytext=(4, 0),
            va="center_baseline",
            textcoords="offset points",
            fontsize=SIZE,
            gid=own.gid(),
            color=INK if first else FAINT,
        )


def mark(
    axes: Axes, point: CostPoint, ys: tuple[float, float, float], look: Look, *, best: bool
) -> None:
    """A point at a height, with the ends of both intervals."""
    (x, low, high), (y, under, over) = point.ratio, ys
    pale = 1.0 if best else 0.75
    ink: dict[str, Any] = {"color": look.colour, "linewidth": 0.9, "alpha": 0.6 * pale, "zorder": 2}
    axes.plot([low, high], [y, y], gid=look.gid(), **ink)
    if over > under:
        axes.plot([x, x], [under, over], gid=look.gid(), **ink)
    words = f"{point.variant}: cosine {cosine(point.cosine[0])}, {format.times(x)} the time"
    axes.plot(
        [x],
        [y],
        linestyle="none",
        zorder=3,
        clip_on=False,
        alpha=pale,
        gid=look.gid(words),
        **look.marks(5.5 if best else 4.5),
    )


RANKED = ("approximates softmax", "softmax on its own pattern")


def with_ranks(rows: Sequence[Row], original: Row) -> list[dict[str, Any]]:
    """The rows with their ranks; None of whom is not ranked."""
    found = ranks(rows, long_texts(original))
    return [{**row, "rank": found.get(row["variant"])} for row in rows]


def ranks(rows: Sequence[Row], places: Sequence[int]) -> dict[str, int]:
    """By variant: 1 for the nearest to the original and whoever can't be told from it, and so on.

    Whoever refused one of these texts was not given what the others were, and is in no order.
    """
    some = [row for row in rows if _ranked(row, places)]
    order = sorted(some, key=lambda row: -_middle([row["cosines"][n] for n in places]))
    made: dict[str, int] = {}
    leader: Row | None = None
    for place, row in enumerate(order, 1):
        if leader is None or nearer(leader, row, places):
            leader, rank = row, place
        made[row["variant"]] = rank
    return made


def nearer(a: Row, b: Row, places: Sequence[int]) -> bool:
    """Whether one is nearer to the original than the other, text by text, beyond doubt."""
    differences = [a["cosines"][n] - b["cosines"][n] for n in places]
    return median_interval(differences, CONFIDENCE_ranks)[0] > 0


def _ranked(row: Row, places: Sequence[int]) -> bool:
    cosines = row.get("cosines")
    return bool(
        row["status"] == "measured"
        and row["computes"] in RANKED
        and cosines
        and all(cosines[n] is not None for n in places)
    )


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def with_verdicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows, their steps' verdicts corrected for how many there are."""
    taken = [s["comparison"] for row in rows for s in row.get("steps") or () if "why" not in s]
    judged = iter(holm([Comparison.from_dict(said) for said in taken]))
    return [_row(row, judged) for row in rows]


def _row(row: Row, judged: Any) -> dict[str, Any]:
    if not row.get("steps"):
        return dict(row)
    steps = [s if "why" in s else {**s, "comparison": next(judged).to_dict()} for s in row["steps"]]
    return {**row, "steps": steps}
