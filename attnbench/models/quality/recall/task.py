"""The data: pairs of a key and a value, then keys alone, each of which asks for its value.

    k_1 v_1 k_2 v_2 … k_K v_K  q_1 q_2 … q_(n - 2 K)        each q one of the K keys

The keys of a sequence are distinct, its values drawn one by one, and every place after the pairs
asks. So a sequence of n tokens with fewer pairs asks more often, of pairs that lie further back.
No answer ever stands in the sequence: only the pair itself tells. NumPy, and no torch.

Legend: b sequences, n tokens, K pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

NOTHING = -100
"""The target of a place that asks for nothing: what torch's cross entropy leaves out."""
TRAINING, TESTING = 1, 2
"""What sets a test's sequences apart from those that a model is trained on."""


class Batch(NamedTuple):
    """Some sequences, and at each place which value is asked for."""

    tokens_bn: np.ndarray
    targets_bn: np.ndarray


@dataclass(frozen=True)
class Task:
    """What a sequence may be. Tokens are the keys, then the values."""

    seq: int
    pairs: tuple[int, ...]
    """A batch has as many sequences of each number of them."""
    keys: int
    values: int

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self.keys + self.values

    def drawn(self, pairs: int, rows: int, generator: Generator) -> Batch:
        """Sequences with so many pairs."""
        keys_bK = generator.random((rows, self.keys)).argsort(1)[:, :pairs]
        values_bK = generator.integers(self.values, size=(rows, pairs))
        asked = generator.integers(pairs, size=(rows, self.seq - 2 * pairs))
        tokens = np.empty((rows, self.seq), np.int64)
        tokens[:, 0 : 2 * pairs : 2] = keys_bK
        tokens[:, 1 : 2 * pairs : 2] = self.keys + values_bK
        tokens[:, 2 * pairs :] = np.take_along_axis(keys_bK, asked, 1)
        targets = np.full_like(tokens, NOTHING)
        targets[:, 2 * pairs :] = np.take_along_axis(values_bK, asked, 1)
        return Batch(tokens, targets)

    def mixed(self, rows: int, generator: Generator) -> Batch:
        """A batch to train on: of each number of pairs as many, the first of them one more."""
        share, more = divmod(rows, len(self.pairs))
        parts = [
            self.drawn(pairs, share + (place < more), generator)
            for place, pairs in enumerate(self.pairs)
        ]
        return Batch(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def stream(seed: int, purpose: int) -> Generator:
    """Where sequences are drawn from: another stream for each seed and purpose."""
    return np.random.default_rng([seed, purpose])


def chance(pairs: int, values: int) -> float:
    """How often somebody is right who names the value of any of the pairs: 1/K + (1 - 1/K) / V.

    It is the right pair's once in K times; another pair's value is the right one once in V.
    """
    return 1 / pairs + (1 - 1 / pairs) / values
