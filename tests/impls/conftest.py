"""References for the tests of ``impls``: plain loops, written from the docstrings alone.

A mask is given here as ``conditions``, a list of ``(kind, payload)``: the payload is a tuple of
numbers, or an array where the mask reads a file. Everything is in float64, and of the code under
test there are only the slopes of alibi, which are tested by hand.
"""

import itertools

import numpy as np
import pytest

import impls
from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge
from impls.loading import load_function
from impls.masks import alibi_slopes


class Brute:
    """Double loops over queries and keys, and the spelling of the mask they stand for."""

    def __init__(self, folder):
        self.folder = folder
        self._number = itertools.count()

    def text(self, conditions, upper_left=False):
        """The mask as the user would write it; arrays are saved to files of their own."""
        words = [self._word(kind, payload) for kind, payload in conditions]
        return ("+".join(words) or "none") + ("@upper-left" if upper_left else "")

    def _word(self, kind, payload):
        if isinstance(payload, np.ndarray):
            file = self.folder / f"{kind}{next(self._number)}.npy"
            np.save(file, payload)
            return f"{kind}:{file}"
        return kind + (":" + ",".join(str(n) for n in payload) if payload else "")

    @staticmethod
    def visible(conditions, shape, upper_left=False):
        """True where a query may see a key: bool [batch, heads, q_len, kv_len]."""
        batch, heads, q_len, kv_len = shape
        seen = np.zeros(shape, bool)
        for b, h, i, j in itertools.product(*map(range, (batch, heads, q_len, kv_len))):
            at = i if upper_left else i + kv_len - q_len
            seen[b, h, i, j] = all(
                _allows(kind, payload, shape, (b, h, i, j), at) for kind, payload in conditions
            )
        return seen

    @staticmethod
    def bias(conditions, shape, upper_left=False):
        """What is added to the scores: float64 [batch, heads, q_len, kv_len], zeros for nothing."""
        batch, heads, q_len, kv_len = shape
        total = np.zeros(shape)
        for kind, payload in conditions:
            if kind == "bias":
                total = total + np.broadcast_to(payload, shape)
            if kind != "alibi":
                continue
            slopes = alibi_slopes(heads)
            for b, h, i, j in itertools.product(*map(range, (batch, heads, q_len, kv_len))):
                at = i if upper_left else i + kv_len - q_len
                total[b, h, i, j] -= slopes[h] * abs(at - j)
        return total


def _allows(kind, payload, shape, where, at):
    b, _, _, j = where
    if kind == "causal":
        return j <= at
    if kind == "window":
        return at - payload[0] <= j <= at + payload[1]
    if kind == "prefix":
        return j < payload[0] or j <= at
    if kind == "document":
        owner = [document for document, length in enumerate(payload) for _ in range(length)]
        return owner[at] == owner[j]
    if kind == "padding":
        return j < payload[b if len(payload) > 1 else 0]
    if kind == "dense":
        return bool(np.broadcast_to(payload, shape)[where])
    if kind == "bias":
        return np.broadcast_to(payload, shape)[where] != -np.inf
    assert kind == "alibi"
    return True


@pytest.fixture(scope="session")
def brute(tmp_path_factory):
    return Brute(tmp_path_factory.mktemp("masks"))


@pytest.fixture
def verdict():
    """What the ruler's gate finds of ``(variant, problem)``: ``reason`` is None where it holds."""

    def judged(variant, problem, seed=0):
        row = impls.table().find(variant) if isinstance(variant, str) else variant
        refusal = row.supports(problem)
        assert refusal is None, refusal
        truth = judge(problem, make(problem, seed), seed)
        attend = load_function(row.build)(problem, **row.chosen)
        define = row.definition and load_function(row.definition)(problem, **row.chosen)
        return gate(truth, attend, define or None, seed)

    return judged


@pytest.fixture
def library(monkeypatch):
    """The stand-ins for libraries that need a GPU, for one test."""
    from tests.impls.external.stand_ins import Library

    return Library(monkeypatch)
