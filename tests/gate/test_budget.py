"""How much error is allowed, and the sentence where it is more."""

import math

import pytest
import torch

from attnbench.core.record import Error
from attnbench.gate.budget import EPSILON, Yardstick, allowed, check, check_unsampled, with_ratio
from attnbench.gate.findings import Wrong
from attnbench.gate.oracle import compare

MANY = 10**12
"""So many rows that the factors are what they are."""


def error(relative, worst_row=None, worst_at=(0, 0, 0)):
    worst_row = relative if worst_row is None else worst_row
    return Error(relative=relative, max=1.0, worst_row=worst_row, cosine=1.0, worst_at=worst_at)


def passes(name, got, plain, dtype="float32", over=MANY, cancels=None):
    check(name, got, Yardstick(plain, over, cancels), dtype, None)


def refusal(name, got, plain, dtype="float32", rows=None, over=MANY, cancels=None):
    with pytest.raises(Wrong) as wrong:
        check(name, got, Yardstick(plain, over, cancels), dtype, rows)
    return str(wrong.value)


@pytest.mark.parametrize("dtype", EPSILON)
def test_epsilon_is_the_spacing_at_one(dtype):
    assert EPSILON[dtype] == torch.finfo(getattr(torch, dtype)).eps


def test_the_budget_is_a_multiple_of_what_the_plain_form_makes():
    assert allowed(0.01, 4.0, "float32", MANY) == pytest.approx(0.04, rel=1e-4)
    assert allowed(0.01, 8.0, "bfloat16", MANY) == pytest.approx(0.08, rel=1e-4)


@pytest.mark.parametrize(("rows", "wider"), [(1, 3.0), (16, 1.5), (64, 1.25), (256, 1.125)])
def test_few_rows_widen_the_budget(rows, wider):
    assert allowed(0.01, 4.0, "float32", rows) == pytest.approx(0.04 * wider)
    assert allowed(0.01, 8.0, "bfloat16", rows) == pytest.approx(0.08 * wider)


def test_many_rows_do_not_widen_the_budget():
    assert 0.04 <= allowed(0.01, 4.0, "float32", 10**6) < 0.0404


@pytest.mark.parametrize(
    ("dtype", "least"),
    [
        ("float32", 4 * 2**-23),
        ("bfloat16", 2**-7),
        ("float16", 2**-10),
        ("float64", 64 * 2**-52),
    ],
)
@pytest.mark.parametrize("plain", [0.0, None, 1e-18])
@pytest.mark.parametrize("rows", [1, MANY])
def test_some_spacings_of_the_dtype_are_allowed_in_any_case(dtype, least, plain, rows):
    assert allowed(plain, 4.0, dtype, rows) == least


@pytest.mark.parametrize("plain", [3.0, math.inf])
@pytest.mark.parametrize("over", [1, MANY])
def test_half_of_the_output_may_never_be_missing(plain, over):
    passes("forward", error(0.49), error(plain), "bfloat16", over)
    said = refusal("forward", error(0.51), error(plain), "bfloat16", over=over)
    assert said.startswith("the relative error of forward is 0.51, above the 0.5 allowed")


def test_few_rows_do_not_lift_the_ceiling_of_the_output():
    passes("forward", error(0.49), error(0.1), over=4)  # which would be 2 without it
    refusal("forward", error(0.51), error(0.1), over=4)


def test_a_single_row_of_the_output_has_no_ceiling():
    passes("forward", error(0.4, 23.9), error(3.0))
    said = refusal("forward", error(0.4, 24.1), error(3.0))
    assert said.startswith("the error of the worst row of forward is 24, above the 24 allowed")


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_gradients_have_no_ceiling(name):
    passes(name, error(11.9), error(3.0), "bfloat16")
    said = refusal(name, error(12.2), error(3.0), "bfloat16")
    assert said.startswith(f"the relative error of {name} is 12, above the 12 allowed")


@pytest.mark.parametrize("name", ["forward", "dq", "dk", "dv"])
def test_what_is_within_both_budgets_passes(name):
    passes(name, error(3.9e-3, 7.9e-3), error(1e-3))


@pytest.mark.parametrize("name", ["forward", "dq", "dk", "dv"])
def test_what_only_few_rows_could_excuse_is_refused_over_many(name):
    passes(name, error(7.9e-3, 15.9e-3), error(1e-3), over=4)
    refusal(name, error(8.1e-3, 8.1e-3), error(1e-3), over=4)
    refusal(name, error(1e-3, 16.1e-3), error(1e-3), over=4)
    refusal(name, error(4.1e-3, 4.1e-3), error(1e-3), over=10**6)
    refusal(name, error(1e-3, 8.1e-3), error(1e-3), over=10**6)


def test_a_relative_error_above_four_times_the_plain_one_is_refused_with_both_numbers():
    said = refusal("dk", error(4.2e-3, 4.2e-3, [1, 2, 7]), error(1e-3))
    assert said == (
        "the relative error of dk is 0.0042, above the 0.004 allowed (the plain form in float32 "
        "makes 0.001); worst at row 7 (batch 1, head 2)"
    )


def test_one_bad_row_is_refused_though_the_whole_is_fine():
    said = refusal("forward", error(1e-3, 9e-3, [0, 1, 3]), error(1e-3))
    assert said.startswith("the error of the worst row of forward is 0.009, above the 0.008 allow")


def test_the_row_that_is_named_is_the_sequences_and_not_the_samples():
    rows = torch.tensor([0, 40, 900])
    assert "row 900 (batch 0, head 1)" in refusal(
        "forward", error(1.0, 1.0, [0, 1, 2]), error(1e-3), rows=rows
    )


@pytest.mark.parametrize("lost", [None, math.nan, math.inf])
def test_an_error_that_is_not_finite_is_refused(lost):
    said = refusal("forward", error(lost), error(1e-3))
    assert ("not finite" in said) or ("nan" in said) or ("inf" in said)


def test_no_error_where_the_plain_form_makes_none_passes():
    passes("dq", error(0.0), error(0.0), "float64")


# ---- where the truth is zero ---------------------------------------------------------------------


def off_by(most):
    """What is not zero where zero is wanted: no relative error says how bad that is."""
    return Error(
        relative=math.inf, max=most, worst_row=math.inf, cosine=math.inf, worst_at=[0, 0, 0]
    )


@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize("cancels", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("over", [1, MANY])
def test_a_true_zero_is_held_to_the_size_of_what_cancels(dtype, cancels, over):
    most = 16 * EPSILON[dtype] * cancels
    plain = off_by(most / 1e3)  # counts for nothing here, nor does the number of rows
    for fine in (0.0, most / 2, most):
        passes("dq", off_by(fine), plain, dtype, over, cancels)
    for beyond in (1.01 * most, 1e3 * most):
        refusal("dq", off_by(beyond), plain, dtype, over=over, cancels=cancels)


def test_the_sentence_for_a_true_zero_has_both_numbers():
    said = refusal("dk", off_by(0.25), off_by(1e-6), "float16", cancels=4.0)
    assert said == "dk is 0.25 where it is zero in truth, above the 0.062 allowed"


@pytest.mark.parametrize("lost", [None, math.nan, math.inf])
def test_what_is_not_finite_where_the_truth_is_zero_is_refused(lost):
    said = refusal("dq", off_by(lost), off_by(lost), cancels=1.0)
    assert any(word in said for word in ("not finite", "nan", "inf"))


def test_where_nothing_cancels_only_zero_is_zero():
    passes("dq", off_by(0.0), off_by(0.0), cancels=0.0)
    refusal("dq", off_by(1e-30), off_by(0.0), cancels=0.0)


def test_what_is_not_zero_in_truth_is_held_to_its_relative_error():
    nothing_left = Error(relative=1.0, max=1e-30, worst_row=1.0, cosine=0.0, worst_at=[0, 0, 0])
    assert "relative error of dq" in refusal("dq", nothing_left, error(1e-7))


# ---- the ratio, and rounding ---------------------------------------------------------------------


def test_the_ratio_is_to_the_plain_form_and_absent_where_there_is_none():
    assert with_ratio(error(3e-3), error(1e-3)).ratio == pytest.approx(3.0)
    assert with_ratio(error(3e-3), error(0.0)).ratio is None
    assert with_ratio(error(None), error(1e-3)).ratio is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_three_times_the_rounding_passes_and_many_times_does_not(dtype):
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(0)
    want = torch.randn(1, 2, 64, 8, generator=generator, dtype=torch.float64)
    plain = compare(want.to(kind), want)
    rounding = want.to(kind).double() - want
    many = {"float32": 40, "bfloat16": 8, "float16": 8}  # rounding lies below the spacing
    passes("forward", compare(want + 3 * rounding, want), plain, dtype, over=2 * 64)
    bad = compare(want + many[dtype] * rounding, want)
    for over in (2 * 64, MANY):
        assert "relative error of forward" in refusal("forward", bad, plain, dtype, over=over)


# ---- rows that are held against the plain form alone ---------------------------------------------


def one_row_off(relative):
    """Rows of which one is off, and what they should be."""
    want = torch.ones(1, 1, 4, 8)
    got = want.clone()
    got[0, 0, 2] += relative
    return got, want


@pytest.mark.parametrize(
    ("looser", "relative", "passes"),
    [
        (1.0, 0.014, True),
        (1.0, 0.018, False),
        (4.0, 0.06, True),
        (4.0, 0.07, False),
        (1.0, math.nan, False),
        (1.0, math.inf, False),
    ],
)
def test_a_row_nobody_sampled_may_be_off_sixteen_times_as_far_as_the_worst(
    looser, relative, passes
):
    plain = error(0.0, 0.001)
    got, want = one_row_off(relative)
    if passes:
        check_unsampled("dk", got, want, plain, "float32", looser)
        return
    with pytest.raises(Wrong, match=r"a row of dk that is not among the sampled is off.*row 2"):
        check_unsampled("dk", got, want, plain, "float32", looser)


def test_a_plain_form_that_is_no_number_excuses_nothing():
    least = allowed(0.0, 4.0, "float32", 64)
    assert allowed(math.nan, 4.0, "float32", 64) == least
    assert allowed(None, 4.0, "float32", 64) == least
