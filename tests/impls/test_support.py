"""What a row takes and what it refuses, in a sentence."""

import pytest

from impls.masks import Mask
from impls.problem import Problem
from impls.spec import DTYPES
from tests.impls.some_row import row


@pytest.mark.parametrize(
    ("changes", "problem", "sentence"),
    [
        (
            {"level": "layer", "definition": "some.module:definition"},
            {},
            "some.row works at level layer, not core",
        ),
        (
            {"devices": ("cuda",)},
            {},
            "some.row runs on cuda, not on cpu",
        ),
        (
            {"devices": ("cpu",)},
            {"device": "cuda:1"},
            "some.row runs on cpu, not on cuda",
        ),
        (
            {"dtypes": {"cpu": ("float32", "float64"), "cuda": DTYPES}},
            {"dtype": "float16"},
            "some.row takes float32, float64 on cpu, not float16",
        ),
        (
            {"phases": ("forward", "decode")},
            {"phase": "train"},
            "some.row serves forward, decode, not train: it has no backward",
        ),
        (
            {"phases": ("train",)},
            {"phase": "decode"},
            "some.row serves train, not decode: see its row",
        ),
        (
            {"masks": ("none", "causal")},
            {"mask": Mask.parse("causal+alibi+window:1,2")},
            "some.row takes the masks none, causal on cpu, not alibi, window",
        ),
        (
            {"masks": ("causal",)},
            {},
            "some.row takes the masks causal on cpu, not none",
        ),
        (
            {"gqa": False},
            {"kv_heads": 4},
            "some.row has no grouped-query form: it needs as many kv_heads as heads",
        ),
        (
            {"cross": False},
            {"q_len": 255},
            "some.row needs q_len equal to kv_len",
        ),
        (
            {"value_dim": False},
            {"v_head_dim": 32},
            "some.row needs v_head_dim equal to head_dim",
        ),
        (
            {"head_dims": (16, 63)},
            {},
            "some.row takes head_dim 16 to 63",
        ),
        (
            {"head_dims": (65, 128)},
            {},
            "some.row takes head_dim 65 to 128",
        ),
    ],
    ids=[
        "level",
        "device",
        "device-number",
        "dtype",
        "no-backward",
        "phase",
        "mask",
        "no-mask",
        "grouped",
        "cross",
        "value-dim",
        "head-dim-above",
        "head-dim-below",
    ],
)
def test_a_refusal_is_a_sentence_and_without_the_limit_there_is_none(changes, problem, sentence):
    problem = Problem(**problem)
    assert row(**changes).supports(problem) == sentence
    taken = row(level=problem.level)
    assert taken.supports(problem) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"gqa": False}, {}),
        ({"cross": False}, {"q_len": 256}),
        ({"value_dim": False}, {"head_dim": 8, "v_head_dim": 8}),
        ({"head_dims": (64, 64)}, {}),
        ({"devices": ("cuda",)}, {"device": "cuda:7"}),
        ({"phases": ("forward",)}, {}),
    ],
    ids=["grouped", "cross", "value-dim", "head-dim", "device-number", "phase"],
)
def test_a_limit_that_the_problem_keeps_refuses_nothing(changes, problem):
    assert row(**changes).supports(Problem(**problem)) is None
