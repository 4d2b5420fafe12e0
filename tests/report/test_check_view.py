"""The table of a check: what was right is counted, and what was not is shown with its reason."""

from pathlib import Path

from attnbench.core.record import Determinism, Error, Status
from attnbench.features.selfcheck import view
from impls.loading import load_file

made = load_file(Path(__file__).with_name("records.py"))
at, grid, timed, untimed = made.at, made.grid, made.timed, made.untimed


def test_a_check_counts_what_was_right_and_shows_the_worst_error(shown):
    worse = {"forward": Error(relative=1.0, max=1.0, worst_row=1.0, cosine=1.0, ratio=3.5)}
    text = shown(view.show_check, [timed("a", 1e-3), timed("a", 1e-3, at(64), error=worse)])
    assert grid(text)[1] == ["a", "2 of 2", "3.50 × plain"]


def test_a_check_shows_each_problem_that_was_not_right_with_its_reason(shown):
    text = shown(
        view.show_check, [timed("a", 1e-3), untimed("a", Status.WRONG, at(64), reason=made.MARKUP)]
    )
    assert "1 of 2" in text
    assert "wrong" in text
    assert made.MARKUP in text
    assert "none forward float32" in text


def test_a_check_of_what_can_not_run_says_why(shown):
    text = shown(view.show_check, [untimed("a", Status.UNAVAILABLE, reason=made.MARKUP)])
    assert "–" in text
    assert made.MARKUP in text


def test_long_reasons_wrap_in_a_pipe(in_a_pipe, reason):
    bits = Determinism(repeats=False, batch=None, place=None, mode_repeats=None, mode_cost=None)
    records = [
        timed("a", 1e-3, determinism=bits),
        untimed("a", Status.WRONG, at(64), reason),
        untimed("b", Status.UNAVAILABLE, reason=reason),
    ]
    text = in_a_pipe(view.show_check, records)
    assert text.count(reason) == 2
    assert "not over repeats, across batches not tried" in text
