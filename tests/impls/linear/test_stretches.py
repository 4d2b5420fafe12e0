"""Long sequences are done a stretch of tokens at a time where nothing is kept for backward."""

import pytest
import torch

import impls
from attnbench.gate.inputs import make
from impls.linear import common
from impls.masks import Mask
from impls.outside import load_function
from impls.problem import Problem

NAMES = [
    "linear.identity",
    "linear.identity?normalise=true",
    "linear.elu",
    "cosformer",
    "linear.taylor",
    "hedgehog",
    "cosine",
    "gla",
    "gla?chunk=50",
]


def attend_of(name, problem):
    row = impls.table().find(name)
    assert row.supports(problem) is None
    return load_function(row.build)(problem, **row.chosen)


def problem_of(n, m=None, **changes):
    values = {
        "heads": 4,
        "kv_heads": 2,
        "q_len": n,
        "kv_len": m or n,
        "head_dim": 8,
        "v_head_dim": 6,
        "dtype": "float64",
        "mask": Mask.parse("causal"),
    }
    return Problem(**{**values, **changes})


@pytest.mark.parametrize("n", [2049, 4096, 5000])
@pytest.mark.parametrize("name", NAMES)
def test_a_stretch_at_a_time_is_the_whole_at_once(name, n):
    assert n > common.STRETCH
    problem = problem_of(n)
    inputs = make(problem, 0)
    attend = attend_of(name, problem)
    with torch.no_grad():
        cut = attend(*inputs)
    whole = attend(*(x.requires_grad_() for x in inputs))
    torch.testing.assert_close(cut, whole.detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("n", "m"), [(2500, 3100), (2600, 2100)])
@pytest.mark.parametrize("name", NAMES[:-2])
def test_keys_before_the_first_query_and_queries_before_the_first_key(name, n, m):
    problem = problem_of(n, m)
    inputs = make(problem, 0)
    attend = attend_of(name, problem)
    with torch.no_grad():
        cut = attend(*inputs)
    whole = attend(*(x.requires_grad_() for x in inputs))
    torch.testing.assert_close(cut, whole.detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_no_bit_of_a_later_stretch_comes_into_an_earlier_one(name):
    problem = problem_of(4500, dtype="float32")
    q, k, v = make(problem, 0)
    attend = attend_of(name, problem)
    with torch.no_grad():
        before = attend(q, k, v).clone()
        k[:, :, 3000], v[:, :, 3000] = -7.0, 100.0
        after = attend(q, k, v)
    assert torch.equal(before[:, :, :3000], after[:, :, :3000])
    assert not torch.equal(before[:, :, 3000:], after[:, :, 3000:])
