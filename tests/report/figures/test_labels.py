"""Words in figures: short where there is little room, and never on each other."""

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.report.figures.sheet import (
    Spot,
    away,
    listed,
    nearest,
    over,
    place,
    shorten,
    spread,
    threaded,
    way,
    width,
)

SCATTERED = st.lists(st.tuples(st.floats(5, 195), st.floats(5, 145)), min_size=1, max_size=25)
BUNCHED = st.randoms(use_true_random=False).map(
    lambda chance: [(chance.uniform(70, 130), chance.uniform(50, 100)) for _ in range(20)]
)
POINTS = SCATTERED | BUNCHED
FRAME = (0.0, 0.0, 200.0, 150.0)


def test_what_fits_is_as_it_was_and_the_rest_ends_in_an_ellipsis():
    assert shorten("sdpa", 100, 8) == "sdpa"
    short = shorten("a very long name of a variant " * 3, 60, 8)
    assert short.endswith("…")
    assert short.startswith("a very")
    assert width(short, 8) <= 60


def test_a_name_of_any_sort_is_shortened():
    for name in ("x" * 5000, "漢字" * 50, "a\x00\nb" * 40, "", "…"):
        short = shorten(name, 50, 8)
        assert width(short, 8) <= 50
        assert "\n" not in short
        assert "\x00" not in short


def test_bold_words_take_more_room():
    assert width("sdpa.flash", 8, "bold") > width("sdpa.flash", 8)
    assert width("sdpa", 16) == pytest.approx(2 * width("sdpa", 8), rel=0.02)


@given(st.lists(st.floats(-50, 250), max_size=14), st.floats(1, 12))
def test_places_are_a_gap_apart_in_order_and_inside(wanted, gap):
    found = spread(wanted, gap, 0, 200)
    assert all(-1e-6 <= at <= 200 + 1e-6 for at in found)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for one, after in pairwise(order):
        assert found[after] - found[one] >= gap - 1e-6


def test_places_that_are_far_enough_apart_stay():
    assert spread([10, 50, 90], 8, 0, 100) == [10, 50, 90]
    assert spread([50, 50], 8, 0, 100) == [46, 54]


def test_more_than_there_is_room_for_stand_closer():
    found = spread([5.0] * 30, 10, 0, 100)
    assert found[0] == pytest.approx(0)
    assert found[-1] == pytest.approx(100)


@given(POINTS)
def test_no_two_names_lie_on_each_other_or_on_a_point(points):
    spots = [Spot(x, y, f"variant {n}") for n, (x, y) in enumerate(points)]
    taken = [(s.x - 3, s.y - 3, s.x + 3, s.y + 3) for s in spots]
    found = [
        (spot, box) for spot, box in zip(spots, place(spots, taken, FRAME, 8), strict=True) if box
    ]
    boxes = [box for _, box in found]
    assert boxes  # the first has all the room there is
    assert not any(over(a, b) for a, b in combinations(boxes, 2))
    assert not any(over(box, point) for box in boxes for point in taken)
    for spot, own in found:  # and none on the way from another to its point
        steps = way(spot.x, spot.y, *nearest(spot, own))
        assert not any(over(step, box) for step in steps for box in boxes if box is not own)
    assert all(b[0] >= 0 and b[1] >= 0 and b[2] <= 200 and b[3] <= 150 for b in boxes)


@given(POINTS)
def test_a_name_without_a_thread_is_nearest_to_its_own_point(points):
    spots = [Spot(x, y, f"variant {n}") for n, (x, y) in enumerate(points)]
    for number, (spot, box) in enumerate(
        zip(spots, place(spots, [], FRAME, 8, 40, points), strict=True)
    ):
        if box and not threaded(spot, box):
            others = [at for n, at in enumerate(points) if n != number]
            own = away(spot.x, spot.y, box)
            assert all(away(*at, box) > own for at in others)


@given(POINTS)
def test_a_thread_touches_no_point_of_another(points):
    spots = [Spot(x, y, f"variant {n}") for n, (x, y) in enumerate(points)]
    for spot, box in zip(spots, place(spots, [], FRAME, 8, 40, points), strict=True):
        if box and threaded(spot, box):
            steps = way(spot.x, spot.y, *nearest(spot, box))
            apart = [(x, y) for x, y in points if math.hypot(x - spot.x, y - spot.y) > 6]
            assert not any(over(step, (x, y, x, y)) for step in steps for x, y in apart)


def test_points_on_each_other_both_have_threads():
    spots = [Spot(100, 70, "one"), Spot(100, 70, "two")]
    boxes = place(spots, [], FRAME, 8, 40, [(100, 70), (100, 70)])
    assert all(box and threaded(spot, box) for spot, box in zip(spots, boxes, strict=True))


def test_names_are_whole_and_the_rest_is_counted():
    names = ["sdpa.flash", "sdpa", "online", "chunked"]
    assert listed(names, 500, 7) == "sdpa.flash, sdpa, online, chunked"
    assert listed(names, width("sdpa.flash, sdpa +2", 7), 7) == "sdpa.flash, sdpa +2"
    assert listed(names, width("sdpa.flash +3", 7), 7) == "sdpa.flash +3"
    short = listed(names, 40, 7)
    assert "…" in short
    assert short.endswith(" +3")
    assert listed([], 40, 7) == ""


def test_a_lone_point_has_its_name_to_the_right():
    (box,) = place([Spot(50, 50, "a")], [], FRAME, 8)
    assert box[0] == 55
    assert (box[1] + box[3]) / 2 == pytest.approx(50)


def test_the_way_to_a_far_name_is_a_row_of_small_boxes():
    steps = way(0, 0, 30, 40)
    assert steps[0][:2] == (-0.6, -0.6)
    assert over(steps[len(steps) // 2], (14, 18, 20, 28))
    assert len(steps) > 10
