"""The texts that a model is tried on: built-in ones, or a file's.

Built in are 48 pairs of sentences (paraphrases, related, unrelated, negated) and 16 passages of
256 tokens and more. Short texts alone would say little: a window of 64 tokens, or the 32 largest
scores, leave nothing out of a sentence of twenty.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from impls.asked import CantBeDone

WRITTEN = Path(__file__).parent / "written"
KINDS = ("paraphrase", "related", "unrelated", "negated")
LEAST, MOST = 4, 2000
"""Texts of a file: fewer say nothing of a variant, more are no trial but a job."""
LONGEST = 512
"""Tokens that the model has places for; what comes after is cut."""
BUILT_IN = "built in"


class BadTexts(CantBeDone):
    """A file that holds no texts; a sentence."""


@dataclass(frozen=True)
class Pair:
    """Two of the texts, by their places, and how they stand to each other."""

    a: int
    b: int
    kind: str = ""


@dataclass(frozen=True)
class Texts:
    """What a model is given."""

    texts: tuple[str, ...]
    pairs: tuple[Pair, ...]
    source: str

    @property
    def digest(self) -> str:
        """A word that is another where a text is."""
        return hashlib.sha256("\n".join(self.texts).encode()).hexdigest()[:12]

    def halves(self) -> tuple[list[int], list[int]]:
        """Places of texts to learn from, and of texts to be judged on; a pair is never split."""
        learnt = [place for place in range(len(self.texts)) if place // 2 % 2]
        return learnt, [place for place in range(len(self.texts)) if not place // 2 % 2]


def built_in() -> Texts:
    """Sentences in pairs, then passages."""
    texts: list[str] = []
    pairs = []
    for line in (WRITTEN / "pairs.tsv").read_text("utf-8").splitlines():
        kind, a, b = line.split("\t")
        pairs.append(Pair(len(texts), len(texts) + 1, kind))
        texts += [a, b]
    texts += (WRITTEN / "passages.txt").read_text("utf-8").splitlines()
    return Texts(tuple(texts), tuple(pairs), BUILT_IN)


def of_file(path: Path) -> Texts:
    """A text a line, each paired with the next."""
    try:
        whole = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BadTexts(f"can't read --texts {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadTexts(
            f"--texts {path} is not UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x})"
            "; save it as UTF-8, a text a line"
        ) from None
    found = tuple(text for line in whole.splitlines() if (text := line.strip()))
    if not LEAST <= len(found) <= MOST:
        raise BadTexts(
            f"--texts {path} holds {len(found)} texts; give {LEAST} to {MOST:,}, a text a line"
        )
    pairs = tuple(Pair(place, place + 1) for place in range(len(found) - 1))
    return Texts(found, pairs, path.name)
