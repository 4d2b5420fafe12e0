"""Figures of a model's quality in words: the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attnbench.answer.model_cost.iso import Level
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


def level_words(level: Level) -> tuple[str, str, str]:
    """Who is fastest at a level, what its step takes, and who can't be told from it."""
    doubtful = _names([p.variant for p in level.doubtful], "may keep it: ")
    if level.fastest is None:
        return "nobody", "", doubtful
    value, low, high = level.fastest.ratio
    step = f"{value:.3f} [{low:.3f}, {high:.3f}]" + ", no gain" * (not level.gains)
    tied = _names([p.variant for p in level.tied], "")
    return level.fastest.variant, step, "; ".join(filter(None, [tied, doubtful]))


def _names(names: list[str], before: str) -> str:
    if not names:
        return ""
    more = f" and {len(names) - NAMED} more" * (len(names) > NAMED)
    return f"{before}{', '.join(names[:NAMED])}{more}"


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
