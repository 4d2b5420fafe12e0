"""Amounts in words, in sentences and in columns."""

import math

import pytest

from attnbench.core import format


@pytest.mark.parametrize(
    ("say", "value", "text"),
    [
        (format.seconds, 0.523, "523 ms"),
        (format.seconds, 1.0, "1 s"),
        (format.seconds, 0.9999, "1 s"),
        (format.seconds, 3.99e-5, "39.9 µs"),
        (format.seconds, 5e-8, "50 ns"),
        (format.seconds, 12345, "12,300 s"),
        (format.nbytes, 1536 * 1024, "1.5 MiB"),
        (format.nbytes, 100, "100 B"),
        (format.nbytes, 2**31, "2 GiB"),
        (format.percent, 0.42, "42\u00a0%"),
        (format.times, 1.3149, "1.31×"),
        (format.joules, 0.0012, "1.2 mJ"),
        (format.three, 2.48e-7, "2.48e-7"),
        (format.three, 1e-6, "1e-6"),
        (format.tokens, 4096, "4k"),
        (format.tokens, 512, "512"),
        (format.tokens, 1500, "1,500"),
    ],
)
def test_amounts_are_said_in_three_digits_and_a_unit(say, value, text):
    assert say(value) == text


@pytest.mark.parametrize("value", [None, 0, -1.0, math.nan, math.inf, "1", True])
def test_what_has_no_logarithm_is_no_value(value):
    assert format.positive(value) is None
    assert format.positive(2) == 2.0


def test_numbers_have_three_figures():
    told = {
        0.000386: "0.000386",
        0.0386: "0.0386",
        3.0649: "3.06",
        45.35: "45.4",
        999.6: "1,000",
        1240.4: "1,240",
        1e-9: "1.0e-09",
        0: "0",
        math.nan: "–",
        math.inf: "–",
        None: "–",
    }
    assert {value: format.figures(value) for value in told} == told
    ratios = {1.3149: "1.31×", 1.3: "1.30×", 12.345: "12.3×", 0.0304: "0.0304×", None: "–"}
    assert {value: format.ratio(value) for value in ratios} == ratios
    sizes = {0: "0 B", 3350: "3.27 KiB", 5 << 20: "5 MiB", 3 << 30: "3 GiB"}
    assert {value: format.nbytes(value) for value in sizes} == sizes
    shares = {
        0.35: "35\u00a0%",
        0.004: "0\u00a0%",
        -0.004: "0\u00a0%",
        -0.4: "-40\u00a0%",
        math.inf: "–",
        None: "–",
    }
    assert {value: format.share(value) for value in shares} == shares
