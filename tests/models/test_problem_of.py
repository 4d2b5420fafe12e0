"""The problem that a call puts, one for calls that are answered and calls that are captured."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import impls
from attnbench.models import attention
from attnbench.models.attention import Built
from attnbench.models.capture.capture import capture
from attnbench.models.mask_of import FEW, is_usual, phase_of
from impls.masks import Mask, Shape


@pytest.mark.parametrize(
    ("queries", "keys", "mask", "phase"),
    [
        (9, 9, "causal", "forward"),
        (1, 9, "none", "decode"),
        (FEW, 40, "causal", "decode"),
        (FEW + 1, 40, "causal", "forward"),
        (7, 12, "none", "forward"),
        (7, 12, "causal", "decode"),
        (7, 12, "causal@upper-left", "forward"),
        (7, 12, "window:3,0", "decode"),
        (7, 12, "window:3,3", "forward"),
        (7, 12, "prefix:12", "forward"),
        (7, 12, "dense:{left}", "decode"),
        (7, 12, "dense:{across}", "forward"),
    ],
)
def test_the_last_tokens_of_the_keys_decode_and_another_sequence_does_not(
    queries, keys, mask, phase, tmp_path
):
    own = np.arange(12) <= np.arange(5, 12)[:, None]
    padded = np.arange(12) >= np.array([0, 3])[:, None, None, None]
    tables = {"left": own & padded, "across": ~own[None, None]}
    files = {name: tmp_path / f"{name}.npy" for name in tables}
    for name, table in tables.items():
        np.save(files[name], table)
    shape = Shape(2, 4, queries, keys)
    assert phase_of(shape, Mask.parse(mask.format(**files)), gradient=False) == phase
    assert phase_of(shape, Mask.parse(mask.format(**files)), gradient=True) == "train"


def test_another_spelling_of_the_usual_scale_is_the_usual_one():
    for width in (1, 3, 64, 80):
        assert is_usual(1 / math.sqrt(width), width)
        assert is_usual(torch.tensor(width**-0.5).item(), width)
        assert not is_usual(1.0001 * width**-0.5, width)


def test_a_call_that_is_captured_is_the_problem_that_a_variant_is_built_for(monkeypatch):
    q, k, v = (torch.randn(2, 4, n, 8) for n in (2, 9, 9))
    with capture() as calls:
        F.scaled_dot_product_attention(q, k, v)
    found = []
    monkeypatch.setattr(
        attention,
        "load_function",
        lambda path: lambda problem: found.append(problem) or (lambda q, k, v: q),
    )
    Built(impls.table().find("einsum"))(q, k, v)
    assert calls.problems() == found
