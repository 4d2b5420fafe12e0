"""Searches side by side: who is asked next, what a lost worker costs, and what becomes of answers.

The worker is made up: it lives by a clock of its own, and takes as long as it says.
"""

from pathlib import Path

import pytest

from attnbench.answer.search import GRACE_S
from attnbench.core.record import Record, Status
from attnbench.core.settings import Settings
from attnbench.features.limits import search
from attnbench.features.limits.search import MEMORY, TIME, CallBudget, finding, frontier
from attnbench.sweep.engine import LocalEngine, WorkerLost
from impls.loading import load_file
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

searching = load_file(Path(__file__).with_name("searching.py"))
BUDGET = searching.BUDGET
FORMS = searching.FORMS
planned = searching.planned


class Worker:
    """Answers gates and probes by a made-up cost, and lets its own clock go on meanwhile."""

    def __init__(
        self,
        seconds=lambda name, n: n / 50_000,
        peak=lambda name, n: 1000 * n,
        probe=None,
        gate=None,
    ):
        self.seconds, self.peak, self.probe, self.gate = seconds, peak, probe, gate
        self.now, self.asked, self.closed = 0.0, [], 0

    def ask(self, question, limit_s):
        job = question.get("job") or question["probe"]
        variant, problem = Variant.from_dict(job["variant"]), Problem.from_dict(job["problem"])
        if "job" in question:
            self.asked.append((variant.label, problem.phase, "gate"))
            self.now += 0.1
            status, reason = (self.gate or {}).get(variant.label, (Status.MEASURED, ""))
            return {"record": Record.of(variant, problem, status, reason).to_dict()}
        size = problem.kv_len
        self.asked.append((variant.label, problem.phase, size))
        call = self.seconds(variant.label, size)
        self.now += min(limit_s, 4 * call + 0.1)
        if 4 * call > limit_s:
            raise WorkerLost(f"it was still running after {limit_s:.0f} s", "", timed_out=True)
        if self.probe is not None and (answer := self.probe(variant.label, size)) is not None:
            if isinstance(answer, Exception):
                raise answer
            return {"probe": answer}
        found = {"status": "measured", "time_s": call, "samples_s": [call] * 3, "rows": 16}
        if call <= question["max_time_s"]:
            found["peak_bytes"] = self.peak(variant.label, size)
        return {"probe": found}

    def close(self):
        self.closed += 1


class Nobody:
    def looked(self, limit, said, left_s):
        pass


def hunted(worker, found, seconds=10_000.0, budget=BUDGET, watcher=None):
    hunt = search.Hunt(found, worker, budget, 3, watcher or Nobody(), now=lambda: worker.now)
    for _ in hunt.run(seconds):
        pass
    return frontier(found)


def test_each_is_gated_before_anybody_is_looked_at_and_looked_at_before_anybody_is_again():
    worker = Worker()
    hunted(worker, planned("einsum", "topk", "linear.elu"))
    turns = [what for *_, what in worker.asked]
    assert turns[:6] == ["gate"] * 6 and turns[6:12] == [1024] * 6
    assert len({x[:2] for x in worker.asked[12:18]}) == 6
    assert "gate" not in turns[6:]


def test_of_those_that_were_looked_at_as_often_the_cheapest_is_next():
    worker = Worker(seconds=lambda name, n: n / (90_000 if name == "linear.elu" else 20_000))
    hunted(worker, planned("einsum", "linear.elu", phase=("forward",)))
    second = [x for x in worker.asked if x[2] not in ("gate", 1024)][:2]
    assert [name for name, *_ in second] == ["einsum", "linear.elu"]
    assert second[0][2] < second[1][2]


def test_every_bracket_is_found_where_there_is_time():
    rows = hunted(Worker(), planned("einsum", "topk", "linear.elu"))
    for row in rows:
        assert row["held"]["size"] <= 10_000 < row["fails"]["size"]
        assert row["fails"]["size"] - row["held"]["size"] <= row["held"]["size"] / 16
        assert row["limited_by"] == TIME
        assert row["fails"]["ran"]


def test_time_that_is_spent_leaves_wide_brackets_and_no_blanks():
    worker = Worker()
    rows = hunted(worker, planned("einsum", "topk", "linear.elu"), seconds=4.0)
    assert worker.now <= 4.0 + GRACE_S
    assert all(row["held"] and row["held"]["size"] >= 1024 for row in rows)
    assert all(row["predicted"]["time"] for row in rows)
    assert {row["limited_by"] for row in rows} <= {TIME, MEMORY}


def test_a_look_that_would_not_end_in_time_is_not_begun():
    budget = CallBudget(2 << 30, 5.0)
    worker = Worker(seconds=lambda name, n: n / 4000)
    rows = hunted(worker, planned("topk", budget=budget), seconds=6.0, budget=budget)
    assert [what for *_, what in worker.asked] == ["gate", "gate", 1024, 1024]
    assert worker.now <= 6.0
    assert [row["held"]["size"] for row in rows] == [1024, 1024]


def test_what_a_formula_rules_out_is_not_what_holds_back_where_time_does_before():
    worker = Worker(peak=lambda name, n: 32 * n * n, seconds=lambda name, n: n / 20_000)
    (row,) = hunted(worker, planned("einsum", phase=("forward",)), seconds=1.8)
    assert row["formula"] and row["predicted"]["time"] < row["predicted"]["memory"] == 8192
    assert (row["limited_by"], row["fails"]) == (TIME, None)


def test_who_was_not_looked_at_says_so():
    worker = Worker()
    found = planned("einsum", "topk", "linear.elu")
    rows = hunted(worker, found, seconds=0.25)
    assert [x[2] for x in worker.asked] == ["gate"] * 3
    assert {row["why"] for row in rows} == {"not looked at: the wall clock was spent first"}
    assert {row["why"] for row in frontier(found, stopped=True)} == {
        "not looked at: it was stopped first"
    }


def test_a_row_says_which_budget_it_was_and_what_it_saw():
    worker = Worker(peak=lambda name, n: 40 * n * n, seconds=lambda name, n: 1e-6 * n)
    (row,) = hunted(worker, planned("topk", phase=("forward",)))
    truth = ((2 << 30) / 40) ** 0.5
    assert row["held"]["size"] <= truth < row["fails"]["size"]
    assert (row["fails"]["why"], row["fails"]["reason"]) == (MEMORY, "observed")
    assert row["held"]["peak_bytes"] == 40 * row["held"]["size"] ** 2


def test_an_exact_formula_ends_a_search_at_the_length_that_it_names():
    worker = Worker(peak=lambda name, n: 2 * 16 * n * n, seconds=lambda name, n: 1e-6 * n)
    (row,) = hunted(worker, planned("einsum", phase=("forward",)))
    assert row["held"]["size"] == 8192  # two matrices of 4 heads of float32 in 2 GiB
    assert (row["fails"]["size"], row["fails"]["ran"]) == (8256, False)
    assert row["formula"] is True


@pytest.mark.parametrize(
    ("status", "is_one"),
    [
        (Status.WRONG, True),
        (Status.CRASHED, True),
        (Status.FAILED, True),
        (Status.UNSUPPORTED, False),
        (Status.OUT_OF_MEMORY, False),
    ],
)
def test_who_does_not_pass_the_gate_is_not_searched(status, is_one):
    worker = Worker(gate={"einsum": (status, "row 3 moved")})
    found = planned("einsum", "topk", phase=("forward",))
    rows = {row["variant"]: row for row in hunted(worker, found)}
    assert ("einsum", "forward", 1024) not in worker.asked
    assert "in its gate: row 3 moved" in rows["einsum"]["why"]
    assert rows["einsum"]["held"] is None and rows["topk"]["held"]
    assert finding(found) is is_one


def test_a_length_whose_output_is_wrong_has_no_figures_and_is_a_finding():
    def probe(name, n):
        if n > 3000:
            return {"status": "wrong", "reason": "the relative error of forward is 1"}
        return None

    found = planned("einsum", phase=("forward",))
    (row,) = hunted(Worker(probe=probe), found)
    assert row["held"]["size"] <= 3000 < row["fails"]["size"]
    assert row["limited_by"] == "wrong"
    assert row["fails"]["time_s"] is None and row["fails"]["peak_bytes"] is None
    assert finding(found)


def test_a_worker_that_dies_costs_a_length_and_not_the_search():
    def probe(name, n):
        lost = WorkerLost("the worker died of SIGKILL", "last words", timed_out=False)
        return lost if n > 3000 else None

    found = planned("einsum", phase=("forward",))
    (row,) = hunted(Worker(probe=probe), found)
    assert row["held"]["size"] <= 3000 < row["fails"]["size"]
    assert (row["limited_by"], row["fails"]["reason"]) == ("crashed", "the worker died of SIGKILL")
    assert not finding(found)  # it passed its gate; that it ends somewhere is what was asked


def test_a_call_that_does_not_end_is_over_the_time_and_given_up():
    worker = Worker(seconds=lambda name, n: 0.001 if n < 2500 else 10_000.0)
    (row,) = hunted(worker, planned("einsum", phase=("forward",)))
    assert row["held"]["size"] < 2500 <= row["fails"]["size"]
    assert row["fails"]["why"] == TIME
    patience = search.PATIENCE_S + search.PATIENCE_CALLS * BUDGET.seconds
    assert row["fails"]["reason"] == f"given up after {patience:.0f} s"


def test_what_the_wall_clock_alone_has_ended_is_no_finding_about_a_length():
    worker = Worker(seconds=lambda name, n: 0.001 if n < 2500 else 10_000.0)
    (row,) = hunted(worker, planned("einsum", phase=("forward",)), seconds=10.0)
    assert worker.now <= 10.0 + GRACE_S + 1
    assert row["held"]["size"] == 1024
    assert row["fails"] is None or not row["fails"]["ran"]


def test_what_finds_no_room_is_tried_again_in_a_fresh_worker():
    told = []

    def probe(name, n):
        told.append(n)
        return {"status": "out_of_memory", "reason": "no room"} if told.count(n) == 1 else None

    worker = Worker(probe=probe)
    (row,) = hunted(worker, planned("einsum", phase=("forward",)))
    assert row["held"]["size"] > 9000
    assert worker.closed >= len(set(told))


def test_an_answer_that_is_no_probe_is_a_crash():
    worker = Worker(probe=lambda name, n: {"status": "measured", "nonsense": 1})
    (row,) = hunted(worker, planned("einsum", phase=("forward",)))
    assert row["held"] is None and row["limited_by"] == "crashed"
    assert "the worker's answer is no probe" in row["fails"]["reason"]


def test_a_budget_in_which_not_even_the_shortest_fits_is_a_row_that_says_so():
    budget = CallBudget(1000, 0.2)
    worker = Worker(peak=lambda name, n: 32 * n * n)
    found = planned("einsum", budget=budget, phase=("forward",))
    (row,) = hunted(worker, found, budget=budget)
    assert row["held"] is None
    assert (row["fails"]["size"], row["fails"]["why"]) == (64, MEMORY)
    assert row["why"] == "nothing held that was run, down to seq 64"
    assert not finding(found)


def test_the_longest_is_first_within_a_phase():
    speed = {"einsum": 1e4, "topk": 2e4, "linear.elu": 4e4}
    rows = hunted(Worker(seconds=lambda name, n: n / speed[name]), planned(*speed))
    assert [(r["phase"], r["variant"]) for r in rows] == [
        (phase, name) for phase in ("forward", "train") for name in ("linear.elu", "topk", "einsum")
    ]


def test_rows_named_that_can_not_be_asked_say_why_and_are_not():
    worker = Worker()
    rows = hunted(worker, planned("sdpa.cudnn", "numpy", phase=("train",)))
    why = {row["variant"]: row["why"] for row in rows}
    assert why["sdpa.cudnn"].startswith("unavailable: sdpa.cudnn runs on cuda")
    assert why["numpy"].startswith("unsupported: numpy serves forward")
    assert worker.asked == []


def test_several_masks_are_searched_apart():
    found = planned("einsum", mask=("none", "causal"), phase=("forward",))
    rows = hunted(Worker(), found)
    assert [row["mask"] for row in rows] == ["none", "causal"]
    assert {str(Mask.parse(row["mask"])) for row in rows} == {"none", "causal"}


@pytest.fixture(scope="module")
def engine():
    with LocalEngine(Settings()) as one:
        yield one


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mib"), [("einsum", 64), ("sdpa.flash", 3), ("linear.elu", 24)])
def test_what_is_found_by_running_is_what_the_closed_form_says(engine, name, mib):
    budget = CallBudget(mib << 20, 30.0)
    found = planned(name, budget=budget, phase=("forward",))
    hunt = search.Hunt(found, engine, budget, 0, Nobody())
    for _ in hunt.run(120.0):
        pass
    (row,) = frontier(found)
    assert row["limited_by"] == MEMORY
    low, high = row["held"]["size"], row["fails"]["size"]
    if name in FORMS:
        assert FORMS[name](low) <= budget.peak_bytes < FORMS[name](high)
        assert row["held"]["peak_bytes"] == pytest.approx(FORMS[name](low), rel=0.01)
        assert high - low == 64 and not row["fails"]["ran"]
    else:  # features of queries and keys, the output: in proportion to the length
        each = row["held"]["peak_bytes"] / low
        assert each * low <= budget.peak_bytes < each * high * 1.05
        assert row["fails"]["ran"] and high - low <= max(64, low / 16)
