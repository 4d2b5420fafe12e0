"""Ticks that can be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.report.figures import style

SPANS = st.tuples(st.floats(1e-9, 1e9), st.floats(6, 1e8))


@given(SPANS)
def test_an_axis_has_from_two_to_six_ticks_and_all_lie_on_it(span):
    low, high = span[0], span[0] * span[1]
    for at in (style.decimal, style.binary):
        found = at(low, high)
        assert 1 <= len(found) <= 8
        assert all(low <= tick <= high for tick in found)
        assert found == sorted(set(found))
    assert len(style.decimal(low, high)) >= 2


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=6))
def test_limits_hold_the_values_and_are_never_narrow(values):
    low, high = style.limits(values)
    assert all(low < value < high for value in values)
    assert high / low >= 6


def test_words_that_would_touch_or_reach_too_far_are_left_out_but_the_last():
    words = ["128", "160", "192", "4k"]
    assert style.fitting(words, [0, 100, 200, 300], 8) == words
    assert style.fitting(words, [0, 4, 8, 12], 8) == ["", "", "", "4k"]
    assert style.fitting(words, [0, 100, 200, 300], 8, end=301) == ["128", "160", "192", ""]


def test_a_table_has_whole_numbers_in_full():
    assert style.number(1048576.0) == "1048576"
    assert style.number(0.123456789) == "0.123457"


def test_a_share_is_of_the_logarithm():
    assert style.share((1, 100), 10) == pytest.approx(0.5)
