"""The passages of ``quality lm``: a book's text, sentences to be found in it, and questions.

A passage is so many tokens of text with a few needles in it ("The code of the river is 4071."),
then what the original model says next, then a question for each needle with its answer. So one
forward pass shows the loss on the text, how long the original's continuation stays the most
probable, and which answers are found: an answer counts only where each of its tokens is the most
probable, which is when a greedy answer would be right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from impls.errors import CantBeDone

THINGS = (
    "amber",
    "anchor",
    "apple",
    "basket",
    "bridge",
    "candle",
    "castle",
    "copper",
    "drum",
    "feather",
    "forest",
    "garden",
    "harbour",
    "kettle",
    "ladder",
    "lantern",
    "meadow",
    "mirror",
    "orchard",
    "pepper",
    "ribbon",
    "river",
    "saddle",
    "silver",
    "spoon",
    "temple",
    "thunder",
    "tower",
    "valley",
    "violin",
    "window",
    "winter",
)
QUESTION = "\nThe code of the {} is"
DEPTHS = (0.05, 0.35, 0.65, 0.9)
"""Shares of the text that stand before each needle."""
CONTINUATION = 32
"""Tokens of the original's continuation."""
LEAST_TEXT = 1 / 3
"""The share of a passage that is text, at the least."""
Tokenize = Callable[[str], list[int]]
Span = tuple[int, int]


@dataclass(frozen=True)
class Needle:
    """A sentence in three pieces, which are the same tokens wherever they stand."""

    question: Sequence[int]
    answer: Sequence[int]
    end: Sequence[int]

    @property
    def tokens(self) -> list[int]:
        """The whole sentence."""
        return [*self.question, *self.answer, *self.end]


def draw_needles(tokenize: Tokenize, chance: np.random.Generator, count: int) -> list[Needle]:
    """Needles about different things."""
    things = chance.choice(THINGS, count, replace=False)
    numbers = chance.integers(1000, 10_000, count)
    return [
        Needle(tokenize(QUESTION.format(thing)), tokenize(f" {number}"), tokenize(".\n"))
        for thing, number in zip(things, numbers, strict=True)
    ]


@dataclass(frozen=True)
class Passage:
    """Tokens up to where the original goes on, and what comes after that."""

    prompt: list[int]
    text: list[Span]
    """The parts of it that are text: places whose tokens are predicted, without the first."""
    needles: list[Needle]
    source: Span
    """The part of the whole text that it was drawn from."""

    def whole(self, continuation: Sequence[int]) -> list[int]:
        """All tokens, with the original's continuation."""
        questions = [x for needle in self.needles for x in needle.tokens]
        return [*self.prompt, *continuation, *questions]

    @property
    def continuation(self) -> Span:
        """The places of the original's continuation."""
        return len(self.prompt), len(self.prompt) + CONTINUATION

    @property
    def answers(self) -> list[Span]:
        """The places of the answers, from the first needle's on."""
        at, spans = self.continuation[1], []
        for needle in self.needles:
            start = at + len(needle.question)
            spans.append((start, start + len(needle.answer)))
            at += len(needle.tokens)
        return spans


def build_passage(tokens: Sequence[int], at: int, needles: list[Needle], length: int) -> Passage:
    """A passage of that length, its text from a place on; raises CantBeDone if it is too short."""
    text, source = tokens[at : at + length], (at, at + length)
    overhead = 2 * sum(len(needle.tokens) for needle in needles) + CONTINUATION
    room = length - overhead
    if room < LEAST_TEXT * length:
        raise CantBeDone(
            f"--seq {length} is too short: needles, questions and a continuation take {overhead} "
            f"tokens, and a third at least is to be text; give {math.ceil(overhead * 1.5)} or more"
        )
    ends = [round(depth * room) for depth in DEPTHS[: len(needles)]]
    prompt, spans, at = list[int](), list[Span](), 0
    for end, needle in zip(ends, needles, strict=True):
        spans.append((len(prompt), len(prompt) + end - at))
        prompt += [*text[at:end], *needle.tokens]
        at = end
    spans.append((len(prompt), len(prompt) + room - at))
    prompt += text[at:room]
    spans = [(max(first, 1), past) for first, past in spans if past > first]
    return Passage(prompt, spans, needles, source)


def draw_passages(
    tokens: Sequence[int], tokenize: Tokenize, length: int, count: int, seed: int
) -> list[Passage]:
    """Passages from different places of a text, by a seed; raises CantBeDone if it is too short."""
    chance = np.random.default_rng([seed, length])
    blocks = len(tokens) // length
    if blocks < count:
        raise CantBeDone(
            f"the text has {len(tokens):,} tokens, and {count} passages of {length:,} take "
            f"{count * length:,}: give a longer text, or fewer --passages or a smaller --seq"
        )
    starts = sorted(length * int(n) for n in chance.permutation(blocks)[:count])
    return [
        build_passage(tokens, at, draw_needles(tokenize, chance, len(DEPTHS)), length)
        for at in starts
    ]


def same_from_start(flags: Sequence[bool]) -> int:
    """True ones before the first that is not."""
    return next((n for n, flag in enumerate(flags) if not flag), len(flags))
