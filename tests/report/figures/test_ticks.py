"""Amounts in words, and ticks that can be read."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.report.figures import ticks

SPANS = st.tuples(st.floats(1e-9, 1e9), st.floats(6, 1e8))


@pytest.mark.parametrize(
    ("say", "value", "text"),
    [(ticks.seconds, 0.523, "523 ms"), (ticks.seconds, 1.0, "1 s"),
     (ticks.seconds, 0.9999, "1 s"), (ticks.seconds, 3.99e-5, "39.9 µs"),
     (ticks.seconds, 5e-8, "50 ns"), (ticks.seconds, 12345, "12,300 s"),
     (ticks.nbytes, 1536 * 1024, "1.5 MiB"), (ticks.nbytes, 100, "100 B"),
     (ticks.nbytes, 2**31, "2 GiB"), (ticks.percent, 0.42, "42 %"),
     (ticks.times, 1.3149, "1.31×"), (ticks.joules, 0.0012, "1.2 mJ"),
     (ticks.three, 2.48e-7, "2.48e-7"), (ticks.three, 1e-6, "1e-6"),
     (ticks.tokens, 4096, "4k"), (ticks.tokens, 512, "512"), (ticks.tokens, 1500, "1,500")],
)  # fmt: skip
def test_amounts_are_said_in_three_digits_and_a_unit(say, value, text):
    assert say(value) == text


@pytest.mark.parametrize("value", [None, 0, -1.0, math.nan, math.inf, "1", True])
def test_what_has_no_logarithm_is_no_value(value):
    assert ticks.positive(value) is None
    assert ticks.positive(2) == 2.0


@given(SPANS)
def test_an_axis_has_from_two_to_six_ticks_and_all_lie_on_it(span):
    low, high = span[0], span[0] * span[1]
    for at in (ticks.decimal, ticks.binary):
        found = at(low, high)
        assert 1 <= len(found) <= 8
        assert all(low <= tick <= high for tick in found)
        assert found == sorted(set(found))
    assert len(ticks.decimal(low, high)) >= 2


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=6))
def test_limits_hold_the_values_and_are_never_narrow(values):
    low, high = ticks.limits(values)
    assert all(low < value < high for value in values)
    assert high / low >= 6


def test_words_that_would_touch_or_reach_too_far_are_left_out_but_the_last():
    words = ["128", "160", "192", "4k"]
    assert ticks.fitting(words, [0, 100, 200, 300], 8) == words
    assert ticks.fitting(words, [0, 4, 8, 12], 8) == ["", "", "", "4k"]
    assert ticks.fitting(words, [0, 100, 200, 300], 8, end=301) == ["128", "160", "192", ""]


def test_a_table_has_whole_numbers_in_full():
    assert ticks.number(1048576.0) == "1048576"
    assert ticks.number(0.123456789) == "0.123457"


def test_a_share_is_of_the_logarithm():
    assert ticks.share((1, 100), 10) == pytest.approx(0.5)
