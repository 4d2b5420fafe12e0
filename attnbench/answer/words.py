"""A sentence as word vectors: from a GloVe-format file, or hashed ones."""

from __future__ import annotations

import hashlib
import random
import re
from pathlib import Path

from attnbench.store.disk import is_no_file
from impls.asked import CantBeDone

WIDTH = 50
"""Of hashed vectors; GloVe's smallest."""
SHARED = 0.5
"""How much of a hashed vector its letters give, so that words that look alike lie near."""


class BadEmbeddings(CantBeDone):
    """A file of word vectors that can't be used; a sentence."""


def tokens(text: str) -> list[str]:
    """Words and marks, in small letters."""
    found = re.findall(r"\w+(?:['\u2019]\w+)*|[^\w\s]", text.lower())
    if not found:
        raise BadEmbeddings(f"there is no word in {text!r}")
    return found


def vectors(words: list[str], file: str | None) -> list[list[float]]:
    """A vector for each word, all of one width."""
    return _hashed(words) if file is None else _from_file(words, Path(file))


def _from_file(words: list[str], file: Path) -> list[list[float]]:
    wanted, found, width = set(words), {}, -1
    if is_no_file(file):
        raise BadEmbeddings(f"can't read {file}: it is no file")
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                word, *numbers = line.rstrip().rsplit(" ", width)  # a word may hold spaces
                width = len(numbers) if number == 1 else width
                one_too_many = " " in word and _is_number(word.rpartition(" ")[2])
                if not width or len(numbers) != width or one_too_many:
                    raise BadEmbeddings(
                        f"{file}, line {number}: {len(numbers) + one_too_many} numbers where the "
                        f"first line has {width}; a GloVe file is a word and as many numbers, at "
                        "least one, on each line"
                    )
                if word in wanted:
                    found[word] = [float(n) for n in numbers]
    except OSError as error:
        raise BadEmbeddings(f"can't read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadEmbeddings(f"{file} is not UTF-8 text; a GloVe file is") from None
    except ValueError as error:
        raise BadEmbeddings(f"{file}: {error}") from None
    missing = [w for w in words if w not in found]
    if missing:
        raise BadEmbeddings(
            f"{file} has no vector for {', '.join(dict.fromkeys(missing))}; "
            "use other words, or leave --embeddings out for hashed vectors"
        )
    return [found[w] for w in words]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _hashed(words: list[str]) -> list[list[float]]:
    """The same word always has the same vector; its pairs of letters give part of it."""
    made = []
    for word in words:
        pairs = [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        letters = [sum(c) / len(pairs) ** 0.5 for c in zip(*map(_noise, pairs), strict=True)]
        own = _noise("word " + word)
        made.append([SHARED * a + (1 - SHARED) * b for a, b in zip(letters, own, strict=True)])
    return made


def _noise(text: str) -> list[float]:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    source = random.Random(seed)
    return [source.gauss(0.0, 0.8) for _ in range(WIDTH)]
