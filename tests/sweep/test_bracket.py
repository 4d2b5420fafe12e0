"""The search for the longest that holds, on costs and runs that are made up."""

import itertools

import pytest

from attnbench.features.limits.search import (
    MEMORY,
    TIME,
    CallBudget,
    LimitSearch,
    SizeResult,
    Sizes,
)

SIZES = Sizes(step=64, shortest=64, longest=1 << 20, start=1024)
GIB = 1 << 30


def search(
    peak_bytes=GIB, seconds=1.0, expected=lambda n: None, work=lambda n: float(n * n), sizes=SIZES
):
    return LimitSearch(CallBudget(peak_bytes, seconds), sizes, expected, work)


def run(one, time_s=lambda n: 1e-9 * n, peak=lambda n: n, crash=None, most=40):
    """Run what is asked for until the search ends; every size that was asked."""
    asked = []
    while (size := one.next()) is not None:
        assert size % one.sizes.step == 0 and size not in asked
        asked.append(size)
        assert len(asked) < most, f"it does not end: {asked}"
        took, needs = time_s(size), peak(size)
        if crash is not None and size > crash:
            one.looks.append(SizeResult(size, "crashed", "it died"))
        elif took > one.budget.seconds:
            one.looks.append(SizeResult(size, TIME, "a call took longer", took))
        elif needs > one.budget.peak_bytes:
            one.looks.append(SizeResult(size, MEMORY, "observed", took, needs))
        else:
            one.looks.append(SizeResult(size, "", "", took, needs))
    return asked


def bracketed(one, truth):
    """Whether the bracket holds the truth and is no wider than a sixteenth."""
    held, failed = one.held.size, one.failed.size
    return held <= truth < failed and failed - held <= one.sizes.width(held)


@pytest.mark.parametrize("power", [1.0, 1.3, 1.7, 2.0])
@pytest.mark.parametrize("truth", [300, 1500, 9000, 400_000])
def test_a_limit_of_time_is_found_in_few_looks_whatever_its_power(power, truth):
    one = search()
    asked = run(one, time_s=lambda n: (n / truth) ** power)
    assert bracketed(one, truth)
    assert one.failed.why == TIME and one.failed.ran
    assert len(asked) <= 9


def test_overhead_in_small_calls_misleads_for_a_look_or_two():
    one = search(work=lambda n: float(n))
    asked = run(one, time_s=lambda n: 0.01 + (n / 50_000))
    assert bracketed(one, 49_500)
    assert len(asked) <= 6


def test_a_limit_of_memory_without_a_formula_is_observed():
    one = search()
    run(one, peak=lambda n: 32 * n * n + 1000 * n)
    assert bracketed(one, 5777)
    assert (one.failed.why, one.failed.ran) == (MEMORY, True)


def test_an_exact_formula_rules_out_what_it_puts_over_the_budget_without_a_run():
    one = search(2 * GIB, expected=lambda n: 32 * n * n)
    asked = run(one, peak=lambda n: 32 * n * n)
    assert one.held.size == 8192
    assert (one.failed.size, one.failed.why, one.failed.ran) == (8256, MEMORY, False)
    assert max(asked) == 8192 and len(asked) == 2


@pytest.mark.parametrize("wrong_by", [0.5, 0.9, 1.1, 2.0])
def test_a_formula_that_is_wrong_rules_nothing_out_and_still_leads_there(wrong_by):
    """Seen is so many times what the formula says."""
    one = search(2 * GIB, expected=lambda n: 32 * n * n)
    asked = run(one, peak=lambda n: int(wrong_by * 32 * n * n))
    truth = int((2 * GIB / wrong_by / 32) ** 0.5)
    assert bracketed(one, truth)
    assert one.failed.ran
    assert len(asked) <= 5


def test_a_formula_that_is_right_for_short_ones_alone_is_not_believed_beyond_what_ran():
    def peak(n):
        return 32 * n * n * (1 if n <= 2048 else 2)

    one = search(2 * GIB, expected=lambda n: 32 * n * n)
    run(one, peak=peak)
    assert bracketed(one, 5792)


def test_what_crashes_beyond_a_length_is_found_by_halving():
    one = search()
    asked = run(one, crash=3000)
    assert bracketed(one, 3000)
    assert (one.failed.why, one.failed.reason) == ("crashed", "it died")
    assert len(asked) <= 12


def test_what_never_ends_beyond_a_length_is_over_the_time():
    one = search()
    asked = 0
    while (size := one.next()) is not None:
        asked += 1
        one.looks.append(
            SizeResult(size, TIME, "given up after 20 s")
            if size > 5000
            else SizeResult(size, "", "", 0.01, 100)
        )
    assert bracketed(one, 5000)
    assert one.failed.time_s is None
    assert asked <= 14


def test_noisy_times_end_in_a_bracket_that_was_run():
    factors = itertools.cycle([1.0, 1.7, 0.9, 1.4, 1.1, 0.8, 1.6])
    one = search()
    asked = run(one, time_s=lambda n: (n / 4000) ** 2 * next(factors))
    assert 4000 / 1.7 <= one.held.size < one.failed.size <= 4000 * 1.2
    assert one.failed.size - one.held.size <= one.sizes.width(one.held.size)
    assert len(asked) <= 12


def test_times_that_fall_with_the_length_end_too():
    one = search()
    asked = run(one, time_s=lambda n: 1 / n if n < 9000 else 2.0)
    assert one.held.size < 9000 <= one.failed.size
    assert len(asked) <= 15


def test_where_not_even_the_shortest_fits_that_one_was_run():
    one = search(1000, expected=lambda n: n * n)
    assert run(one, peak=lambda n: n * n) == [64]
    assert one.held is None
    assert (one.failed.size, one.failed.why, one.failed.ran) == (64, MEMORY, True)


def test_where_the_first_look_fails_shorter_ones_are_tried():
    one = search(10**6)
    run(one, peak=lambda n: 32 * n * n)
    assert bracketed(one, 176)


def test_a_formula_says_where_to_look_first():
    one = search(10**6, expected=lambda n: 32 * n * n)
    assert one.next() == 128  # 176 lies above


def test_the_search_ends_at_the_longest():
    one = search(1 << 60, 1e9)
    run(one)
    assert one.held.size == SIZES.longest and one.failed is None and one.done


def test_batches_are_searched_one_by_one():
    sizes = Sizes(step=1, shortest=1, longest=1 << 20, start=1)
    one = search(37 * 10**6, sizes=sizes, work=lambda n: float(n))
    run(one, peak=lambda n: n * 10**6)
    assert one.held.size <= 37 < one.failed.size
    assert one.failed.size - one.held.size <= 2


def test_one_look_alone_is_not_trusted_with_the_whole_time():
    one = search(work=lambda n: float(n))
    one.looks.append(SizeResult(1024, "", "", 0.1, 100))
    assert one.next() == 4096 - 4096 % 64  # 0.4 of the time, as the work grows
    one.looks.append(SizeResult(4096, "", "", 0.4, 400))
    assert 9000 < one.next() < 9500


def test_what_one_budget_alone_would_hold_lies_within_what_was_found():
    one = search(2 * GIB, 1.0, expected=lambda n: 32 * n * n)
    run(one, time_s=lambda n: (n / 3000) ** 2, peak=lambda n: 32 * n * n)
    assert one.failed.why == TIME
    assert one.reaches(MEMORY) == 8192
    assert one.held.size <= one.reaches(TIME) < one.failed.size


def test_a_call_is_guessed_from_the_last_by_its_power():
    one = search(work=lambda n: float(n))
    assert one.guess_s(1024) == 0.0
    one.looks.append(SizeResult(1024, "", "", 0.1, 100))
    assert one.guess_s(2048) == pytest.approx(0.2)
    one.looks.append(SizeResult(2048, "", "", 0.4, 100))
    assert one.guess_s(4096) == pytest.approx(1.6)


def test_a_formula_that_jumps_is_not_asked_for_every_size():
    asked = []

    def jumps(n):
        asked.append(n)
        return n if n < 700_000 else n * 10**6

    one = search(10**6, expected=jumps)
    one.looks.append(SizeResult(1024, "", "", 1e-6, 1024))
    assert one.reaches(MEMORY) == 699_968
    assert len(asked) < 60
