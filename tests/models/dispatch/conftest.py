"""A variant that tells who called it, and what it was called with."""

import functools

import pytest

import impls
from impls.loading import load_file

SPY = """
from impls.spec import Unsupported, Variant

BUILT, CALLED = [], []

def build(problem):
    import torch
    from impls.heads import to_query_heads

    BUILT.append(problem)
    causal = torch.ones(problem.q_len, problem.kv_len, dtype=torch.bool).tril(
        0 if problem.mask.upper_left else problem.kv_len - problem.q_len)

    def attend(q, k, v):
        if q.isnan().any():
            raise Unsupported("spy has no kernel for what is not finite")
        CALLED.append(problem)
        k, v = to_query_heads(k, problem), to_query_heads(v, problem)
        scores = q @ k.mT * problem.scale
        if not problem.mask.plain:
            scores = scores.masked_fill(~causal, float("-inf"))
        return scores.softmax(-1) @ v

    return attend

ROWS = [Variant(name="spy", title="tells who called", family="mine", build=":build",
                computes="softmax", masks=("none", "causal"))]
"""


read = functools.cache(impls.table)


@pytest.fixture(autouse=True)
def read_once(monkeypatch):
    """Rows of a file are read by another process: here once for all tests."""
    monkeypatch.setattr(impls, "table", lambda files=(): read(tuple(files)))


@pytest.fixture(scope="module")
def spy(tmp_path_factory):
    file = tmp_path_factory.mktemp("rows") / "spy.py"
    file.write_text(SPY)
    return file


@pytest.fixture
def called(spy):
    """The problems that the spy was called with, since the test began."""
    module = load_file(spy)
    module.BUILT.clear()
    module.CALLED.clear()
    return module.CALLED
