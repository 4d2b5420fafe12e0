"""Masks pair by pair, written from their docstrings alone: a reference for every form of one.

Of the code under test there are only the slopes of alibi, which are tested by hand.
"""

import itertools
import tempfile
from pathlib import Path

import numpy as np

from impls.masks import alibi_slopes

FOLDER, NUMBERS = tempfile.TemporaryDirectory(prefix="attnbench-masks-"), itertools.count()


def saved(kind, array):
    """A mask that reads this array, as the user would write it."""
    file = Path(FOLDER.name, f"{next(NUMBERS)}.npy")
    np.save(file, array)
    return f"{kind}:{file}"


def _parts(text):
    """The kinds of a mask, each with its numbers or its array; and whether it is upper-left."""
    words, _, corner = text.partition("@")
    parts = []
    for word in words.split("+"):
        kind, _, rest = word.partition(":")
        parts.append((kind, np.load(rest) if kind in ("dense", "bias") else _numbers(rest)))
    return parts, corner == "upper-left"


def _numbers(text):
    """Numbers; of ``1x100`` a hundred."""
    runs = [word.partition("x") for word in text.split(",") if word]
    return [int(n) for n, _, count in runs for _ in range(int(count or 1))]


def _in_runs(kind, given, at, key):
    """True where the runs of tokens let a query see a key."""
    if kind == "chunk":
        return at // given[0] == key // given[0]
    owner = np.repeat(np.arange(len(given)), given)
    if kind == "blocks":
        return owner[key] <= owner[np.clip(at, 0, len(owner) - 1)]
    return owner[at] == owner[key]


def _places(shape, upper_left):
    """The keys, and the place among them of each query."""
    _, _, q_len, kv_len = shape
    return np.arange(kv_len), np.arange(q_len)[:, None] + (0 if upper_left else kv_len - q_len)


def visible(text, shape):
    """True where a query may see a key: bool [batch, heads, q_len, kv_len]."""
    parts, upper_left = _parts(text)
    key, at = _places(shape, upper_left)
    seen = np.ones(shape, bool)
    for kind, given in parts:
        match kind:
            case "causal":
                seen &= key <= at
            case "window":
                seen &= (at - given[0] <= key) & (key <= at + given[1])
            case "chunk" | "blocks" | "document":
                seen &= _in_runs(kind, given, at, key)
            case "prefix":
                seen &= (key < given[0]) | (key <= at)
            case "padding":
                seen &= key < np.reshape(given, (-1, 1, 1, 1))
            case "leftpad":
                seen &= key >= np.reshape(given, (-1, 1, 1, 1))
            case "dense":
                seen &= given
            case "bias":
                seen &= given != -np.inf
    return seen


def bias(text, shape):
    """What is added to the scores: float64 [batch, heads, q_len, kv_len], zeros for nothing."""
    parts, upper_left = _parts(text)
    key, at = _places(shape, upper_left)
    total = np.zeros(shape)
    for kind, given in parts:
        if kind == "bias":
            total += given
        elif kind == "alibi":
            total -= alibi_slopes(shape[1])[:, None, None] * abs(at - key)
    return total
