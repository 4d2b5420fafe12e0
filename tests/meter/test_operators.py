"""Operators with inputs of their own: drawn, checked, timed and compared by the names of axes."""

import itertools

import pytest
import torch

from attnbench.core.record import Status
from attnbench.core.wire import Job
from attnbench.gate.inputs import make, other_set, turned
from attnbench.gate.other_inputs import OtherInputs
from attnbench.meter.audit import unseen
from attnbench.meter.cell import _built
from attnbench.meter.probe import Fresh, probe
from impls import table
from impls.masks import Mask
from impls.operators import inputs as inputs_of
from impls.problem import Problem

CAUSAL = Problem(
    batch=2, heads=4, kv_heads=2, q_len=40, kv_len=40, head_dim=8, v_head_dim=8,
    mask=Mask.parse("causal"),
)  # fmt: skip
GATED = {
    "gla": "g", "retention": "g", "delta": "beta",
    "ssd": "g dt", "gated_delta": "g beta", "kda": "g beta",
}  # fmt: skip
FORMS = {
    "forward": {},
    "train": {"phase": "train"},
    "bfloat16": {"phase": "train", "dtype": "bfloat16"},
    "peaky": {"inputs": "peaky"},
    "one head": {"heads": 1, "kv_heads": 1, "batch": 1},
    "decode": {"phase": "decode", "q_len": 2},
    "a state": {"phase": "train", "state": True},
    "another scale": {"phase": "train", "scale": 0.6},
}
QUICK = {("kda", "train"), ("kda", "decode"), ("kda", "a state"), ("delta", "train")}
"""kda takes a decay a channel and a share; the others are slow tests."""
CELLS = [
    cell if cell in QUICK else pytest.param(*cell, marks=pytest.mark.slow)
    for cell in itertools.product(GATED, FORMS)
]


def valid(name, x):
    """Whether a gate holds what such a gate may: a decay, or a share."""
    return bool((x <= 0).all() if name == "g" else ((x > 0) & (x < 1)).all())


@pytest.mark.parametrize(("name", "form"), CELLS)
def test_a_row_whose_gates_are_inputs_is_measured_in_every_form(cells, name, form):
    problem = CAUSAL.with_(**FORMS[form])
    record = cells.measure(table().find(name), problem, bits_s=1.0)
    assert (record.status, record.reason, record.wrong_on) == (Status.MEASURED, "", "")
    names = ["q", "k", "v", *GATED[name].split(), *["state"] * (problem.state is True)]
    gradients = [f"d{n}" for n in names] * problem.gradients
    assert sorted(record.error) == sorted(["forward", *gradients])
    assert record.determinism.repeats and record.determinism.why == ""


@pytest.mark.parametrize("name", GATED)
def test_a_row_whose_gates_are_inputs_is_right_on_other_kinds_and_can_be_probed(name):
    row = table().find(name)
    assert OtherInputs().wrong_on(row, CAUSAL, 0, lambda short: _built(row, short)) == ""
    assert probe(Job(row, CAUSAL), 10.0).status is Status.MEASURED


@pytest.mark.parametrize(
    ("name", "width", "seed"),
    [
        pytest.param("gated_delta", 128, 3, marks=pytest.mark.slow),
        pytest.param("gated_delta", 128, 6, marks=pytest.mark.slow),
        ("kda", 64, 4),
    ],
)
def test_the_delta_rules_are_right_where_many_products_of_a_chunk_cancel(name, width, seed):
    row, sizes = table().find(name), {"heads": 4, "kv_heads": 4, "q_len": 192, "kv_len": 192}
    p = CAUSAL.with_(**sizes, batch=1, head_dim=width, v_head_dim=width, phase="train")
    assert OtherInputs().wrong_on(row, p, seed, lambda short: _built(row, short)) == ""


@pytest.mark.parametrize("name", GATED)
def test_whatever_is_drawn_in_place_of_gates_is_a_gate(name):
    inputs = make(CAUSAL, 0, inputs_of(name.partition("?")[0], CAUSAL))
    fresh = Fresh(CAUSAL, lambda q, k, v, **_: v.repeat(1, 2, 1, 1), inputs)
    fresh.before()
    sets = [inputs, other_set(inputs), *turned(inputs), unseen(inputs), fresh.inputs]
    for each in sets:
        assert all(valid(gate, each[gate]) for gate in GATED[name].split())
        if "delta" in name:
            lengths = each["k"].norm(dim=-1)
            torch.testing.assert_close(lengths, torch.ones_like(lengths))
    for some in sets[1:]:
        assert not torch.equal(some["v"], inputs["v"])


@pytest.mark.parametrize(
    ("sinks", "reason"),
    [
        ("sinks", ""),
        ("sinks.detach()", "the relative error of dsinks is 1"),
        ("sinks * 0", "the relative error of forward"),
        ("sinks.roll(1)", "the relative error of forward"),
    ],
)
def test_a_number_a_head_is_an_input_as_any_other(cells, sinks, reason):
    code = f"""
def build(problem):
    inner = right(problem)
    return lambda q, k, v, sinks: inner(q, k, v, sinks={sinks})
"""
    problem = CAUSAL.with_(phase="train", sinks=True)
    record = cells.measure(cells.variant(code, parameters=("sinks",)), problem, bits_s=1.0)
    assert record.reason.startswith(reason) and bool(record.reason) == bool(reason)
    if not reason:
        assert sorted(record.error) == ["dk", "dq", "dsinks", "dv", "forward"]
        assert record.determinism.words() == "same bits"
