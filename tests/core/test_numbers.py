"""Amounts in words, in sentences and in columns."""

import math

import pytest

from attnbench.core import format

SAID = {
    format.duration: {0.523: "523 ms", 0.9999: "1 s", 3.99e-5: "39.9 µs", 12345: "3.4 h"},
    format.size: {1536 * 1024: "1.5 MiB", 0: "0 B", 3350: "3.27 KiB", 3 << 30: "3 GiB"},
    format.three: {2.48e-7: "2.48e-7", 1e-6: "1e-6"},
    format.tokens: {4096: "4k", 512: "512", 1500: "1,500"},
    format.figures: {
        0.000386: "0.000386",
        3.0649: "3.06",
        45.35: "45.4",
        999.6: "1,000",
        1240.4: "1,240",
        1e-9: "1.0e-09",
        0: "0",
        math.inf: "–",
        None: "–",
    },
    format.ratio: {1.3: "1.30×", 12.345: "12.3×", 0.0304: "0.0304×", None: "–"},
    format.percent: {
        0.35: "35\u00a0%",
        1.041: "104\u00a0%",
        0.0726: "7.3\u00a0%",
        0: "0\u00a0%",
        -0.4: "-40\u00a0%",
        3.1e-3: "0.31\u00a0%",
        None: "–",
    },
}


@pytest.mark.parametrize("say", SAID)
def test_amounts_are_said_in_three_digits_and_a_unit(say):
    assert {value: say(value) for value in SAID[say]} == SAID[say]


@pytest.mark.parametrize("value", [None, 0, -1.0, math.nan, math.inf, "1", True])
def test_what_has_no_logarithm_is_no_value(value):
    assert format.positive(value) is None
    assert format.positive(2) == 2.0
