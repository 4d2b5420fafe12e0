"""Words in figures, ticks, and looks: short where room is little, never on each other, unlike."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.report.figures.sheet import HUES, listed, shorten, spread, width
from attnbench.report.figures.style import FIRST, looks
from impls import own_rows
from tests.report.page.runs import timed


def test_what_fits_is_as_it_was_and_the_rest_ends_in_an_ellipsis_or_is_counted():
    assert shorten("sdpa", 100, 8) == "sdpa"
    for name in ("a very long name " * 3, "x" * 5000, "漢字" * 50, "a\x00\nb" * 40, "", "…"):
        short = shorten(name, 50, 8)
        assert width(short, 8) <= 50 and "\n" not in short and "\x00" not in short
    names = ["sdpa.flash", "sdpa", "online", "chunked"]
    for said in (", ".join(names), "sdpa.flash, sdpa +2", "sdpa.flash +3"):
        assert listed(names, width(said, 7), 7) == said


@given(st.lists(st.floats(-50, 250), max_size=14), st.floats(1, 12))
@settings(max_examples=30)
def test_places_are_a_gap_apart_in_order_and_inside(wanted, gap):
    found = spread(wanted, gap, 0, 200)
    assert all(-1e-6 <= at <= 200 + 1e-6 for at in found)
    for one, after in pairwise(sorted(range(len(wanted)), key=lambda i: wanted[i])):
        assert found[after] - found[one] >= gap - 1e-6
    assert spread([10, 50, 90, 90], 8, 0, 100) == [10, 50, 86, 94]


def test_a_name_alone_says_how_a_variant_looks_and_no_two_built_in_are_alike():
    found = looks(map(timed, own_rows()))
    assert len({(look.hue, look.marker) for look in found.values()}) == len(own_rows())
    assert {found[name].hue for name in FIRST} == HUES.keys()
    theirs = looks(map(timed, ("theirs", "sdpa", "mine?block=3")))
    assert theirs["sdpa"].place == found["sdpa"].place
    assert (theirs["theirs"].hue, theirs["theirs"].marker) == ("blue", "v")
    assert looks([timed("mine?block=3")])["mine?block=3"].marker == theirs["mine?block=3"].marker
