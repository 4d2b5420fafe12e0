"""Planted forms and deeds: each must be caught, and the sentence must name the deed."""

import re
import threading

import pytest
import torch
from torch import Tensor

from attnbench.gate.oracle import sample_rows
from attnbench.gate.reference import ROWS


def changed(truth, change):
    """A build whose output is right but for ``change(out)``, done to a copy."""

    def build(problem):
        inner = truth.attention(problem)
        return lambda q, k, v: change(inner(q, k, v).clone())

    return build


"""Faults in a few keys that may lie between those that are probed."""


# ---- form and finiteness -------------------------------------------------------------------------


class Dressed(Tensor):
    """A tensor in other clothes."""


FORMS = {
    "float64": (lambda out: out.double(), "the output is float64, not float32"),
    "half": (lambda out: out.half(), "the output is float16, not float32"),
    "transposed": (
        lambda out: out.transpose(1, 2),
        "the output has the shape (2, 24, 2, 8), not (2, 2, 24, 8)",
    ),
    "a row short": (lambda out: out[:, :, 1:], "the output has the shape (2, 2, 23, 8)"),
    "flat": (lambda out: out.flatten(0, 1), "the output has the shape (4, 24, 8)"),
    "subclass": (lambda out: out.as_subclass(Dressed), "is a Dressed, not a plain torch.Tensor"),
    "sparse": (lambda out: out.to_sparse(), "the output has the layout torch.sparse_coo"),
    "elsewhere": (lambda out: out.to("meta"), "the output is on meta, not on cpu"),
    "nothing": (lambda out: None, "the output is a NoneType"),
    "a pair": (lambda out: (out, None), "the output is a tuple"),
    "an array": (lambda out: out.detach().numpy(), "the output is a ndarray"),
    "with luggage": (
        lambda out: setattr(out, "luggage", 1) or out,
        "the output carries more than its values: luggage",
    ),
}


@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("form", FORMS)
def test_an_output_of_the_wrong_form_is_named(truth, form, phase):
    change, said = FORMS[form]
    verdict = truth.verdict(truth.problem("causal", phase=phase), changed(truth, change))
    assert said in verdict.reason


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_one_row_that_is_not_finite_is_named(truth, value, mask):
    def change(out):
        out[1, 0, 5, 3] = value
        return out

    reason = truth.verdict(truth.problem(mask), changed(truth, change)).reason
    assert "row 5 (batch 1, head 0)" in reason
    assert f"holds {value}" in reason or "did not move" in reason


def test_what_overflows_only_on_the_problems_own_inputs_is_named_with_its_rows(truth):
    def overflow(problem):
        inner = truth.attention(problem)

        def attend(q, k, v):
            loud = q.abs().amax(-1, keepdim=True) > 8
            return inner(q, k, v).masked_fill(loud, torch.inf)

        return attend

    problem = truth.problem("causal", inputs="peaky")
    reason = truth.verdict(problem, overflow).reason
    assert re.match(r"\d+ rows are not finite in the output: row \d+ .* holds inf", reason)


def test_a_row_outside_the_sample_must_be_finite_too(truth):
    problem = truth.problem(q_len=600, kv_len=8, inputs="peaky")
    rows = set(sample_rows(600, ROWS, 0).tolist())
    outside = next(i for i in range(600) if i not in rows)

    def build(problem):
        inner = truth.attention(problem)

        def attend(q, k, v):
            out = inner(q, k, v)
            out[:, :, outside] += torch.inf * (q.abs().max() > 5)
            return out.nan_to_num(nan=0.0, posinf=torch.inf)

        return attend

    assert f"row {outside} " in truth.verdict(problem, build).reason


# ---- deeds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("by", ["shape", "address", "first call"])
def test_an_output_kept_from_another_call_is_caught(truth, by, mask):
    key = {
        "shape": lambda q, k, v: tuple(q.shape),
        "address": lambda q, k, v: (q.data_ptr(), k.data_ptr(), v.data_ptr()),
        "first call": lambda q, k, v: 0,
    }[by]

    def build(problem):
        inner, kept = truth.attention(problem), {}

        def attend(q, k, v):
            if key(q, k, v) not in kept:
                kept[key(q, k, v)] = inner(q, k, v)
            return kept[key(q, k, v)]

        return attend

    assert re.search(
        r"row \d+ .* did not move when key \d+ changed",
        truth.verdict(truth.problem(mask), build).reason,
    )


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize(
    ("phase", "mask"), [("forward", "none"), ("train", "none"), ("forward", "causal")]
)
def test_an_input_that_was_changed_and_left_so_is_named(truth, which, phase, mask):
    def build(problem):
        inner = truth.attention(problem)

        def attend(q, k, v):
            out = inner(q, k, v)
            (q, k, v)[which].data.mul_(1.5)
            return out

        return attend

    verdict = truth.verdict(truth.problem(mask, phase=phase), build)
    assert f"it changed its input {'qkv'[which]}" in verdict.reason


def test_a_thread_left_running_is_named(truth):
    done = threading.Event()

    def build(problem):
        inner = truth.attention(problem)

        def attend(q, k, v):
            threading.Thread(target=done.wait, name="straggler", daemon=True).start()
            return inner(q, k, v)

        return attend

    try:
        reason = truth.verdict(truth.problem(), build).reason
    finally:
        done.set()
    assert "threads running" in reason
    assert "straggler" in reason


def test_a_thread_that_has_ended_is_no_fault(truth):
    def build(problem):
        inner = truth.attention(problem)

        def attend(q, k, v):
            out = []
            worker = threading.Thread(target=lambda: out.append(inner(q, k, v)))
            worker.start()
            worker.join()
            return out[0]

        return attend

    assert truth.verdict(truth.problem(), build).reason is None


def test_the_verdict_on_a_fault_of_error_still_tells_the_errors(truth):
    def change(out):
        return out * 1.5

    verdict = truth.verdict(truth.problem("causal"), changed(truth, change))
    assert verdict.error["forward"].relative == pytest.approx(0.5, rel=1e-4)
    assert verdict.error["forward"].ratio > 1000
