"""How much error is allowed, and the sentence where it is more."""

import math

import pytest
import torch

from attnbench.record import Error
from attnbench.truth.budget import EPSILON, allowed, check, with_ratio
from attnbench.truth.errors import compare
from attnbench.truth.findings import Wrong


def error(relative, worst_row=None, worst_at=(0, 0, 0)):
    worst_row = relative if worst_row is None else worst_row
    return Error(relative=relative, max=1.0, worst_row=worst_row, cosine=1.0, worst_at=worst_at)


def refusal(name, got, plain, dtype="float32", rows=None):
    with pytest.raises(Wrong) as wrong:
        check(name, got, plain, dtype, rows)
    return str(wrong.value)


@pytest.mark.parametrize("dtype", EPSILON)
def test_epsilon_is_the_spacing_at_one(dtype):
    assert EPSILON[dtype] == torch.finfo(getattr(torch, dtype)).eps


def test_the_budget_is_a_multiple_of_what_the_plain_form_makes():
    assert allowed("forward", 0.01, 4.0, "float32") == 0.04
    assert allowed("dq", 0.01, 8.0, "bfloat16") == 0.08


@pytest.mark.parametrize(("dtype", "least"), [
    ("float32", 4 * 2**-23), ("bfloat16", 2**-7), ("float16", 2**-10), ("float64", 64 * 2**-52),
])  # fmt: skip
@pytest.mark.parametrize("plain", [0.0, None, 1e-18])
def test_some_spacings_of_the_dtype_are_allowed_in_any_case(dtype, least, plain):
    assert allowed("forward", plain, 4.0, dtype) == least


def test_half_of_the_output_may_never_be_missing_while_gradients_have_no_such_limit():
    assert allowed("forward", 3.0, 4.0, "bfloat16") == 0.5
    assert allowed("forward", math.inf, 4.0, "bfloat16") == 0.5
    assert allowed("dk", 3.0, 4.0, "bfloat16") == 12.0


@pytest.mark.parametrize("name", ["forward", "dq", "dk", "dv"])
def test_what_is_within_both_budgets_passes(name):
    check(name, error(3.9e-3, 7.9e-3), error(1e-3), "float32", None)


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
    check("dq", error(0.0), error(0.0), "float64", None)


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
    check("forward", compare(want + 3 * rounding, want), plain, dtype, None)
    with pytest.raises(Wrong, match="relative error of forward"):
        check("forward", compare(want + many[dtype] * rounding, want), plain, dtype, None)
