"""Variants that are right on the inputs of their problem and wrong on others."""

import pytest

from attnbench.answer.ranking import answers
from attnbench.answer.regimes import regimes
from attnbench.answer.standings import closeness
from attnbench.core.job import Job
from attnbench.gate.other_inputs import SHORT, shortened
from attnbench.gate.plants import PLANTS
from attnbench.meter.cell import Bench
from impls import table
from impls.masks import Mask
from impls.problem import Problem


def problem(tokens=300, mask="causal", **more):
    sizes = {"heads": 2, "kv_heads": 2, "head_dim": 16, "v_head_dim": 16}
    extent = {"q_len": tokens, "kv_len": tokens, "mask": Mask.parse(mask)}
    return Problem(**{**sizes, **extent, **more})


def judged(variant, p, bench=None):
    return (bench or Bench()).measure(Job(variant, p, timed=False))


@pytest.mark.parametrize(
    ("mask", "more"),
    [
        ("none", {}),
        ("causal", {"phase": "train"}),
        ("causal", {"phase": "decode", "q_len": 1}),
        ("window:200,0", {}),
        ("causal+document:100,200", {}),
        ("prefix:200", {}),
        ("padding:250,300", {"batch": 2}),
    ],
)
def test_exponentials_without_a_maximum_are_found_under_every_kind_of_mask(mask, more):
    p, bench = problem(mask=mask, **more), Bench()
    record = judged(table().find("exp.naive"), p, bench)
    assert record.status == "measured" and record.wrong_on.startswith("peaky: ")
    assert judged(table().find("matmul"), p, bench).wrong_on == ""
    short = shortened(p)
    assert short.kv_len == SHORT and short.mask.kinds == p.mask.kinds


@pytest.mark.parametrize("name", ["linear.elu", "mean_v", "strided", "performer"])
def test_what_computes_something_else_is_held_to_its_own_definition(name):
    row = table().find(name)
    mask = next(m for m in ("causal", "none") if row.supports(problem(mask=m)) is None)
    record = judged(row, problem(mask=mask))
    assert (str(record.status), record.wrong_on) == ("measured", "")


def test_a_variant_is_tried_once_for_all_lengths(monkeypatch):
    tried, bench = [], Bench()
    found = bench._other_inputs._tried
    monkeypatch.setattr(bench._other_inputs, "_tried", lambda *x: tried.append(x) or found(*x))
    for tokens in (200, 300):
        assert judged(table().find("exp.naive"), problem(tokens), bench).wrong_on
    judged(table().find("exp.naive"), problem(mask="none"), bench)
    assert len(tried) == 2


def test_the_plant_that_overflows_has_a_time_and_is_in_no_answer():
    (plant,) = (plant for plant in PLANTS if plant.kind == "every kind")
    bench, p = Bench(), problem(64, "none")
    rows = plant.row, table().find("matmul"), table().find("bmm")
    measured = [bench.measure(Job(row, p, budget_s=0.01)) for row in rows]
    fast = measured[0].time.with_(median_s=1e-9, low_s=1e-9, high_s=1e-9)
    records = [measured[0].with_(time=fast), *measured[1:]]
    assert records[0].wrong_on.startswith("peaky: ")
    (answer,) = answers(records)
    assert plant.row.name not in (*answer.leaders, answer.next)
    assert plant.row.name not in {c.variant for c in closeness(regimes(records))}
