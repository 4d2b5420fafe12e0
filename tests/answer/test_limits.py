"""The search of limits, by closed forms: where each look goes, and what becomes of answers."""

import pytest

import impls
from attnbench.answer.search import GRACE_S, sized, take_looks
from attnbench.core.machine import this_machine
from attnbench.core.record import Probed, Record, Status
from attnbench.core.settings import Settings
from attnbench.core.wire import convert, plain
from attnbench.features.limits import search as limits
from attnbench.features.limits.search import MEMORY, TIME, CallBudget, LimitSearch, rows_of
from attnbench.sweep.engine import LocalEngine, WorkerLost
from attnbench.sweep.plan import Cell
from attnbench.sweep.presets import PRESETS
from impls.problem import Problem
from impls.spec import Variant

GIB = 1 << 30
BUDGET = CallBudget(2 * GIB, 0.2)
GRID = PRESETS["compare-cpu"].with_(seq=(limits.GATE_SEQ,), phase=("forward", "train"))


def make(peak_bytes=GIB, seconds=1.0, formula=lambda n: None, by="seq"):
    cell = Cell(impls.table().find("matmul"), Problem(), None, 0.0)
    search = LimitSearch(cell, by, CallBudget(peak_bytes, seconds))
    search.formula = formula
    return search


def run(search, time_s=lambda n: 1e-9 * n, peak=lambda n: n, crash=1 << 40, hang=1 << 40):
    """Run what is asked for until the search ends; returns every size that was asked."""
    asked = []
    while (size := search.next()) is not None:
        assert size in search.rungs and size not in asked and len(asked) < 40
        asked.append(size)
        result = Probed(status=Status.MEASURED, time_s=time_s(size), peak_bytes=peak(size))
        if size > crash:
            result = Probed(status=Status.CRASHED, reason="it died")
        elif size > hang:
            result = Probed(status=Status.TIMED_OUT, reason="given up after 20 s")
        search.looks.append(search.look(size, result))
    return asked


def bracketed(search, truth, why):
    """Does the bracket hold the truth, between two rungs?"""
    held, end = search.best.size, search.end
    assert search.why(end.result) == why
    next_rung = search.rungs[search.rungs.index(held) + 1]
    return held <= truth < end.size == next_rung


@pytest.mark.parametrize(
    ("truth", "why", "most", "world"),
    [
        *(
            (truth, TIME, 9, {"time_s": lambda n, t=truth, p=power: (n / t) ** p})
            for truth in (300, 9000, 400_000)
            for power in (1.0, 1.7, 2.0)
        ),
        (49_500, TIME, 7, {"time_s": lambda n: 0.01 + n / 50_000}),  # overhead in small calls
        (5777, MEMORY, 12, {"peak": lambda n: 32 * n * n + 1000 * n}),
        (176, MEMORY, 12, {"peak": lambda n: 32 * n * n * GIB // 10**6}),
        (3000, "crashed", 12, {"crash": 3000}),
        (5000, TIME, 14, {"hang": 5000}),
        (8999, TIME, 15, {"time_s": lambda n: 1 / n if n < 9000 else 2.0}),  # falls with the length
    ],
)
def test_without_a_formula_the_bracket_is_run(truth, why, most, world):
    search = make()
    assert len(run(search, **world)) <= most
    assert bracketed(search, truth, why)


@pytest.mark.parametrize(
    ("by", "truth", "most"), [(1.0, 8192, 3), (0.5, 11585, 5), (1.1, 7810, 5), (2.0, 5792, 5)]
)
def test_a_formula_leads_there_though_it_be_wrong(by, truth, most):
    search = make(2 * GIB, formula=lambda n: 32 * n * n)
    asked = run(search, peak=lambda n: int(by * 32 * n * n))
    assert bracketed(search, truth, MEMORY) and len(asked) <= most


FORMS = {
    "einsum": lambda n: 2 * 4 * n * n * 4,
    "sdpa.flash": lambda n: 4 * n * (64 + 1) * 4 + 256 * (512 + 2 + 64) * 4,
}
"""Scores and weights of 4 heads; an output, a log-sum a row and one thread's tile."""


def planned(*names, budget=BUDGET, by="seq", **changes):
    return limits.plan(impls.table(), names, GRID.with_(**changes), by, budget, this_machine())


def test_without_names_it_is_every_core_that_can_run_here():
    searches = planned()
    names = {x.variant.name for x in searches}
    assert {"einsum", "sdpa.flash", "linear.elu", "delta"} <= names
    assert not names & {"sdpa.cudnn", "flash_attn2", "mha", "lsh"}  # elsewhere, a layer, no causal
    assert not [x for x in searches if x.variant.name == "numpy" and x.problem.phase == "train"]
    (search,) = planned("sdpa.flash", phase=("decode",))
    assert str(sized(search.problem, "seq", 512)) == "b1 h4/4 n1x512 d64 f32 causal decode"
    assert str(sized(search.problem, "batch", 9)) == "b9 h4/4 n1x256 d64 f32 causal decode"
    (away,) = searched(Worker(), planned("sdpa.cudnn", phase=("forward",)))
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
        variant, problem = convert(job["variant"], Variant), convert(job["problem"], Problem)
        if "job" in question:
            self.asked.append((variant.label, "gate"))
            self.now += 0.1
            status, reason = self.gate.get(variant.label, (Status.MEASURED, ""))
            return {"record": plain(Record.of(variant, problem, status, reason))}
        size = problem.kv_len
        self.asked.append((variant.label, size))
        call = self.seconds(variant.label, size)
        self.now += min(limit_s, 4 * call + 0.1)
        if 4 * call > limit_s:
            raise WorkerLost(f"it was still running after {limit_s:.0f} s", "", timed_out=True)
        if (answer := self.probe(size)) is not None:
            if isinstance(answer, Exception):
                raise answer
            return {"probe": answer}
        result = {"status": "measured", "time_s": call, "samples_s": [call] * 3, "rows": 16}
        if call <= question["max_time_s"]:
            result["peak_bytes"] = self.peak(size)
        return {"probe": result}

    def close(self):
        self.closed += 1


def searched(worker, searches, seconds=10_000.0):
    for _ in take_looks(searches, limits.probes_by(worker, 3), seconds, now=lambda: worker.now):
        pass
    return rows_of(searches)


def row_of(worker, name="einsum", seconds=10_000.0):
    searches = planned(name, phase=("forward",))
    (row,) = searched(worker, searches, seconds)
    return row, searches


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ({"status": "wrong", "reason": "the error is 1"}, "wrong", "the error is 1"),
        (WorkerLost("SIGKILL", "last words", timed_out=False), "crashed", "SIGKILL"),
        (WorkerLost("it wrote", "", timed_out=False, wrong=True), "wrong", "it wrote"),
        ({"status": "measured", "nonsense": 1}, "crashed", "the worker's answer is no probe"),
    ],
)
def test_a_bad_answer_costs_a_length_and_not_the_search(answer, status, reason):
    row, searches = row_of(Worker(probe=lambda n: answer if n > 3000 else None))
    assert row["held"]["size"] <= 3000 < row["fails"]["size"]
    assert row["limited_by"] == status and row["fails"]["reason"].startswith(reason)
    assert row["fails"]["time_s"] is None and row["fails"]["peak_bytes"] is None
    assert limits.finding(searches) == (status == "wrong")  # a crash beyond its gate is a limit


def test_a_call_that_does_not_end_is_over_the_time_unless_the_wall_clock_ended_it():
    def seconds(name, n):
        return 0.001 if n < 2500 else 10_000.0

    fails = row_of(Worker(seconds=seconds))[0]["fails"]
    patience = limits.PATIENCE_S + limits.PATIENCE_CALLS * BUDGET.seconds
    assert (fails["why"], fails["reason"]) == (TIME, f"given up after {patience:.0f} s")
    worker = Worker(seconds=seconds)
    row, _ = row_of(worker, seconds=10.0)
    assert worker.now <= 10.0 + GRACE_S + 1 and row["held"]["size"] == 1024
    assert row["fails"] is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mib"), [("einsum", 64), ("sdpa.flash", 3)])
def test_what_is_found_by_running_is_what_the_closed_form_says(name, mib):
    searches = planned(name, budget=CallBudget(mib << 20, 30.0), phase=("forward",))
    budget = mib << 20
    assert FORMS[name](searches[0].reach(MEMORY)) <= budget
    with LocalEngine(Settings()) as engine:
        list(take_looks(searches, limits.probes_by(engine, 0), 120.0))
    (row,) = rows_of(searches)
    low, high = row["held"]["size"], row["fails"]["size"]
    assert row["limited_by"] == MEMORY
    assert FORMS[name](low) <= budget < FORMS[name](high)
    assert row["held"]["peak_bytes"] == pytest.approx(FORMS[name](low), rel=0.01)
    assert high - low <= max(64, low / 16)
