"""How much error is allowed, and the sentence where it is more."""

import math

import pytest
import torch

from attnbench.core.record import Error
from attnbench.gate.budget import EPSILON, Yardstick, allowed, check, check_unsampled, with_ratio
from attnbench.gate.findings import Wrong
from attnbench.gate.oracle import compare

MANY = 10**12
"""So many rows that the factors are not widened."""
NOT_FINITE = (None, math.nan, math.inf)
NO_NUMBER = "not finite|nan|inf"


def error(relative, worst_row=None, worst_at=(0, 0, 0), most=1.0):
    worst_row = relative if worst_row is None else worst_row
    return Error(relative=relative, max=most, worst_row=worst_row, cosine=1.0, worst_at=worst_at)


def refusal(name, got, plain, dtype="float32", over=MANY, cancels=None, rows=None):
    """The sentence of a refusal; an empty one where the error is allowed."""
    try:
        check(name, got, Yardstick(plain, over, cancels), dtype, rows)
    except Wrong as wrong:
        return str(wrong)
    return ""


@pytest.mark.parametrize("dtype", EPSILON)
def test_epsilon_is_the_spacing_at_one(dtype):
    assert EPSILON[dtype] == torch.finfo(getattr(torch, dtype)).eps


@pytest.mark.parametrize(
    ("rows", "wider"), [(1, 3.0), (16, 1.5), (64, 1.25), (256, 1.125), (10**6, 1.002), (MANY, 1.0)]
)
def test_the_budget_is_a_multiple_of_what_the_plain_form_makes_and_wider_over_few_rows(rows, wider):
    assert allowed(0.01, 4.0, "float32", rows) == pytest.approx(0.04 * wider, rel=1e-4)
    assert allowed(0.01, 8.0, "bfloat16", rows) == pytest.approx(0.08 * wider, rel=1e-4)


@pytest.mark.parametrize(
    ("dtype", "least"),
    [("float32", 4 * 2**-23), ("bfloat16", 2**-7), ("float16", 2**-10), ("float64", 64 * 2**-52)],
)
@pytest.mark.parametrize("plain", [0.0, None, math.nan, 1e-18])
@pytest.mark.parametrize("rows", [1, MANY])
def test_some_spacings_of_the_dtype_are_allowed_in_any_case(dtype, least, plain, rows):
    assert allowed(plain, 4.0, dtype, rows) == least


CEILING = "the relative error of forward is 0.51, above the 0.5 allowed"
NAMES = ("forward", "dq", "dk", "dv")
CASES = (  # the tensor, its error, the plain form's, over how many rows, the refusal's beginning
    *(("forward", error(0.49), error(p), over, "") for p in (3.0, math.inf) for over in (1, MANY)),
    *(
        ("forward", error(0.51), error(p), over, CEILING)
        for p in (3.0, math.inf)
        for over in (1, MANY)
    ),
    ("forward", error(0.49), error(0.1), 4, ""),  # 0.8 would be allowed without the ceiling
    ("forward", error(0.51), error(0.1), 4, CEILING),
    ("forward", error(0.4, 23.9), error(3.0), MANY, ""),  # one row alone has no ceiling
    (
        "forward",
        error(0.4, 24.1),
        error(3.0),
        MANY,
        "the error of the worst row of forward is 24, ",
    ),
    *((name, error(11.9), error(3.0), MANY, "") for name in NAMES[1:]),
    *(
        (name, error(12.2), error(3.0), MANY, f"the relative error of {name} is 12, above the 12 ")
        for name in NAMES[1:]
    ),
    *((name, error(3.9e-3, 7.9e-3), error(1e-3), MANY, "") for name in NAMES),
    *((name, error(7.9e-3, 15.9e-3), error(1e-3), 4, "") for name in NAMES),
    *(
        (name, got, error(1e-3), over, "the ")
        for name in NAMES
        for got, over in (
            (error(8.1e-3, 8.1e-3), 4),
            (error(1e-3, 16.1e-3), 4),
            (error(4.1e-3, 4.1e-3), 10**6),
            (error(1e-3, 8.1e-3), 10**6),
        )
    ),
    (
        "dk",
        error(4.2e-3, 4.2e-3, [1, 2, 7]),
        error(1e-3),
        MANY,
        "the relative error of dk is 0.0042, above the 0.004 allowed (the plain form in float32 "
        "makes 0.001); worst at row 7 (batch 1, head 2)",
    ),
    (
        "forward",
        error(1e-3, 9e-3, [0, 1, 3]),
        error(1e-3),
        MANY,
        "the error of the worst row of forward is 0.009, above the 0.008 allow",
    ),
    ("dq", error(0.0), error(0.0), MANY, ""),
    ("dq", error(1.0, most=1e-30), error(1e-7), MANY, "the relative error of dq"),
)


@pytest.mark.parametrize(("name", "got", "plain", "over", "said"), CASES)
def test_an_error_beyond_the_budget_is_refused_with_both_numbers(name, got, plain, over, said):
    sentence = refusal(name, got, plain, over=over)
    assert sentence.startswith(said)
    assert bool(sentence) is bool(said)


def test_the_row_that_is_named_is_the_sequences_and_not_the_samples():
    rows = torch.tensor([0, 40, 900])
    said = refusal("forward", error(1.0, 1.0, [0, 1, 2]), error(1e-3), rows=rows)
    assert "row 900 (batch 0, head 1)" in said


@pytest.mark.parametrize("lost", NOT_FINITE)
def test_an_error_that_is_not_finite_is_refused(lost):
    assert any(
        word in refusal("forward", error(lost), error(1e-3)) for word in NO_NUMBER.split("|")
    )
    off = error(math.inf, most=lost)
    assert any(word in refusal("dq", off, off, cancels=1.0) for word in NO_NUMBER.split("|"))


# ---- where the truth is zero ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize("cancels", [0.0, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("over", [1, MANY])
def test_a_true_zero_is_held_to_the_size_of_what_cancels(dtype, cancels, over):
    most = 16 * EPSILON[dtype] * cancels
    plain = error(math.inf, most=most / 1e3)  # counts for nothing here, nor does the number of rows
    for got, fine in ((0.0, True), (most, True), (1.01 * most or 1e-30, False), (1e6, False)):
        off = error(math.inf, most=got)
        assert (refusal("dq", off, plain, dtype, over, cancels) == "") is fine


def test_the_sentence_for_a_true_zero_has_both_numbers():
    said = refusal("dk", error(math.inf, most=0.25), error(1e-6), "float16", cancels=4.0)
    assert said == "dk is 0.25 where it is zero in truth, above the 0.062 allowed"


# ---- the ratio, and rounding ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "plain", "ratio"), [(3e-3, 1e-3, 3.0), (3e-3, 0, None), (None, 1, None)]
)
def test_the_ratio_is_to_the_plain_form_and_absent_where_there_is_none(got, plain, ratio):
    assert with_ratio(error(got), error(plain)).ratio == (ratio and pytest.approx(ratio))


@pytest.mark.parametrize(("dtype", "many"), [("float32", 40), ("bfloat16", 8), ("float16", 8)])
def test_three_times_the_rounding_passes_and_many_times_does_not(dtype, many):
    generator = torch.Generator().manual_seed(0)
    want = torch.randn(1, 2, 64, 8, generator=generator, dtype=torch.float64)
    rounded = want.to(getattr(torch, dtype))
    plain, rounding = compare(rounded, want), rounded.double() - want
    assert refusal("forward", compare(want + 3 * rounding, want), plain, dtype, 2 * 64) == ""
    bad = compare(want + many * rounding, want)  # rounding lies below the spacing
    for over in (2 * 64, MANY):
        assert "relative error of forward" in refusal("forward", bad, plain, dtype, over)


# ---- rows that are held against the plain form alone ---------------------------------------------


@pytest.mark.parametrize(
    ("looser", "off", "passes"),
    [
        (1.0, 0.014, True),
        (1.0, 0.018, False),
        (4.0, 0.06, True),
        (4.0, 0.07, False),
        (1.0, math.nan, False),
        (1.0, math.inf, False),
    ],
)
def test_a_row_outside_the_sample_may_be_off_sixteen_times_as_far_as_the_worst(looser, off, passes):
    want = torch.ones(1, 1, 4, 8)
    got = want.clone()
    got[0, 0, 2] += off
    given = ("dk", got, want, error(0.0, 0.001), "float32", looser)
    if passes:
        check_unsampled(*given)
        return
    with pytest.raises(Wrong, match=r"a row of dk that is not among the sampled is off.*row 2"):
        check_unsampled(*given)
