"""Ticks that can be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from attnbench.report.figures import style

SPANS = st.tuples(st.floats(1e-9, 1e9), st.floats(6, 1e8))


@given(SPANS, st.sampled_from([2, 10]))
def test_an_axis_has_from_two_to_eight_ticks_and_all_lie_on_it(span, base):
    low, high = span[0], span[0] * span[1]
    axes = Figure().add_subplot()
    style.scale(axes, "x", (low, high), str, base)
    ticks = list(axes.get_xticks())
    assert 2 <= len(ticks) <= 8
    assert all(low <= tick <= high for tick in ticks)
    assert ticks == sorted(set(ticks))


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=6))
def test_limits_hold_the_values_and_are_never_narrow(values):
    low, high = style.limits(values)
    assert all(low < value < high for value in values)
    assert high / low >= 6


def test_words_that_would_touch_are_left_out_but_the_last():
    words = ["128", "160", "192", "4k"]
    assert style.fitting(words, [0, 100, 200, 300], 8) == words
    assert style.fitting(words, [0, 4, 8, 12], 8) == ["", "", "", "4k"]


def test_a_table_has_whole_numbers_in_full():
    assert style.number(1048576.0) == "1048576"
    assert style.number(0.123456789) == "0.123457"


def test_a_share_is_of_the_logarithm():
    assert style.share((1, 100), 10) == pytest.approx(0.5)
