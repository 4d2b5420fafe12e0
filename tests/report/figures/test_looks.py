"""Looks: no two variants alike, and what is computed shows in the marker."""

from itertools import pairwise
from pathlib import Path

import pytest

from attnbench.report.figures.sheet import FAMILIES, OTHER, PAPER
from attnbench.report.figures.style import DASHES, MARKERS, filled, looks
from impls.loading import load_file

staged = load_file(Path(__file__).with_name("staged.py"))
exact, other = staged.exact, staged.other


def test_forty_of_one_family_look_unlike_each_other():
    before = [exact(f"d{n}", 64, 1.0) for n in range(7)]
    found = looks([*before, *(other(f"v{n}", 64, 1.0) for n in range(40))])
    pairs = {(look.marker, look.dash) for look in found.values() if look.family == "linear"}
    assert len(pairs) == 40


def test_fifty_of_any_families_look_unlike_each_other():
    found = looks(exact(f"v{n}", 64, 1.0, family=staged.FAMILIES[n % 8]) for n in range(50))
    assert len({(look.marker, look.dash) for look in found.values()}) == 50


def test_no_marker_is_a_circle_when_it_is_small():
    assert len(set(MARKERS)) == len(MARKERS) == 10
    assert not set(MARKERS) & set("phH8.d,")  # nor are two of them diamonds


def test_gaps_are_seen_at_the_width_that_lines_are_drawn():
    for dash in DASHES[1:]:
        gaps = [1.1 * gap for gap in dash[1][1::2]]
        assert min(gaps) >= 1.5  # points, which are two pixels and more


def test_neighbours_in_a_family_differ_in_marker_and_dash():
    found = list(looks(exact(f"v{n}", 64, 1.0) for n in range(10)).values())
    for one, after in pairwise(found):
        assert one.marker != after.marker
        assert one.dash != after.dash


@pytest.mark.parametrize(
    ("computes", "fill", "face"),
    [
        ("softmax", "full", FAMILIES["linear"]),
        ("approximates softmax", "left", FAMILIES["linear"]),
        ("softmax on its own pattern", "left", FAMILIES["linear"]),
        ("its own operator", "none", PAPER),
    ],
)
def test_the_filling_of_a_marker_says_what_is_computed(computes, fill, face):
    look = looks([other("a", 64, 1.0, computes=computes)])["a"]
    assert look.fill == fill
    assert look.marks()["markerfacecolor"] == face
    assert look.marks().get("markerfacecoloralt") == (PAPER if fill == "left" else None)
    assert look.exact is (computes == "softmax")


def test_a_family_has_its_colour_and_one_nobody_knows_has_its_own():
    found = looks(exact(f, 64, 1.0, family=f) for f in ("theirs", *FAMILIES))
    assert {n: look.colour for n, look in found.items()} == {**FAMILIES, "theirs": OTHER}
    assert list(found) == [*FAMILIES, "theirs"]
    assert [look.name for look in found.values()] == [f"v{n}" for n in range(8)]


def test_what_one_record_does_not_say_another_may():
    bare = exact("a", 64, 1.0, family="", computes="")
    assert looks([bare, exact("a", 128, 1.0)])["a"].family == "dense"
    assert looks([bare, exact("a", 128, 1.0)])["a"].exact


def test_words_for_a_pointer_hold_nothing_that_no_file_could():
    look = looks([exact("a", 64, 1.0)])["a"]
    assert look.gid() == "v0"
    assert look.gid("a\x00b\ud800") == "v0|a\ufffdb\ufffd"


def test_matplotlib_takes_every_filling():
    from matplotlib.lines import Line2D

    for fill in ("full", "left", "none"):
        line = Line2D([0], [0], **filled(fill, "#186294"))
        assert line.get_fillstyle() == ("left" if fill == "left" else "full")
