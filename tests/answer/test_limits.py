"""The search of limits, by closed forms: where each look goes, and what becomes of answers."""

import pytest

import impls
from attnbench.answer.search import GRACE_S, sized
from attnbench.core.machine import this_machine
from attnbench.core.record import Record, Status
from attnbench.core.settings import Settings
from attnbench.features.limits import search
from attnbench.features.limits.search import MEMORY, TIME, CallBudget, Hunt, SizeResult, frontier
from attnbench.sweep.engine import LocalEngine, WorkerLost
from attnbench.sweep.presets import PRESETS
from impls.problem import Problem
from impls.spec import Variant

SIZES = search.Sizes(step=64, shortest=64, longest=1 << 20, start=1024)
GIB = 1 << 30
BUDGET = CallBudget(2 * GIB, 0.2)
GRID = PRESETS["compare-cpu"].with_(seq=(search.GATE_SEQ,), phase=("forward", "train"))


@pytest.fixture(autouse=True)
def a_pace(monkeypatch):
    """Guesses at seconds are the same on a fast machine and on a slow one."""
    monkeypatch.setattr(search, "pace", lambda: 1.0)


def make(peak_bytes=GIB, seconds=1.0, expected=lambda n: None, sizes=SIZES):
    return search.LimitSearch(CallBudget(peak_bytes, seconds), sizes, expected)


def run(one, time_s=lambda n: 1e-9 * n, peak=lambda n: n, crash=1 << 40, hang=1 << 40):
    """Run what is asked for until the search ends; returns every size that was asked."""
    asked = []
    while (size := one.next()) is not None:
        assert size % one.sizes.step == 0 and size not in asked and len(asked) < 40
        asked.append(size)
        took, needs = time_s(size), peak(size)
        result = SizeResult(size, "", "", took, needs)
        if size > crash:
            result = SizeResult(size, "crashed", "it died")
        elif size > hang:
            result = SizeResult(size, TIME, "given up after 20 s")
        elif took > one.budget.seconds:
            result = SizeResult(size, TIME, "a call took longer", took)
        elif needs > one.budget.peak_bytes:
            result = SizeResult(size, MEMORY, "observed", took, needs)
        one.looks.append(result)
    return asked


def bracketed(one, truth, why, ran=True):
    """Whether the bracket holds the truth, and is no wider than a sixteenth or a step."""
    held, failed = one.held.size, one.failed.size
    assert (one.failed.why, one.failed.ran) == (why, ran)
    return held <= truth < failed and failed - held <= (one.sizes.width(held) if ran else 64)


def test_without_a_formula_the_bracket_is_run():
    for truth, why, most, world in (
        *(
            (truth, TIME, 9, {"time_s": lambda n, t=truth, p=power: (n / t) ** p})
            for truth in (300, 9000, 400_000)
            for power in (1.0, 1.7, 2.0)
        ),
        (49_500, TIME, 6, {"time_s": lambda n: 0.01 + n / 50_000}),  # overhead in small calls
        (5777, MEMORY, 12, {"peak": lambda n: 32 * n * n + 1000 * n}),
        (176, MEMORY, 12, {"peak": lambda n: 32 * n * n * GIB // 10**6}),
        (3000, "crashed", 12, {"crash": 3000}),
        (5000, TIME, 14, {"hang": 5000}),
        (8999, TIME, 15, {"time_s": lambda n: 1 / n if n < 9000 else 2.0}),  # falls with the length
    ):
        one = make()
        assert len(run(one, **world)) <= most
        assert bracketed(one, truth, why)


def test_an_exact_formula_rules_out_and_a_wrong_one_only_leads_there():
    for by, truth, most in ((1.0, 8192, 2), (0.5, 11585, 5), (1.1, 7810, 5), (2.0, 5792, 5)):
        one = make(2 * GIB, expected=lambda n: 32 * n * n)
        asked = run(one, peak=lambda n, by=by: int(by * 32 * n * n))
        assert bracketed(one, truth, MEMORY, ran=by != 1.0) and len(asked) <= most
    one = make(2 * GIB, expected=lambda n: 32 * n * n)  # exact for short ones alone
    run(one, peak=lambda n: 32 * n * n * (1 if n <= 2048 else 2))
    assert bracketed(one, 5792, MEMORY)


def test_both_ends_of_the_sizes():
    one = make(1000, expected=lambda n: n * n)
    assert run(one, peak=lambda n: n * n) == [64]
    assert one.held is None and (one.failed.size, one.failed.ran) == (64, True)
    assert make(10**6, expected=lambda n: 32 * n * n).next() == 128  # 176 would fit
    one = make(1 << 60, 1e9)
    run(one)
    assert one.held.size == SIZES.longest and one.failed is None and one.next() is None
    batches = search.Sizes(step=1, shortest=1, longest=1 << 20, start=1)
    one = make(37 * 10**6, sizes=batches)
    run(one, peak=lambda n: n * 10**6)
    assert one.held.size <= 37 < one.failed.size <= one.held.size + 2


FORMS = {
    "einsum": lambda n: 2 * 4 * n * n * 4,
    "sdpa.flash": lambda n: 4 * n * (64 + 1) * 4 + 256 * (512 + 2 + 64) * 4,
}
"""Scores and weights of 4 heads; an output, a log-sum a row and one thread's tile."""


def planned(*names, budget=BUDGET, by="seq", **changes):
    return search.plan(impls.table(), names, GRID.with_(**changes), by, budget, this_machine())


def test_without_names_it_is_every_core_that_can_run_here():
    found = planned()
    names = {x.variant.name for x in found}
    assert {"einsum", "sdpa.flash", "linear.elu", "delta"} <= names
    assert not names & {"sdpa.cudnn", "flash_attn2", "mha", "lsh"}  # elsewhere, a layer, no causal
    (limit,) = planned("sdpa.flash", phase=("decode",))
    assert sized(limit.problem, "seq", 512).slug == "b1 h4/4 n1x512 d64 f32 causal decode"
    assert sized(limit.problem, "batch", 9).slug == "b9 h4/4 n1x256 d64 f32 causal decode"
    assert not [x for x in found if x.variant.name == "numpy" and x.problem.phase == "train"]
    (away,) = hunted(Worker(), planned("sdpa.cudnn", phase=("forward",)))
    assert away["why"].startswith("unavailable: sdpa.cudnn needs CUDA")


class Worker:
    """Answers gates and probes by made-up costs, while its own clock goes on."""

    def __init__(self, seconds=None, peak=None, probe=None, gate=None):
        self.seconds = seconds or (lambda name, n: n / 50_000)
        self.peak = peak or (lambda n: 1000 * n)
        self.probe, self.gate = probe or (lambda n: None), gate or {}
        self.now, self.asked, self.closed = 0.0, [], 0

    def ask(self, question, limit_s):
        job = question.get("job") or question["probe"]
        variant, problem = Variant.from_dict(job["variant"]), Problem.from_dict(job["problem"])
        if "job" in question:
            self.asked.append((variant.label, problem.phase, "gate"))
            self.now += 0.1
            status, reason = self.gate.get(variant.label, (Status.MEASURED, ""))
            return {"record": Record.of(variant, problem, status, reason).to_dict()}
        size = problem.kv_len
        self.asked.append((variant.label, problem.phase, size))
        call = self.seconds(variant.label, size)
        self.now += min(limit_s, 4 * call + 0.1)
        if 4 * call > limit_s:
            raise WorkerLost(f"it was still running after {limit_s:.0f} s", "", timed_out=True)
        if (answer := self.probe(size)) is not None:
            if isinstance(answer, Exception):
                raise answer
            return {"probe": answer}
        found = {"status": "measured", "time_s": call, "samples_s": [call] * 3, "rows": 16}
        if call <= question["max_time_s"]:
            found["peak_bytes"] = self.peak(size)
        return {"probe": found}

    def close(self):
        self.closed += 1


def hunted(worker, found, seconds=10_000.0, budget=BUDGET):
    list(Hunt(found, worker, budget, 3, now=lambda: worker.now).run(seconds))
    return frontier(found)


def row_of(worker, name="einsum", **more):
    found = planned(name, phase=("forward",), budget=more.get("budget", BUDGET))
    (row,) = hunted(worker, found, **more)
    return row, found


THREE = ("einsum", "topk", "linear.elu")


def test_time_that_is_spent_leaves_wide_brackets_and_no_blanks():
    worker = Worker()
    rows = hunted(worker, planned(*THREE), seconds=4.0)
    assert worker.now <= 4.0 + GRACE_S
    assert all(row["held"]["size"] >= 1024 and row["predicted"]["time"] for row in rows)
    assert {row["limited_by"] for row in rows} <= {TIME, MEMORY}
    budget, worker = CallBudget(2 * GIB, 5.0), Worker(seconds=lambda name, n: n / 4000)
    hunted(worker, planned("topk", budget=budget), seconds=6.0, budget=budget)
    assert [what for *_, what in worker.asked] == ["gate", "gate", 1024, 1024]
    assert worker.now <= 6.0  # a look that would not end in time is not begun
    worker, found = Worker(), planned(*THREE)
    rows = hunted(worker, found, seconds=0.25)
    assert [x[2] for x in worker.asked] == ["gate"] * 3
    assert {row["why"] for row in rows} == {"not looked at: the wall clock was spent first"}
    stopped = {row["why"] for row in frontier(found, stopped=True)}
    assert stopped == {"not looked at: it was stopped first"}


@pytest.mark.parametrize(("status", "is_finding"), [("wrong", True), ("out_of_memory", False)])
def test_a_variant_that_does_not_pass_its_gate_is_not_searched(status, is_finding):
    worker = Worker(gate={"einsum": (Status(status), "row 3 moved")})
    found = planned("einsum", "topk", phase=("forward",))
    rows = {row["variant"]: row for row in hunted(worker, found)}
    assert ("einsum", "forward", 1024) not in worker.asked
    assert "in its correctness check: row 3 moved" in rows["einsum"]["why"]
    assert rows["einsum"]["held"] is None and rows["topk"]["held"]
    assert search.finding(found) is is_finding


def test_a_bad_answer_costs_a_length_and_not_the_search():
    for answer, status, reason in (
        ({"status": "wrong", "reason": "the error is 1"}, "wrong", "the error is 1"),
        (WorkerLost("SIGKILL", "last words", timed_out=False), "crashed", "SIGKILL"),
        (WorkerLost("it wrote", "", timed_out=False, wrong=True), "wrong", "it wrote"),
        ({"status": "measured", "nonsense": 1}, "crashed", "the worker's answer is no probe"),
    ):
        row, found = row_of(Worker(probe=lambda n, answer=answer: answer if n > 3000 else None))
        assert row["held"]["size"] <= 3000 < row["fails"]["size"]
        assert row["limited_by"] == status and row["fails"]["reason"].startswith(reason)
        assert row["fails"]["time_s"] is None and row["fails"]["peak_bytes"] is None
        assert search.finding(found) == (status == "wrong")  # a crash beyond its gate is a limit


def test_a_call_that_does_not_end_is_over_the_time_unless_the_wall_clock_ended_it():
    def seconds(name, n):
        return 0.001 if n < 2500 else 10_000.0

    fails = row_of(Worker(seconds=seconds))[0]["fails"]
    patience = search.PATIENCE_S + search.PATIENCE_CALLS * BUDGET.seconds
    assert (fails["why"], fails["reason"]) == (TIME, f"given up after {patience:.0f} s")
    worker = Worker(seconds=seconds)
    row, _ = row_of(worker, seconds=10.0)
    assert worker.now <= 10.0 + GRACE_S + 1 and row["held"]["size"] == 1024
    assert row["fails"] is None or not row["fails"]["ran"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mib"), [("einsum", 64), ("sdpa.flash", 3)])
def test_what_is_found_by_running_is_what_the_closed_form_says(name, mib):
    budget = CallBudget(mib << 20, 30.0)
    found = planned(name, budget=budget, phase=("forward",))
    assert FORMS[name](found[0].search.reaches(MEMORY)) <= budget.peak_bytes
    with LocalEngine(Settings()) as engine:
        list(Hunt(found, engine, budget, 0).run(120.0))
    (row,) = frontier(found)
    low, high = row["held"]["size"], row["fails"]["size"]
    assert row["limited_by"] == MEMORY
    assert FORMS[name](low) <= budget.peak_bytes < FORMS[name](high)
    assert row["held"]["peak_bytes"] == pytest.approx(FORMS[name](low), rel=0.01)
    assert high - low == 64 and not row["fails"]["ran"]
