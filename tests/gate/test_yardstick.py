"""More inputs are tried only for whoever needs them, and change no verdict."""

from dataclasses import replace

import pytest
import torch

import impls
from attnbench.core.record import Error
from attnbench.gate import gate
from attnbench.gate import reference as defined
from attnbench.gate.findings import Wrong
from attnbench.gate.inputs import make, turned
from attnbench.gate.oracle import Plain, within
from attnbench.gate.reference import judge
from impls.loading import load_function
from impls.problem import Problem


def error(size):
    return Error(relative=size, max=size, worst_row=size, cosine=1.0)


def plain(near, *others):
    asked = []

    def more():
        for size in others:
            asked.append(size)
            yield {"forward": error(size)}

    return Plain({"forward": error(near)}, more), asked


def at_most(size):
    def check(errors):
        if size > errors["forward"].relative:
            raise Wrong(f"{size} is above {errors['forward'].relative}")

    return check


def test_whoever_is_within_what_the_problems_own_inputs_give_costs_no_more():
    errors, asked = plain(2.0, 3.0, 5.0)
    within(errors, at_most(2.0))
    assert asked == []


def test_whoever_is_not_is_held_against_the_worst_of_all():
    errors, asked = plain(2.0, 5.0, 3.0)
    within(errors, at_most(4.0))
    assert asked == [5.0, 3.0]
    with pytest.raises(Wrong, match=r"6\.0 is above 5\.0"):
        within(errors, at_most(6.0))
    assert asked == [5.0, 3.0], "found once"


def test_errors_that_are_all_there_is_are_asked_once():
    with pytest.raises(Wrong):
        within({"forward": error(1.0)}, at_most(2.0))


@pytest.fixture
def asked():
    return Problem(
        heads=2, kv_heads=2, q_len=40, kv_len=40, head_dim=8, v_head_dim=8, phase="train"
    )


def ours(problem):
    row = impls.table().find("linear.elu")
    build = load_function(row.build)(problem, **row.chosen)
    return build, load_function(row.definition)(problem, **row.chosen)


def counted(define):
    calls = []

    def counting(q, k, v, rows):
        calls.append(q.dtype)
        return define(q, k, v, rows)

    return counting, calls


def test_all_inputs_are_as_bad_as_the_worst_of_them(asked):
    _, define = ours(asked)
    judged = judge(asked, make(asked, 0), 0)
    reference = defined.defined(asked, judged.inputs, judged.softmax, define)
    alone = [
        defined.defined(asked, other, judged.softmax, define).plain
        for other in (judged.inputs, *turned(judged.inputs))
    ]
    assert reference.tried == 4 * 2 * 40
    for name, near in reference.plain.items():
        assert near == alone[0][name]
        worst = reference.plain.wide[name]
        assert worst.relative == max(e[name].relative for e in alone)
        assert worst.worst_row == max(e[name].worst_row for e in alone)


def test_the_gate_of_an_honest_variant_asks_about_its_own_inputs_alone(asked):
    attend, define = ours(asked)
    judged = judge(asked, make(asked, 0), 0)
    define, calls = counted(define)
    assert gate.gate(judged, attend, define, 0).reason is None
    assert calls.count(torch.float32) == 1  # the yardstick
    assert calls.count(torch.float64) == 3  # the truth, of every row, of another set


def test_a_wrong_one_is_told_the_yardstick_of_all_inputs(asked):
    attend, define = ours(asked)
    judged = judge(asked, make(asked, 0), 0)
    verdict = gate.gate(judged, lambda q, k, v: attend(q, k, v) * 1.01, define, 0)
    reference = defined.defined(asked, judged.inputs, judged.softmax, define)
    wide = reference.plain.wide["forward"].relative
    assert f"the plain form in float32 makes {wide:.2g}" in verdict.reason
    assert verdict.error["forward"].ratio == verdict.error["forward"].relative / wide


def test_one_that_needs_the_worst_of_all_inputs_passes_by_it(asked, monkeypatch):
    """As good as the plain form on other inputs, and too far off by the problem's own alone."""
    attend, define = ours(asked)
    judged = judge(asked, make(asked, 0), 0)
    found = defined.defined(asked, judged.inputs, judged.softmax, define)
    small = {name: error(1e-12) for name in found.plain}
    real = dict(found.plain)
    monkeypatch.setattr(
        gate, "defined", lambda *_: replace(found, plain=Plain(small, lambda: iter([real])))
    )
    monkeypatch.setattr(gate.budget, "FLOOR_EPSILONS", dict.fromkeys(gate.budget.EPSILON, 0.0))
    assert gate.gate(judged, attend, define, 0).reason is None
    monkeypatch.setattr(gate, "defined", lambda *_: replace(found, plain=small))
    assert "above the" in gate.gate(judged, attend, define, 0).reason
