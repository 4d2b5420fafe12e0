"""The problem that a call puts, one for calls that are answered and calls that are captured."""

import math

import pytest
import torch
import torch.nn.functional as F

import impls
from attnbench.models import built
from attnbench.models.built import Built
from attnbench.models.capture import capture
from attnbench.models.problem_of import FEW, is_usual, phase_of, problem_of
from impls.masks import Mask


@pytest.mark.parametrize(
    ("queries", "keys", "gradient", "phase"),
    [(9, 9, False, "forward"), (1, 1, False, "forward"), (1, 9, False, "decode"),
     (FEW, 40, False, "decode"), (FEW + 1, 40, False, "forward"), (9, 5, False, "forward"),
     (9, 9, True, "train"), (1, 9, True, "train")],
)  # fmt: skip
def test_few_queries_on_more_keys_decode_and_a_gradient_trains(queries, keys, gradient, phase):
    assert phase_of(queries, keys, gradient=gradient) == phase


def test_a_problem_has_all_that_the_forms_say():
    found = problem_of(
        (2, 4, 3, 8), (2, 2, 7, 5), torch.bfloat16, torch.device("cuda", 1), Mask.parse("causal"),
        "forward",
    )  # fmt: skip
    assert str(found) == "b2 h4/2 n3x7 d8/5 bf16 causal forward cuda:1"


def test_another_spelling_of_the_usual_scale_is_the_usual_one():
    for width in (1, 3, 64, 80):
        assert is_usual(1 / math.sqrt(width), width)
        assert is_usual(torch.tensor(width**-0.5).item(), width)
        assert not is_usual(1.0001 * width**-0.5, width)


@pytest.mark.parametrize(("queries", "gradient"), [(9, False), (9, True), (2, False)])
def test_a_call_that_is_captured_is_the_problem_that_a_variant_is_built_for(
    queries, gradient, monkeypatch
):
    q, k, v = (torch.randn(2, 4, n, 8) for n in (queries, 9, 9))
    v.requires_grad_(gradient)
    with capture() as calls:
        F.scaled_dot_product_attention(q, k, v)
    found = []
    monkeypatch.setattr(
        built, "load_function", lambda path: lambda problem: found.append(problem) or (lambda *x: x)
    )
    Built(impls.table().find("einsum"))(q, k, v)
    assert calls.problems() == found
