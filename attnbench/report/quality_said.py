"""Figures of a model's quality in words: the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attnbench.answer.model_cost import iso
from attnbench.answer.model_cost.iso import Level, Point
from attnbench.answer.model_cost.told import order_kept

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


def _names(some: Sequence[Point], named: int, before: str = "") -> str:
    if not some:
        return ""
    more = f" and {len(some) - named} more" * (len(some) > named)
    return f"{before}{', '.join(p.variant for p in some[:named])}{more}"


WANTED = 0.99
"""The level that is told first."""


def nearest_level(points: Sequence[Point]) -> str:
    """Who is fastest of those that keep 0.99, or that nobody is faster than the original."""
    level = iso.levels(points, (WANTED,))[0]
    if level.fastest is None:
        return f"Nobody keeps a median cosine of {WANTED:g}"
    who = f"{level.fastest.variant} ({level.fastest.ratio[0]:.3f} of the original's time)"
    if not level.gains:
        return f"At a cosine of {WANTED:g} nobody is faster than the original; next to it: {who}"
    return f"At a cosine of {WANTED:g} the fastest is {who}"


def frontier_said(rows: Sequence[Row]) -> Iterator[str]:
    """Who is both faster and as good, at each length that was timed; or what is faster, and not."""
    lengths = iso.lengths(rows)
    for seq in lengths:
        at = f"at {seq:,} tokens: " * (len(lengths) > 1)
        some = iso.points(rows, seq)
        yield from (at + words for words in _of_points(some) if some)


def _of_points(points: Sequence[Point]) -> Iterator[str]:
    levels = iso.levels(points)
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
