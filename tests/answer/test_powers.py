"""The power that fits, against exact powers and a fit done by NumPy."""

import math

import numpy as np
import pytest

from attnbench.answer.regimes import power


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.93, 3.0])
def test_an_exact_power_is_found_with_no_error(exponent):
    found = power({n: 3e-7 * n**exponent for n in (128, 256, 512, 1024)})
    assert found.power == pytest.approx(exponent)
    assert found.error == pytest.approx(0.0, abs=1e-9)


def test_only_the_longest_four_are_fitted():
    found = power({64: 5.0, 128: 5.0, 256: 1.0, 512: 4.0, 1024: 16.0, 2048: 64.0})
    assert found.power == pytest.approx(2.0)
    assert found.lengths == (256, 512, 1024, 2048)


def test_the_interval_is_the_textbooks():
    points = {128: 1.0, 256: 2.1, 512: 3.9, 1024: 8.3}
    found = power(points)
    x, y = np.log(list(points)), np.log(list(points.values()))
    slope, covariance = np.polyfit(x, y, 1, cov=True)  # its covariance is over n - 2
    assert found.power == pytest.approx(slope[0])
    assert found.error == pytest.approx(4.303 * covariance[0, 0] ** 0.5, rel=1e-4)
    assert str(found) == f"n^{found.power:.2f} ± {found.error:.2f}"


@pytest.mark.parametrize("odd", [math.nan, math.inf, 0.0, -1.0])
def test_what_has_no_logarithm_is_left_out(odd):
    found = power({128: 1.0, 256: 2.0, 512: 4.0, 1024: odd})
    assert found.power == pytest.approx(1.0)
    assert found.lengths == (128, 256, 512)
    assert power({128: 1.0, 256: odd, 512: 4.0}) is None


def test_two_lengths_give_no_power():
    assert power({128: 1.0, 256: 2.0}) is None
    assert power({}) is None
