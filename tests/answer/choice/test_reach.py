"""Where a problem is too far from what was measured."""

from pathlib import Path

from attnbench.answer.predict import outside
from impls.loading import load_file

made = load_file(Path(__file__).with_name("seen.py"))
problem = made.problem
SEEN = [problem(n, heads=h, width=64) for n in (256, 1024) for h in (2, 8)]


def test_between_and_a_doubling_beyond_it_is_inside():
    for length in (128, 300, 1024, 2048):
        assert outside(problem(length, heads=4), SEEN) is None


def test_further_it_says_what_was_asked_and_what_was_measured():
    assert outside(problem(4096, heads=4), SEEN) == "queries 4,096, and 256 to 1,024 was measured"
    assert outside(problem(512, heads=32), SEEN) == "heads 32, and 2 to 8 was measured"


def test_along_an_axis_of_one_value_less_is_allowed():
    assert outside(problem(512, heads=4, width=80), SEEN) is None
    assert outside(problem(512, heads=4, width=128), SEEN) == "head_dim 128, and 64 was measured"


def test_heads_in_groups_are_not_guessed_from_heads_that_are_not():
    assert outside(problem(512, heads=8, kv_heads=2), SEEN) == "grouping 4, and 1 was measured"


def test_a_corner_that_nothing_was_measured_near_is_outside():
    corner = [problem(128, heads=64, width=256), problem(8192, heads=1, width=16)]
    assert "doublings away" in outside(problem(8192, heads=64, width=256), corner)


def test_of_nothing_everything_is_outside():
    assert outside(problem(), []) == "nothing like it was measured"
