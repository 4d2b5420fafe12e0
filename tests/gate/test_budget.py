"""How much error is allowed; the yardstick of more inputs; a few rows of one call."""

import itertools
import math
from contextlib import nullcontext

import pytest
import torch

from attnbench.core.record import Error
from attnbench.gate import gate, reference
from attnbench.gate.budget import (
    EPSILON,
    Yardstick,
    allowed,
    check,
    check_all,
    check_unsampled,
)
from attnbench.gate.findings import Wrong
from attnbench.gate.inputs import make, turned
from impls.problem import Problem
from tests.impls.small import both_forms

MANY = 10**12
"""So many rows that the factors are not widened."""


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


def test_a_multiple_of_what_the_plain_form_makes_is_allowed_and_some_spacings_in_any_case():
    least = {"float32": 4 * 2**-23, "bfloat16": 2**-7, "float16": 2**-10, "float64": 64 * 2**-52}
    for dtype, rows in itertools.product(least, (1, MANY)):
        assert EPSILON[dtype] == torch.finfo(getattr(torch, dtype)).eps
        some = {allowed(plain, 4.0, dtype, rows) for plain in (0.0, None, math.nan, 1e-18)}
        assert some == {least[dtype]}
    for rows, wider in ((1, 3.0), (16, 1.5), (256, 1.125), (MANY, 1.0)):
        assert allowed(0.01, 4.0, "float32", rows) == pytest.approx(0.04 * wider, rel=1e-4)
        assert allowed(0.01, 8.0, "bfloat16", rows) == pytest.approx(0.08 * wider, rel=1e-4)


CEILING = "the relative error of forward is 0.51, above the 0.5 allowed"
CASES = [  # the tensor, its error, the plain form's, over how many rows, the refusal's beginning
    *(
        ("forward", error(got), plain, over, said)
        for plain, over in ((3.0, MANY), (math.inf, 1), (0.1, 4))
        for got, said in ((0.49, ""), (0.51, CEILING))
    ),
    ("forward", error(0.4, 23.9), 3.0, MANY, ""),  # one row alone has no ceiling
    ("forward", error(0.4, 24.1), 3.0, MANY, "the error of the worst row of forward is 24,"),
    ("dq", error(11.9), 3.0, MANY, ""),
    ("dv", error(12.2), 3.0, MANY, "the relative error of dv is 12, above the 12 "),
    ("dk", error(3.9e-3, 7.9e-3), 1e-3, MANY, ""),
    ("forward", error(7.9e-3, 15.9e-3), 1e-3, 4, ""),
    ("dk", error(8.1e-3, 8.1e-3), 1e-3, 4, "the relative"),
    ("dv", error(1e-3, 16.1e-3), 1e-3, 4, "the error of the worst"),
    ("dq", error(0.0), 0.0, MANY, ""),
    ("dq", error(1.0, most=1e-30), 1e-7, MANY, "the relative error of dq"),
    *(("forward", error(lost), 1e-3, MANY, "the ") for lost in (None, math.nan, math.inf)),
]


@pytest.mark.parametrize(("name", "got", "plain", "over", "said"), CASES)
def test_an_error_beyond_the_budget_is_refused(name, got, plain, over, said):
    sentence = refusal(name, got, error(plain), over=over)
    assert sentence.startswith(said) and bool(sentence) is bool(said)


def test_both_numbers_are_said_and_the_row_of_the_sequence_and_not_of_the_sample():
    assert refusal("dk", error(4.2e-3, 4.2e-3, [1, 2, 7]), error(1e-3)).startswith(
        "the relative error of dk is 0.0042, above the 0.004 allowed (the plain form in float32 "
        "makes 0.001); worst at row 7 (batch 1, head 2)"
    )
    rows = torch.tensor([0, 40, 900])
    said = refusal("forward", error(1.0, 1.0, [0, 1, 2]), error(1e-3), rows=rows)
    assert "row 900 (batch 0, head 1)" in said


@pytest.mark.parametrize("dtype", EPSILON)
def test_a_true_zero_is_held_to_the_size_of_what_cancels(dtype):
    for cancels in (0.0, 1e-3, 1e4):
        most = 16 * EPSILON[dtype] * cancels
        plain = error(math.inf, most=most / 1e3)  # counts for nothing here
        for got, fine in (
            (0.0, True), (most, True), (1.01 * most or 1e-30, False), (None, False),
            (math.nan, False), (math.inf, False),
        ):  # fmt: skip
            off = error(math.inf, most=got)
            assert (refusal("dq", off, plain, dtype, 1, cancels) == "") is fine
    said = refusal("dk", error(math.inf, most=0.25), error(1e-6), "float16", cancels=4.0)
    assert said == "dk is 0.25 where it is zero in truth, above the 0.062 allowed"


@pytest.mark.parametrize("looser", [1.0, 4.0])
def test_a_row_outside_the_sample_may_be_off_sixteen_times_as_far_as_the_worst(looser):
    want = torch.ones(1, 1, 4, 8)
    for off, passes in ((0.015, True), (0.0175, False), (math.nan, False), (math.inf, False)):
        got = want.clone()
        got[0, 0, 2] += off * looser
        said = "a row of dk that is not among the sampled is off.*row 2"
        with nullcontext() if passes else pytest.raises(Wrong, match=said):
            check_unsampled("dk", got, want, error(0.0, 0.001), "float32", looser)


@pytest.fixture
def own():
    """A row with a definition of its own, that definition, and its problem."""
    small = {"heads": 2, "kv_heads": 2, "q_len": 40, "kv_len": 40, "head_dim": 8, "v_head_dim": 8}
    problem = Problem(**small, phase="train")
    return reference.judge(problem, make(problem, 0), 0), *both_forms("linear.elu", problem)


def test_where_few_rows_may_be_lucky_the_worst_of_several_inputs_is_the_yardstick(own, monkeypatch):
    judged, _, define = own

    def yardstick(inputs):
        return reference.defined(judged.problem, inputs, judged.softmax, define)

    assert yardstick(judged.inputs).tried == 4 * 2 * 40
    monkeypatch.setattr(reference, "ENOUGH_ROWS", 2 * 40)
    alone = [yardstick(other).plain for other in (judged.inputs, *turned(judged.inputs))]
    monkeypatch.undo()
    for name, error in yardstick(judged.inputs).plain.items():
        assert error.relative == max(one[name].relative for one in alone)
        assert error.worst_row == max(one[name].worst_row for one in alone)


def test_the_ratio_of_an_error_is_to_that_yardstick(own):
    judged, attend, define = own
    verdict = gate.gate(judged, lambda q, k, v: attend(q, k, v) * 1.01, define, 0)
    plain = reference.defined(judged.problem, judged.inputs, judged.softmax, define).plain
    assert f"the plain form in float32 makes {plain['forward'].relative:.2g}" in verdict.reason
    error = verdict.error["forward"]
    assert error.ratio == error.relative / plain["forward"].relative


@pytest.mark.parametrize(("relative", "worst"), [(4.1, 4.0), (4.0, 8.1), (math.nan, 4.0), (4, 8)])
def test_only_what_is_allowed_in_any_case_needs_no_plain_form(relative, worst):
    asked, rows = [], torch.arange(256)

    def plain():
        asked.append(True)
        return {"forward": error(0.0, 0.0)}

    truth = reference.Reference(rows, None, {"forward": torch.ones(1)}, plain, tried=256)
    off = {"forward": error(relative * EPSILON["float32"], worst * EPSILON["float32"])}
    with nullcontext() if (relative, worst) == (4, 8) else pytest.raises(Wrong):
        check_all(off, truth, "float32")
    assert bool(asked) == ((relative, worst) != (4, 8))
