"""Rows under a scale, a soft cap and sinks, against the textbook's formula in float64."""

import itertools
from contextlib import suppress

import pytest
import torch

import impls
from attnbench.core.machine import this_machine, why_not
from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.reference import judge
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import InvalidProblem, Problem
from impls.spec import Unsupported
from tests.impls.small import check, softmax

SETTINGS = [
    {"scale": 0.3},
    {"softcap": 2.0},
    {"sinks": True},
    {"scale": 1.0, "softcap": 5.0, "sinks": True},
]
MASKS = ("none", "causal", "causal+window:20,0", "causal+alibi", "document:30,37", "padding:40,67")


def problem(mask="causal", **changes):
    """Grouped heads on a length that no block divides."""
    extents = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 67, "kv_len": 67}
    return Problem(
        **{**extents, "head_dim": 32, "v_head_dim": 32, "mask": Mask.parse(mask), **changes}
    )


def cases():
    """Each exact row with what it takes; rows that compile for seconds in two of them, slow."""
    for row in impls.table().rows.values():
        if not row.exact or row.level != "core" or row.ranks or row.name == "exp.naive":
            continue
        for mask, settings in itertools.product(MASKS, SETTINGS):
            if row.supports(problem(mask, **settings)) is not None:
                continue
            if row.family == "external":
                missing = why_not(row, this_machine()) is not None
                marks = pytest.mark.slow, pytest.mark.skipif(missing, reason="it is not installed")
                yield pytest.param(row, mask, settings, marks=marks, id=f"{row.name}-{settings}")
            elif not any("c++" in need for need in row.requires):
                yield pytest.param(row, mask, settings, id=f"{row.name}-{mask}-{settings}")
            elif mask in ("causal", "document:30,37") and "sinks" in settings:
                marks = pytest.mark.slow
                yield pytest.param(row, mask, settings, marks=marks, id=f"{row.name}-{settings}")


@pytest.mark.parametrize(("row", "mask", "settings"), list(cases()))
def test_a_row_follows_the_parameters_that_it_takes(row, mask, settings):
    for phase in ("forward", "train"):
        p = problem(mask, phase=phase, **settings)
        if row.supports(p) is None:
            with suppress(Unsupported):  # a mask without a window
                attend = load_function(row.build)(p, **row.chosen)
                check(p, attend)


def capped_late(p):
    """The cap after the mask: what is hidden is at minus the cap, and seen."""

    def attend(q, k, v):
        k, v = (x.repeat_interleave(p.group, 1) for x in (k, v))
        hidden = ~torch.from_numpy(p.mask.visible(p.shape))
        scores = (q @ k.mT * p.scale).masked_fill(hidden, -torch.inf)
        return (p.softcap * torch.tanh(scores / p.softcap)).softmax(-1) @ v

    return attend


def without(name):
    """Softmax attention that ignores a parameter."""

    def build(p):
        return lambda q, k, v, sinks=None: softmax(
            p.with_(**{name: None}), q, k, v, None if name == "sinks" else sinks
        )

    return build


def half_a_gradient(p):
    """The right output, and half of the gradient of the sinks."""

    def attend(q, k, v, sinks):
        return softmax(p, q, k, v, sinks / 2 + sinks.detach() / 2)

    return attend


FAULTS = {
    "a cap after the mask": (capped_late, {"softcap": 2.0}),
    "no scale": (without("scale"), {"scale": 1.0}),
    "no cap": (without("softcap"), {"softcap": 2.0}),
    "no sinks": (without("sinks"), {"sinks": True}),
    "half a gradient": (half_a_gradient, {"sinks": True, "phase": "train"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_refuses(fault):
    build, changes = FAULTS[fault]
    p = problem(dtype="float64", **changes)
    judged = judge(p, make(p, 3), 3)
    assert gate(judged, build(p), None, 3).reason is not None
    assert gate(judged, lambda *x, **more: softmax(p, *x, **more), None, 3).reason is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"softcap": 0.0}, "softcap is 0.0; it must be a number above 0"),
        ({"softcap": True}, "softcap is True; it must be a number above 0"),
        ({"scale": float("nan")}, "scale is nan; it must be a number above 0"),
        ({"sinks": 1.0}, "sinks is 1.0; it must be given or left out"),
    ],
    ids=str,
)
def test_a_parameter_that_can_not_be_is_refused(changes, words):
    with pytest.raises(InvalidProblem) as refused:
        problem(**changes)
    assert str(refused.value) == words
