"""The error measures against their formulas in NumPy."""

import math

import numpy as np
import pytest
import torch

from attnbench.core.record import Error
from attnbench.gate import oracle
from attnbench.gate.oracle import compare, worse


def pair(seed=0, shape=(2, 3, 5, 4), dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    want = torch.randn(shape, generator=generator, dtype=torch.float64)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (want + 0.01 * noise).to(dtype), want


@pytest.mark.parametrize("slice_numbers", [1, 45, 1 << 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_measure_is_its_formula(monkeypatch, dtype, slice_numbers):
    monkeypatch.setattr(oracle, "SLICE_NUMBERS", slice_numbers)
    got, want = pair(dtype=dtype)
    a, b = got.double().numpy(), want.numpy()
    error = compare(got, want)
    assert error.relative == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(b))
    assert error.max == pytest.approx(np.abs(a - b).max())
    rows = np.linalg.norm(a - b, axis=-1)
    root_mean_square = np.sqrt((np.linalg.norm(b, axis=-1) ** 2).mean())
    assert error.worst_row == pytest.approx(rows.max() / root_mean_square)
    assert tuple(error.worst_at) == np.unravel_index(rows.argmax(), rows.shape)
    cosine = (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)
    assert error.cosine == pytest.approx(cosine)
    assert error.ratio is None


@pytest.mark.parametrize("at", [(0, 0, 0), (1, 2, 4), (1, 0, 3)])
@pytest.mark.parametrize("slice_numbers", [1, 1 << 24])
def test_the_worst_row_is_where_the_fault_is(monkeypatch, at, slice_numbers):
    monkeypatch.setattr(oracle, "SLICE_NUMBERS", slice_numbers)
    got, want = pair(dtype=torch.float64)
    got[at] += 3.0
    assert compare(got, want).worst_at == list(at)


@pytest.mark.parametrize("slice_numbers", [1, 1 << 24])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_makes_every_measure_not_finite(
    monkeypatch, value, slice_numbers
):
    monkeypatch.setattr(oracle, "SLICE_NUMBERS", slice_numbers)
    got, want = pair()
    got[1, 1, 2, 0] = value
    error = compare(got, want)
    assert not math.isfinite(error.relative)
    assert not math.isfinite(error.max)
    assert not math.isfinite(error.worst_row)
    assert error.worst_at == [1, 1, 2]
    assert error.to_dict()["relative"] is None


def test_equal_tensors_have_no_error():
    _, want = pair()
    error = compare(want, want)
    assert (error.relative, error.max, error.worst_row) == (0.0, 0.0, 0.0)
    assert error.cosine == pytest.approx(1.0)


def test_nothing_wanted_and_nothing_given_is_no_error():
    nothing = torch.zeros(1, 2, 3, 4, dtype=torch.float64)
    error = compare(nothing.float(), nothing)
    assert (error.relative, error.max, error.worst_row) == (0.0, 0.0, 0.0)


def test_nothing_wanted_and_something_given_is_an_infinite_relative_error():
    nothing = torch.zeros(1, 2, 3, 4, dtype=torch.float64)
    error = compare(nothing.float() + 0.5, nothing)
    assert error.relative == math.inf
    assert error.worst_row == math.inf
    assert error.max == 0.5


def test_nothing_given_where_something_was_wanted_is_an_error_of_one():
    _, want = pair()
    assert compare(torch.zeros_like(want), want).relative == pytest.approx(1.0)


def test_worse_takes_the_larger_of_each_and_the_smaller_cosine():
    a = Error(relative=1.0, max=5.0, worst_row=2.0, cosine=0.9)
    b = Error(relative=3.0, max=4.0, worst_row=2.5, cosine=0.95)
    for one in (worse(a, b), worse(b, a)):
        assert (one.relative, one.max, one.worst_row, one.cosine) == (3.0, 5.0, 2.5, 0.9)


@pytest.mark.parametrize("lost", [None, math.nan])
def test_worse_takes_what_is_not_finite_for_infinite(lost):
    a = Error(relative=lost, max=lost, worst_row=1.0, cosine=lost)
    b = Error(relative=3.0, max=4.0, worst_row=2.5, cosine=0.95)
    for one in (worse(a, b), worse(b, a)):
        assert (one.relative, one.max, one.worst_row) == (math.inf, math.inf, 2.5)
