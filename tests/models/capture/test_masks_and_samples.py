"""What a capture keeps: masks that were looked at once, biases, samples."""

import numpy as np
import pytest
import torch

from attnbench.models.capture import masks
from attnbench.models.capture.masks import Masks
from attnbench.models.capture.recorder import Samples
from impls.masks import Shape
from impls.problem import Problem

SHAPE = Shape(2, 4, 12, 12)
CAUSAL = torch.ones(12, 12, dtype=torch.bool).tril()


@pytest.fixture
def looked(monkeypatch):
    """How often a mask was looked at."""
    seen, before = [], masks.recognised

    def counting(*given):
        seen.append(given)
        return before(*given)

    monkeypatch.setattr(masks, "recognised", counting)
    return seen


def test_a_learned_bias_is_kept_once_for_a_place(tmp_path, looked):
    known = Masks(tmp_path)
    found = {
        known.of(torch.randn(1, 4, 12, 12, requires_grad=True), False, SHAPE, "here")
        for _ in range(5)
    }
    assert len(found) == 1 and len(looked) == 1 and len(list(tmp_path.iterdir())) == 1
    known.of(torch.randn(1, 4, 12, 12), False, SHAPE)  # another, that hides the same keys
    assert len(list(tmp_path.iterdir())) == 1


def test_samples_are_one_an_octave_and_those_of_an_earlier_capture_stay(tmp_path):
    x = torch.ones(1, 1, 8, 4)
    for n in range(2):
        some = Samples(tmp_path)
        problems = [Problem().with_(q_len=1, kv_len=m) for m in (127, 128, 129, 256)]
        files = [some.keep("here", problem, (x * n, x, x)) for problem in problems]
        assert [bool(file) for file in files] == [True, False, True, False]
        for file in filter(None, files):
            with np.load(file) as arrays:
                assert (arrays["q"] == n).all()
    assert len(list(tmp_path.iterdir())) == 4
