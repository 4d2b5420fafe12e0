"""Selections: ties are ties, what else was picked wrongly is refused, and what is kept counts."""

import re

import numpy as np
import pytest
import torch

from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.gate.plants import PLANTED, PLANTS
from attnbench.gate.reference import judge
from attnbench.gate.selection import judged_by
from impls import operators
from impls.loading import load_function
from tests.impls.small import TABLE, both_forms, problem

MOBA, NSA, DSA = "moba?block=8&top=3", "nsa?block=8&top=4&window=5", "dsa?top=6"


class Changed:
    """An attend whose picks go through a change; ``whole`` attends to others than it says."""

    def __init__(self, inner, change, *, whole=None):
        self.inner, self.change, self.whole = inner, change, whole or change

    def select(self, q, k, **more):
        return self.change(self.inner.select(q, k, **more))

    def __call__(self, q, k, v, **more):
        picks = self.whole(self.inner.select(q, k, **more))
        return self.inner.selected(q, k, v, picks, **more)


def verdict_of(label, attend, p):
    row = TABLE.find(label)
    define = judged_by(p, both_forms(label, p)[1], attend, operators.inputs(row.operator, p))
    return gate(judge(p, make(p, 0), 0).of(row.operator), attend, define, 0)


def other(picks):
    """In place of a row's last pick the largest number that it has not picked, if there is one."""
    picks, items = picks.clone(), int(picks.max()) + 1
    for b, x, r in np.ndindex(picks.shape[:3]):
        left = {*range(min(items, r // 8 + 1))} - {*picks[b, x, r].tolist()}
        if left:
            liked = [int(i) for i in picks[b, x, r] if i != r // 8]
            picks[b, x, r][picks[b, x, r] == liked[-1]] = max(left)
    return picks


def same(picks):
    return picks


def twice(picks):
    return picks[..., :1].expand_as(picks)


LEFT_OUT = r"picks block \d, whose score is \S+, and leaves out block \d, whose score is"
WRONG = {
    "another": (other, rf"row \d+ \(batch 0, head \d\) {LEFT_OUT}"),
    "twice": (twice, "picks a block twice"),
    "later": (lambda picks: picks * 0 + torch.tensor([0, 4, 5]), "that it may not"),
    "fewer": (lambda picks: picks[..., :1], "another number of blocks than it should"),
    "beyond": (lambda picks: picks + 1, "from 0 to 6; 4 select from 6 blocks"),
    "floats": (lambda picks: picks.float(), "something else than whole numbers"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_selection_with_right_attention_is_refused_with_what_it_picked(fault):
    change, reason = WRONG[fault]
    p = problem("causal", 45, phase="train", dtype="float32")
    attend = both_forms(MOBA, p)[0]
    said = verdict_of(MOBA, Changed(attend, change, whole=same), p).reason
    assert re.search(reason, said), said
    if fault == "another":
        said = verdict_of(MOBA, Changed(attend, change), p).reason
        assert re.search(reason, said), said


def test_a_right_selection_with_attention_to_another_is_refused_by_its_values():
    p = problem("causal", 45, dtype="float32")
    attend = both_forms(MOBA, p)[0]
    said = verdict_of(MOBA, Changed(attend, same, whole=other), p).reason
    assert said.startswith("the relative error of forward is")


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_of_blocks_whose_scores_tie_any_may_be_picked(dtype):
    p = problem("causal", 45, inputs="equal_keys", dtype=dtype, phase="train")
    attend = both_forms(MOBA, p)[0]
    inputs = make(p, 0)
    q, k, _ = inputs.qkv
    assert not torch.equal(other(attend.select(q, k)), attend.select(q, k))
    assert verdict_of(MOBA, Changed(attend, other), p).reason is None
    apart = p.with_(inputs="normal")
    assert "leaves out" in verdict_of(MOBA, Changed(attend, other), apart).reason


def without(name, change):
    """An attend that gets an input changed."""

    def make_attend(inner):
        def changed(more):
            return {**more, name: change(more[name])}

        class Other:
            def select(self, q, k, **more):
                return inner.select(q, k, **changed(more))

            def __call__(self, q, k, v, **more):
                return inner(q, k, v, **changed(more))

        return Other()

    return make_attend


FAULTS = [
    *(
        (NSA, name, change, reason)
        for name in ("g_cmp", "g_slc", "g_swa")
        for change, reason in (
            (torch.ones_like, "error of forward"),
            (torch.Tensor.detach, f"error of d{name}"),
            (lambda g: g.roll(1, 1), "error of forward"),
        )
    ),
    (DSA, "iq", lambda x: x.flip(2), "picks key"),
    (DSA, "ik", lambda x: x.roll(1, 1), "that it may not|picks key|moved when"),
    (DSA, "iw", torch.ones_like, "picks key"),
]


@pytest.mark.parametrize(("label", "name", "change", "reason"), FAULTS)
def test_an_input_that_is_ignored_detached_or_another_s_is_noticed(label, name, change, reason):
    p = problem("causal", 45, dtype="float32", phase="train")
    attend = without(name, change)(both_forms(label, p)[0])
    said = verdict_of(label, attend, p).reason
    assert said and re.search(reason, said), said


@pytest.mark.parametrize("label", [MOBA, NSA, DSA])
def test_what_is_kept_is_the_weight_of_softmax_on_the_picks(label):
    p = problem("causal", 45)
    row = TABLE.find(label)
    inputs = make(p, 0, operators.inputs(row.operator, p))
    (q, k, _), more = inputs.qkv, inputs.arguments[1]
    attend = both_forms(label, p)[0]
    picks, size = attend.select(q, k, **more), attend.block
    shares = []
    for b, h, i in np.ndindex(p.batch, p.heads, 45):
        scores = (k[b, h // 2, : i + 1] @ q[b, h, i] * p.scale).softmax(0)
        mine = picks[b, h * picks.shape[1] // p.heads, i].tolist()
        shares.append(sum(float(scores[u * size : (u + 1) * size].sum()) for u in mine if u >= 0))
    kept = verdict_of(label, attend, p).distance.kept
    assert abs(kept - sum(shares) / len(shares)) < 1e-12
    everything = verdict_of("moba?top=99", both_forms("moba?top=99", p)[0], p)
    assert abs(everything.distance.kept - 1) < 1e-12


def test_the_plant_whose_picks_tie_with_others_does_pick_others():
    (tied,) = (plant for plant in PLANTS if plant.row.name == "planted.picks_later")
    q, k, _ = make(tied.problem, 0).qkv
    builds = (f"{PLANTED}:build_picks_later", "impls.sparse.moba:build")
    one, other = (load_function(b)(tied.problem, **tied.row.options).select(q, k) for b in builds)
    assert not torch.equal(one.sort(-1).values, other.sort(-1).values)
