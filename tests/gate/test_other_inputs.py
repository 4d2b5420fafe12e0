"""Variants that are right on the inputs of their problem and wrong on others."""

import pytest

from attnbench.core.wire import Job
from attnbench.gate.other_inputs import SHORT, OtherInputs, shortened
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
        ("causal+document:100,200", {}),
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


def test_padding_scored_0_is_wrong_where_scores_lie_far_below_zero_and_blocks_are_padded():
    (plant,) = (plant for plant in PLANTS if plant.row.name == "planted.padding")
    bench, p = Bench(), plant.problem
    assert p.kv_len % 128 == SHORT % 128 == 64 and p.gradients
    record = judged(plant.row, p, bench)
    assert record.status == "measured" and record.wrong_on.startswith("sunk: ")
    sunk = judged(plant.row, p.with_(inputs="sunk"), bench)
    assert sunk.status == "wrong" and "not finite in dq" in sunk.reason
    for right in (plant.row, table().find("matmul")):  # no padding; none of it
        lengths = {"q_len": 256, "kv_len": 256} if right is plant.row else {}
        assert judged(right, p.with_(inputs="sunk", **lengths), bench).status == "measured"


def shifted(by):
    """A softmax of scores less what ``by`` makes of them."""

    def build(p):
        def attend(q, k, v):
            scores = q @ k.mT * p.scale
            weights = (scores - by(scores)).exp()
            return weights @ v / weights.sum(-1, keepdim=True)

        return attend, None

    return build


@pytest.mark.parametrize(
    ("by", "kind"),
    [
        (lambda scores: scores.amax(-1, keepdim=True).clamp(min=0), "sunk"),  # begins at zero
        (lambda scores: scores.amax((1, 3), keepdim=True), "peaky"),  # of all heads of a query
    ],
)
def test_a_wrong_maximum_is_wrong_where_scores_lie_far_below_it(by, kind):
    many = problem(mask="none", heads=8, kv_heads=8)
    wrong_on = OtherInputs().wrong_on(table().find("matmul"), many, 0, shifted(by))
    assert wrong_on.startswith(f"{kind}: ") and "not finite" in wrong_on


def test_a_variant_is_tried_once_for_all_lengths(monkeypatch):
    tried, bench = [], Bench()
    found = bench._other_inputs._tried
    monkeypatch.setattr(bench._other_inputs, "_tried", lambda *x: tried.append(x) or found(*x))
    for tokens in (200, 300):
        assert judged(table().find("exp.naive"), problem(tokens), bench).wrong_on
    judged(table().find("exp.naive"), problem(mask="none"), bench)
    assert len(tried) == 2
