"""The same kernel under two names: how far apart it came out, and what that does to an answer."""

from math import nan
from pathlib import Path

import pytest

from attnbench.answer.ranking import MARGIN, answers, furthest, margin_of, margin_reason
from attnbench.core.record import Memory
from impls.loading import load_file

made = load_file(Path(__file__).with_name("lines.py"))
timed = made.timed
FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"


def fused(variant, median, *, length=128, kernels=(FLASH, "aten::empty"), peak=64, **more):
    memory = Memory(peak_bytes=peak, saved_bytes=0, expected_bytes=None, method="events")
    record = timed(variant, length, median, **more)
    return record.with_(kernels=list(kernels), memory=memory)


def apart(*records):
    found = furthest(records)
    return None if found is None else found.apart


def test_twins_are_as_far_apart_as_their_medians():
    called = fused("b", 1.2, kernels=("aten::scaled_dot_product_attention", FLASH))
    found = furthest([fused("a", 1.0), called, fused("a", 1.0, length=256)])
    assert (found.one, found.other, found.apart) == ("a", "b", pytest.approx(0.2))
    said = margin_reason([fused("a", 1.0), called])
    assert "up to 20%" in said and "128 tokens" in said


def test_of_several_the_furthest_count():
    pairs = [fused("a", 1.0), fused("b", 1.1), fused("a", 2.0, length=256)]
    assert apart(*pairs, fused("b", 1.0, length=256)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "other",
    [
        {"kernels": ("aten::bmm", "aten::_softmax")},
        {"kernels": (FLASH, "fmha_cutlassF")},
        {"kernels": ()},
        {"peak": 65},
        {"length": 256},
        {"flags": ("drifted",)},
        {"node": "else"},
        {"computes": "its own operator"},
        {"world": 2},
        {"phase": "train"},
        {"median": nan},
        {"median": None},
        {"median": 9e-4},
    ],
)
def test_what_is_not_the_same_work_or_not_well_measured_is_no_twin(other):
    assert apart(fused("a", 1.0), fused("b", **{"median": 1.2, **other})) is None


def test_operators_of_the_same_names_are_not_the_same_work():
    names = ("aten::bmm", "aten::_softmax", "aten::mul")  # scores scaled, or the queries before
    assert apart(fused("a", 1.0, kernels=names), fused("b", 1.5, kernels=names)) is None


def test_no_lead_counts_that_is_smaller_than_what_is_between_twins():
    twins = [fused("a", 2.0, length=256), fused("b", 2.4, length=256)]
    pair = [timed("c", 128, 1.0, near=0), timed("d", 128, 1.15, near=0)]
    (alone,) = answers(pair)
    (_, among) = answers([*twins, *pair])
    assert (alone.next, alone.equal, alone.margin) == ("d", (), MARGIN)
    assert (among.next, among.equal, among.margin) == (None, ("d",), pytest.approx(0.2))


def test_where_twins_agree_the_margin_is_the_usual():
    assert margin_of([fused("a", 1.0), fused("b", 1.01)]) == MARGIN
    assert margin_of([]) == MARGIN
