"""Problems: what may exist, and how it is written down."""

import json

import numpy as np
import pytest

from impls.masks import Mask
from impls.problem import InvalidProblem, Problem

FULL = Problem(
    2, 6, 3, 9, 17, 16, 16, "bfloat16", Mask.parse("window:4,0+alibi@upper-left"), "train",
    "outliers", "layer", "cuda:1",
)  # fmt: skip
EXTENTS = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")


@pytest.mark.parametrize("name", EXTENTS)
def test_an_extent_is_a_whole_number_of_one_or_more(name):
    for value in (0, -1, 2.0, "8", None, True):
        with pytest.raises(InvalidProblem) as caught:
            Problem(**{name: value})
        assert str(caught.value) == f"{name} is {value!r}; it must be a whole number, 1 or more"


def test_a_length_that_no_mask_can_be_counted_for_is_refused():
    with pytest.raises(InvalidProblem, match="kv_len=1,000,000,000: 33,554,432 is the most"):
        Problem(kv_len=10**9)
    assert Problem(kv_len=1 << 25).kv_len == 33_554_432


IMPOSSIBLE = [
    ({"heads": 12, "kv_heads": 5}, ["heads=12", "kv_heads=5", "one of 1, 2, 3, 4, 6, 12"]),
    ({"dtype": "float8"}, ["dtype='float8'", "float32, bfloat16, float16, float64"]),
    ({"device": "gpu"}, ["device='gpu'", "cpu, cuda or cuda:NUMBER"]),
    ({"device": "cuda:-1"}, ["device='cuda:-1'", "cuda:NUMBER"]),
    ({"device": "cpu:1"}, ["device='cpu:1'", "cpu, cuda or cuda:NUMBER"]),
    ({"inputs": "captured:"}, ["inputs='captured:'", "captured:FILE.npz"]),
]


@pytest.mark.parametrize(("changes", "says"), IMPOSSIBLE, ids=str)
def test_a_problem_that_cannot_exist_names_the_valid_choices(changes, says):
    with pytest.raises(InvalidProblem) as caught:
        Problem(**changes)
    for words in says:
        assert words in str(caught.value)


def test_a_mask_and_a_changed_field_are_checked_against_the_rest(brute):
    mask = Mask.parse(brute.text([("dense", np.ones((4, 5), bool))]))
    assert Problem(q_len=4, kv_len=5, mask=mask).mask == mask
    with pytest.raises(InvalidProblem, match="broadcast"):
        Problem(q_len=5, kv_len=4, mask=mask)
    assert Problem(heads=8, kv_heads=4).with_(kv_heads=2).kv_heads == 2
    with pytest.raises(InvalidProblem, match="not a multiple"):
        Problem(heads=8).with_(kv_heads=3)


@pytest.mark.parametrize(
    ("problem", "slug"),
    [
        (Problem(), "b1 h8/8 n256 d64 f32 none forward"),
        (Problem(inputs="captured:a.npz"), "b1 h8/8 n256 d64 f32 none forward captured:a.npz"),
        (Problem(kv_heads=2, q_len=1, phase="decode"), "b1 h8/2 n1x256 d64 f32 none decode"),
        (Problem(v_head_dim=32, dtype="float64"), "b1 h8/8 n256 d64/32 f64 none forward"),
        (FULL, "b2 h6/3 n9x17 d16 bf16 window:4,0+alibi@upper-left train outliers layer cuda:1"),
    ],
    ids=str,
)
def test_the_slug_says_what_is_not_ordinary(problem, slug):
    assert problem.slug == slug
    assert str(problem) == slug


def test_a_problem_survives_json_with_every_field():
    for problem in (Problem(), FULL):
        values = json.loads(json.dumps(problem.to_dict()))
        assert Problem.from_dict(values) == problem
    assert not Problem().to_dict().items() & FULL.to_dict().items()
