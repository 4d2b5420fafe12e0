"""What a worker answers about pairs, asked in this process; and the floor under them."""

import pytest
import torch

from attnbench.core.stats import Pairs, StopRule, Verdict, paired
from attnbench.gate.findings import Wrong
from attnbench.meter import pairs
from attnbench.meter.pairs import HeldVariant, ReadyCalls, two

TWICE = """
def build(problem):
    inner = right(problem)
    def attend(q, k, v):
        for _ in range(2): out = inner(q, k, v)
        return out
    return attend
"""
LIES_LATER = """
def build(problem):
    inner, calls = right(problem), []
    def attend(q, k, v):
        calls.append(1)
        return inner(q, k, v) * (1 if len(calls) < 40 else 1.5)
    return attend
"""
INVERTED = "def build(problem):\n    return lambda q, k, v: v * 0\n"


def question(cells, a, b, **more):
    problem = cells.problem(q_len=64, kv_len=64)
    jobs = [{"variant": cells.variant(x).to_dict(), "problem": problem.to_dict()} for x in (a, b)]
    return {"compare": jobs, "margin": 0.05, "floors": [], "budget_s": 3.0, **more}


def test_twice_the_work_is_slower(cells):
    pairs = question(cells, "build = right", TWICE)
    answer = two(cells.bench, pairs)
    assert {job["variant"]["name"] for job in pairs["compare"]} == {"planted"}
    assert list(answer["pairs"]["samples_s"]) == ["planted", "planted again"]
    found = Pairs.from_dict(answer["pairs"])
    assert found.comparison.verdict is Verdict.SLOWER
    assert 1.4 < found.comparison.ratio < 2.5
    assert len(found.a_s) == found.comparison.n


@pytest.mark.parametrize("sides", [("build = right", INVERTED), (INVERTED, "build = right")])
def test_a_side_that_does_not_pass_the_gate_is_not_timed(cells, sides):
    answer = two(cells.bench, question(cells, *sides))
    assert answer["stopped"]["status"] == "wrong"
    assert "did not move" in answer["stopped"]["why"]
    assert "pairs" not in answer


def test_a_side_that_replaces_torchs_kernels_for_both_is_not_paired(cells):
    given = question(cells, "build = right", "build = right")
    given["compare"][1]["variant"]["swaps"] = ["aten::_flash_attention_forward"]
    stopped = two(cells.bench, given)["stopped"]
    assert stopped["status"] == "unsupported"
    assert "no other variant can be timed beside it" in stopped["why"]


@pytest.mark.parametrize("gone", [False, True])
def test_where_a_side_took_the_gpus_context_with_it_the_process_is_not_asked_again(
    cells, monkeypatch, gone
):
    monkeypatch.setattr(pairs, "poisoned", lambda device: gone)
    assert two(cells.bench, question(cells, "build = right", INVERTED))["spoiled"] is gone


def test_a_side_that_lies_once_pairs_are_taken_makes_them_void(cells):
    answer = two(cells.bench, question(cells, "build = right", LIES_LATER))
    assert answer["stopped"]["status"] == "wrong"
    assert "while it was timed" in answer["stopped"]["why"]
    assert answer["spoiled"]


def test_a_side_that_changes_what_others_share_makes_them_void(cells):
    seeds = "def build(problem):\n    inner = right(problem)\n    def attend(q, k, v):\n"
    seeds += "        if len(calls) > 40: torch.manual_seed(1)\n        calls.append(1)\n"
    seeds += "        return inner(q, k, v)\n    return attend\ncalls = []\n"
    answer = two(cells.bench, question(cells, "build = right", seeds))
    assert "random state" in answer["stopped"]["why"]


def test_what_others_share_is_looked_at_after_the_last_call_of_all(cells, monkeypatch):
    monkeypatch.setattr(ReadyCalls, "audit", lambda side, seconds: torch.rand(1))
    with torch.random.fork_rng():
        answer = two(cells.bench, question(cells, "build = right", TWICE))
    assert "random state" in answer["stopped"]["why"]


def test_pairs_are_taken_for_as_long_as_was_asked_and_looked_at_afterwards(cells, monkeypatch):
    asked_for = []

    def compared(a, b, rule, *, audit):
        asked_for.append((rule, audit))
        return Pairs(paired([0.0] * 40, 0.01, confidence=0.99), [0.002] * 40, [0.002] * 40)

    monkeypatch.setattr(pairs, "compare_ready", compared)
    two(cells.bench, question(cells, "build = right", TWICE, budget_s=7.5, margin=0.04))
    assert asked_for == [(StopRule(0.04, budget_s=7.5), True)]


@pytest.mark.parametrize("liar", [0, 1])
def test_a_lie_is_said_of_who_lied(cells, liar):
    sides = ["build = right", "build = right"]
    sides[liar] = LIES_LATER
    pairs = question(cells, *sides)
    for sent, name in zip(pairs["compare"], ("a", "b"), strict=True):
        sent["variant"]["name"] = name
    why = two(cells.bench, pairs)["stopped"]["why"]
    assert why.startswith(f"{'ab'[liar]}: while it was timed")


@pytest.mark.parametrize(
    ("floors", "margin"),
    [
        ([{"call_s": 1e-4, "floor": 0.02}, {"call_s": 1.0, "floor": 0.5}], 0.02),
        ([{"call_s": 1e-4, "floor": 0.5}, {"call_s": 10.0, "floor": 0.002}], 0.5),
        ([{"call_s": 1e-4, "floor": 0.002}], 0.01),
    ],
)
def test_the_margin_is_the_floor_of_calls_as_long_and_a_hundredth_at_least(cells, floors, margin):
    answer = two(cells.bench, question(cells, "build = right", TWICE, margin=None, floors=floors))
    assert answer["pairs"]["comparison"]["margin"] == pytest.approx(margin)


def test_without_any_floor_it_is_measured_first(cells, monkeypatch):
    seen = []

    def floor_of(ready, budget_s):
        seen.append(ready)
        return pairs.Floor(1e-4, 0.07, 0.1, 8, 80)

    monkeypatch.setattr(pairs, "floor_of", floor_of)
    answer = two(cells.bench, question(cells, "build = right", TWICE, margin=None))
    assert answer["pairs"]["comparison"]["margin"] == pytest.approx(0.07)
    assert len(seen) == 1


# ---- one side held for another process -----------------------------------------------------------


def hold(variant="matmul", **changes):
    from impls.problem import Problem

    small = Problem(heads=1, kv_heads=1, q_len=16, kv_len=16, head_dim=8, v_head_dim=8)
    problem = small.with_(**changes).to_dict()
    return {"hold": {"variant": variant, "problem": problem, "seed": 0, "budget_s": 0.1}}


def test_a_variant_that_is_held_gives_as_many_samples_as_are_asked_for(cells):
    held = HeldVariant()
    assert held.hold(cells.bench, hold()) == {"held": True}
    assert held.answer(None, {"fresh": True}) == {"fresh": True}
    seconds = held.answer(None, {"sample": 3})["seconds"]
    assert len(seconds) == 3
    assert all(0 < s < 1 for s in seconds)


class Told:
    """In place of calls: each takes a second more, and a check finds what is given."""

    def __init__(self, wrong=None):
        self.taken, self.wrong = 0, wrong

    def sample(self):
        self.taken += 1
        return float(self.taken)

    def check(self):
        if self.wrong:
            raise Wrong(self.wrong)

    fresh = check


def told(wrong=None):
    held = HeldVariant()
    held._calls = Told(wrong)
    return held


def test_the_call_that_warms_what_others_have_cooled_is_no_sample():
    assert told().answer(None, {"sample": 3}) == {"seconds": [2.0, 3.0, 4.0]}


@pytest.mark.parametrize("question", [{"fresh": True}, {"sample": 2}])
def test_a_variant_that_is_held_and_lies_is_wrong_and_gives_no_seconds(question):
    assert told("it lied").answer(None, question) == {"wrong": "it lied"}


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("nothere", "there is no variant 'nothere'"),
        ("sdpa.cudnn", "sdpa.cudnn runs on cuda"),
        ("chunked?nothere=1", "nothere"),
    ],
)
def test_a_variant_that_can_not_be_held_is_refused_in_a_sentence(cells, variant, said):
    assert said in HeldVariant().hold(cells.bench, hold(variant))["refused"]


def test_a_table_that_can_not_be_read_refuses_what_is_in_it(cells, monkeypatch):
    def fails(files):
        raise ModuleNotFoundError("No module named 'nowhere'")

    monkeypatch.setattr(pairs, "table", fails)
    held = {"variant": "x", "problem": {}, "seed": 0, "budget_s": 0.1}
    answer = HeldVariant().hold(cells.bench, {"hold": held})
    assert answer == {
        "refused": "its table can't be read: ModuleNotFoundError: No module named 'nowhere'",
        "status": "failed",
    }


def test_who_does_not_pass_the_gate_is_refused_with_its_status(cells, monkeypatch):
    row, problem = cells.variant(INVERTED), cells.problem(q_len=64, kv_len=64)

    class Rows:
        def find(self, name):
            return row

    monkeypatch.setattr(pairs, "table", lambda files: Rows())
    held = {"variant": "x", "problem": problem.to_dict(), "seed": 0, "budget_s": 0.1}
    answer = HeldVariant().hold(cells.bench, {"hold": held})
    assert answer["status"] == "wrong"
    assert answer["refused"].startswith("wrong: ")
