"""An attention map: a sentence as vectors, and the weights that a variant gives its words."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnbench.core.machine import this_machine, why_not
from attnbench.core.wire import plain
from attnbench.sweep.engine import Engine
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

WIDTH = 50
"""The length of hashed vectors; GloVe's smallest."""
SHARED = 0.5
"""The share of a hashed vector that its letters give, so that words that look alike lie near."""


def tokens_of(text: str) -> list[str]:
    """Words and punctuation, in lower case; raises CantBeDone where there are none."""
    tokens = re.findall(r"\w+(?:['\u2019]\w+)*|[^\w\s]", text.lower())
    if not tokens:
        raise CantBeDone(f"there is no word in {text!r}")
    return tokens


def vectors_of(words: list[str], file: str | None) -> list[list[float]]:
    """A vector for each word, all of one width: a file's, in GloVe's format, or hashed ones. Raises
    CantBeDone where the file can't be read, or lacks a word.
    """
    if file is None:
        return _hashed(words)
    try:
        with Path(file).open(encoding="utf-8") as lines:
            vectors = _read_vectors(set(words), lines)
    except OSError as error:
        raise CantBeDone(f"can't read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CantBeDone(f"{file} is not UTF-8 text; a GloVe file is") from None
    except ValueError as error:
        raise CantBeDone(f"{file}, {error}") from None
    if missing := dict.fromkeys(w for w in words if w not in vectors):
        raise CantBeDone(
            f"{file} has no vector for {', '.join(missing)}; "
            "use other words, or leave --embeddings out for hashed vectors"
        )
    return [vectors[w] for w in words]


def _read_vectors(words: set[str], lines: Iterable[str]) -> dict[str, list[float]]:
    """The vectors of some words; raises ValueError for a line that is none."""
    vectors, width = {}, -1
    for number, line in enumerate(lines, 1):
        word, *numbers = line.rstrip().rsplit(" ", width)  # a word may hold spaces
        width = len(numbers) if number == 1 else width
        if not width or len(numbers) != width:
            raise ValueError(
                f"line {number}: {len(numbers)} numbers where the first line has {width}; a GloVe "
                "file is a word and as many numbers, at least one, on each line"
            )
        if word in words:
            vectors[word] = [float(n) for n in numbers]
    return vectors


def _hashed(words: list[str]) -> list[list[float]]:
    """The same word always has the same vector; its pairs of letters give part of it."""

    def noise(text: str) -> list[float]:
        source = random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))
        return [source.gauss(0.0, 0.8) for _ in range(WIDTH)]

    vectors = []
    for word in words:
        pairs = [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        letters = [sum(c) / len(pairs) ** 0.5 for c in zip(*map(noise, pairs), strict=True)]
        own = noise("word " + word)
        vectors.append([SHARED * a + (1 - SHARED) * b for a, b in zip(letters, own, strict=True)])
    return vectors


def ask(
    engine: Engine, row: Variant, mask: str, vectors: list[list[float]], limit_s: float
) -> list[list[float | None]]:
    """The weights that a worker gives the words of these vectors, a row for each of them; raises
    CantBeDone where the variant can't do it.
    """
    n, width = len(vectors), len(vectors[0])
    lengths: dict[str, Any] = {"q_len": n, "kv_len": n, "head_dim": width, "v_head_dim": width}
    problem = Problem(heads=1, kv_heads=1, mask=Mask.parse(mask), **lengths)
    missing = why_not(row, this_machine())
    if refusal := missing.reason if missing else row.supports(problem):
        raise InvalidProblem(f"no map can be drawn here: {refusal}")
    job = {"variant": plain(row), "problem": plain(problem)}
    answer = engine.ask({"map": job, "words": vectors}, limit_s)
    if "error" in answer:
        raise InvalidProblem(f"no map can be drawn: {answer['error']}")
    rows: list[list[float | None]] = answer["map"]
    return rows
