"""The parts of a row's time, and the rows that select, through whole cells."""

import pytest

from attnbench.core.record import Status
from attnbench.core.wire import Job
from attnbench.meter.probe import probe
from impls import table
from impls.masks import Mask
from impls.problem import Problem

EXTENT = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 40, "kv_len": 40}
CAUSAL = Problem(**EXTENT, head_dim=8, v_head_dim=8, mask=Mask.parse("causal"))
LABELS = {"moba": "moba?block=8&top=2", "nsa": "nsa?block=4&top=4&window=5", "dsa": "dsa?top=6"}
GATES = {"moba": [], "nsa": ["g_cmp", "g_slc", "g_swa"], "dsa": []}
FORMS = {
    "train": {"phase": "train"},
    "backward": {"phase": "backward"},
    "bfloat16": {"dtype": "bfloat16", "phase": "train"},
    "decode": {"phase": "decode", "q_len": 2},
    "peaky": {"inputs": "peaky", "heads": 1, "kv_heads": 1, "batch": 1},
}
CELLS = [
    (name, form)
    if form in ("train", "decode") or (name, form) == ("nsa", "backward")
    else pytest.param(name, form, marks=pytest.mark.slow)
    for name in LABELS
    for form in FORMS
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), CELLS)
def test_a_row_that_selects_is_measured_in_parts_and_says_what_it_keeps(cells, name, form):
    problem = CAUSAL.with_(**FORMS[form])
    record = cells.measure(table().find(LABELS[name]), problem, bits_s=1.0)
    assert (record.status, record.reason, record.wrong_on) == (Status.MEASURED, "", "")
    gradients = [f"d{n}" for n in ["q", "k", "v", *GATES[name]]] * problem.gradients
    assert sorted(record.error) == sorted(["forward", *gradients])
    assert record.determinism.repeats and 0 < record.distance.kept < 1
    assert [*record.parts] == ([] if form == "backward" else ["selector", "attention"])
    assert all(record.parts.values())


@pytest.mark.parametrize("name", LABELS)
def test_a_row_that_selects_can_be_probed(name):
    assert probe(Job(table().find(LABELS[name]), CAUSAL), 10.0).status is Status.MEASURED


HALVES = """
import time
from impls.heads import to_query_heads
class Halves:
    def __init__(self, problem):
        self.right = right(problem)
    def __call__(self, q, k, v):
        return self.right(q, k, v)
    def parts(self, q, k, v):
        def first(q, k, v):
            time.sleep({slow})
            return q
        return first, lambda q, k, v: self.right(q, k, v) {change}
def build(problem):
    return Halves(problem)
"""


def test_each_part_is_timed_by_itself(cells):
    row = cells.variant(HALVES.format(slow=0.02, change=""), parts=("first", "second"))
    record = cells.measure(row, CAUSAL)
    assert record.parts["first"] > 0.02 and record.parts["second"] < record.parts["first"]


def test_a_last_part_that_gives_another_output_than_the_whole_is_wrong(cells):
    row = cells.variant(HALVES.format(slow=0, change="* 1.001"), parts=("first", "second"))
    record = cells.measure(row, CAUSAL.with_(phase="train"))
    assert record.status is Status.WRONG
    assert record.reason.startswith("while its parts were timed its output was not")


def test_a_row_without_the_parts_that_it_names_has_failed(cells):
    record = cells.measure(cells.variant("build = right", parts=("first",)), CAUSAL)
    assert record.status is Status.FAILED and "parts" in record.reason
