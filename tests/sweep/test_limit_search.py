"""The search of limits: where each look goes, whose turn it is, and what becomes of answers.

Times and peaks are closed forms. The worker lives by a clock of its own, and takes as long as it
says.
"""

import pytest

import impls
from attnbench.answer.search import GRACE_S
from attnbench.core.machine import this_machine
from attnbench.core.record import Record, Status
from attnbench.features.limits import search
from attnbench.features.limits.search import (
    MEMORY,
    TIME,
    CallBudget,
    Hunt,
    LimitSearch,
    SizeResult,
    Sizes,
    finding,
    frontier,
)
from attnbench.sweep.engine import WorkerLost
from attnbench.sweep.presets import PRESETS
from impls.problem import InvalidProblem, Problem
from impls.spec import Variant

SIZES = Sizes(step=64, shortest=64, longest=1 << 20, start=1024)
BATCHES = Sizes(step=1, shortest=1, longest=1 << 20, start=1)
GIB = 1 << 30
BUDGET = CallBudget(2 * GIB, 0.2)
GRID = PRESETS["cpu"].with_(seq=(search.GATE_SEQ,))


# ---- where each look goes ------------------------------------------------------------------------


def make(
    peak_bytes=GIB, seconds=1.0, expected=lambda n: None, work=lambda n: float(n * n), sizes=SIZES
):
    return LimitSearch(CallBudget(peak_bytes, seconds), sizes, expected, work)


def run(one, time_s=lambda n: 1e-9 * n, peak=lambda n: n, crash=None, hang=None, most=40):
    """Run what is asked for until the search ends; returns every size that was asked."""
    asked = []
    while (size := one.next()) is not None:
        assert size % one.sizes.step == 0 and size not in asked and len(asked) < most
        asked.append(size)
        took, needs = time_s(size), peak(size)
        result = SizeResult(size, "", "", took, needs)
        if crash is not None and size > crash:
            result = SizeResult(size, "crashed", "it died")
        elif hang is not None and size > hang:
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


@pytest.mark.parametrize("power", [1.0, 1.3, 1.7, 2.0])
@pytest.mark.parametrize("truth", [300, 1500, 9000, 400_000])
def test_a_limit_of_time_takes_few_looks_whatever_its_power(power, truth):
    one = make()
    assert len(run(one, time_s=lambda n: (n / truth) ** power)) <= 9
    assert bracketed(one, truth, TIME)


@pytest.mark.parametrize(
    ("truth", "why", "most", "world"),
    [
        (49_500, TIME, 6, {"time_s": lambda n: 0.01 + n / 50_000}),  # overhead in small calls
        (5777, MEMORY, 12, {"peak": lambda n: 32 * n * n + 1000 * n}),
        (176, MEMORY, 12, {"peak": lambda n: 32 * n * n * GIB // 10**6}),
        (3000, "crashed", 12, {"crash": 3000}),
        (5000, TIME, 14, {"hang": 5000}),
        (8999, TIME, 15, {"time_s": lambda n: 1 / n if n < 9000 else 2.0}),  # falls with the length
    ],
)
def test_without_a_formula_the_bracket_is_run(truth, why, most, world):
    one = make()
    assert len(run(one, **world)) <= most
    assert bracketed(one, truth, why)


@pytest.mark.parametrize(
    ("wrong_by", "truth", "most"),
    [(1.0, 8192, 2), (0.5, 11585, 5), (0.9, 8635, 5), (1.1, 7810, 5), (2.0, 5792, 5)],
)
def test_an_exact_formula_rules_out_and_a_wrong_one_only_leads_there(wrong_by, truth, most):
    one = make(2 * GIB, expected=lambda n: 32 * n * n)
    asked = run(one, peak=lambda n: int(wrong_by * 32 * n * n))
    assert bracketed(one, truth, MEMORY, ran=wrong_by != 1.0)
    assert len(asked) <= most
    if wrong_by == 1.0:
        assert (one.held.size, one.failed.size, max(asked)) == (8192, 8256, 8192)


def test_a_formula_that_held_for_short_ones_is_not_believed_beyond_what_ran():
    one = make(2 * GIB, expected=lambda n: 32 * n * n)
    run(one, peak=lambda n: 32 * n * n * (1 if n <= 2048 else 2))
    assert bracketed(one, 5792, MEMORY)


def test_both_ends_of_the_sizes():
    one = make(1000, expected=lambda n: n * n)
    assert run(one, peak=lambda n: n * n) == [64]
    assert one.held is None and (one.failed.size, one.failed.ran) == (64, True)
    assert make(10**6, expected=lambda n: 32 * n * n).next() == 128  # 176 would fit
    one = make(1 << 60, 1e9)
    run(one)
    assert one.held.size == SIZES.longest and one.failed is None and one.done
    one = make(37 * 10**6, sizes=BATCHES, work=float)
    run(one, peak=lambda n: n * 10**6)
    assert one.held.size <= 37 < one.failed.size <= one.held.size + 2


# ---- what is searched ----------------------------------------------------------------------------

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
    assert {x.problem.phase for x in found} == {"forward", "train"}
    assert not [x for x in found if x.variant.name == "numpy" and x.problem.phase == "train"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"heads": (2, 4)}, "limits takes one value of heads: what is searched is the seq alone"),
        ({"seq": ("64", "128")}, "limits takes one value of seq"),
        ({"inputs": ("captured:x.npz",)}, "captured inputs have one length"),
        ({"mask": ("document:100,156",)}, "the seq under this mask: at 64, .*use --by batch"),
        ({"mask": ("causal+prefix:100",)}, "at 64, mask prefix:100"),
        (
            {"by": "batch", "batch": (3,), "mask": ("padding:90,128,256",)},
            "under this mask: at 2, .*use --by seq",
        ),
    ],
)
def test_what_makes_no_search_is_refused(changes, said):
    with pytest.raises(InvalidProblem, match=said):
        planned("einsum", **changes)


@pytest.mark.parametrize("name", FORMS)
def test_the_limit_by_formula_is_that_of_a_form_written_out_here(name):
    (limit,) = planned(name, phase=("forward",))
    found = limit.search.reaches(MEMORY)
    assert FORMS[name](found) <= BUDGET.peak_bytes < FORMS[name](found + 64)


# ---- looks in turn -------------------------------------------------------------------------------


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

    def looked(self, limit, said, left_s):
        pass


def hunted(worker, found, seconds=10_000.0, budget=BUDGET):
    for _ in Hunt(found, worker, budget, 3, worker, now=lambda: worker.now).run(seconds):
        pass
    return frontier(found)


def row_of(worker, name="einsum", **more):
    found = planned(name, phase=("forward",), budget=more.get("budget", BUDGET))
    (row,) = hunted(worker, found, **more)
    return row, found


THREE = ("einsum", "topk", "linear.elu")


def test_every_bracket_is_found_where_there_is_time_and_the_longest_is_first():
    speed = {"einsum": 1e4, "topk": 2e4, "linear.elu": 4e4}
    rows = hunted(Worker(seconds=lambda name, n: n / speed[name]), planned(*speed))
    assert [(r["phase"], r["variant"]) for r in rows] == [
        (phase, name) for phase in ("forward", "train") for name in ("linear.elu", "topk", "einsum")
    ]
    for row in rows:
        held, fails = row["held"]["size"], row["fails"]
        assert held <= 0.2 * speed[row["variant"]] < fails["size"] <= held + max(64, held / 16)
        assert row["limited_by"] == TIME and fails["ran"]
    masks = hunted(Worker(), planned("einsum", mask=("none", "causal"), phase=("forward",)))
    assert [row["mask"] for row in masks] == ["none", "causal"]


def test_time_that_is_spent_leaves_wide_brackets_and_no_blanks():
    worker = Worker()
    rows = hunted(worker, planned(*THREE), seconds=4.0)
    assert worker.now <= 4.0 + GRACE_S
    assert all(row["held"]["size"] >= 1024 and row["predicted"]["time"] for row in rows)
    assert {row["limited_by"] for row in rows} <= {TIME, MEMORY}
    budget, worker = CallBudget(2 * GIB, 5.0), Worker(seconds=lambda name, n: n / 4000)
    rows = hunted(worker, planned("topk", budget=budget), seconds=6.0, budget=budget)
    assert [what for *_, what in worker.asked] == ["gate", "gate", 1024, 1024]
    assert worker.now <= 6.0  # a look that would not end in time is not begun


def test_a_row_says_which_budget_it_was():
    def peak(n):
        return 32 * n * n

    row, _ = row_of(Worker(seconds=lambda name, n: n / 20_000, peak=peak), seconds=1.8)
    assert row["formula"] and row["predicted"]["time"] < row["predicted"]["memory"] == 8192
    assert (row["limited_by"], row["fails"]) == (TIME, None)  # ruled out, but time comes first
    row, _ = row_of(Worker(seconds=lambda name, n: 1e-6 * n, peak=peak))
    assert (row["held"]["size"], row["fails"]["size"], row["fails"]["ran"]) == (8192, 8256, False)
    row, _ = row_of(
        Worker(seconds=lambda name, n: 1e-6 * n, peak=lambda n: 40 * n * n), name="topk"
    )
    assert row["held"]["size"] <= (2 * GIB / 40) ** 0.5 < row["fails"]["size"]
    assert (row["fails"]["why"], row["fails"]["reason"]) == (MEMORY, "observed")
    assert row["held"]["peak_bytes"] == 40 * row["held"]["size"] ** 2
    budget = CallBudget(1000, 0.2)
    row, found = row_of(Worker(peak=peak), budget=budget)
    assert (row["held"], row["fails"]["size"], row["fails"]["why"]) == (None, 64, MEMORY)
    assert row["why"] == "nothing held that was run, down to seq 64" and not finding(found)


@pytest.mark.parametrize(
    ("status", "is_finding"),
    [("wrong", True), ("crashed", True), ("failed", True), ("out_of_memory", False)],
)
def test_a_variant_that_does_not_pass_its_gate_is_not_searched(status, is_finding):
    worker = Worker(gate={"einsum": (Status(status), "row 3 moved")})
    found = planned("einsum", "topk", phase=("forward",))
    rows = {row["variant"]: row for row in hunted(worker, found)}
    assert ("einsum", "forward", 1024) not in worker.asked
    assert "in its gate: row 3 moved" in rows["einsum"]["why"]
    assert rows["einsum"]["held"] is None and rows["topk"]["held"]
    assert finding(found) is is_finding


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
    row, found = row_of(Worker(probe=lambda n: answer if n > 3000 else None))
    assert row["held"]["size"] <= 3000 < row["fails"]["size"]
    assert row["limited_by"] == status and row["fails"]["reason"].startswith(reason)
    assert row["fails"]["time_s"] is None and row["fails"]["peak_bytes"] is None
    assert finding(found) == (status == "wrong")  # a crash beyond its gate is a limit


def test_a_call_that_does_not_end_is_over_the_time_unless_the_wall_clock_ended_it():
    def seconds(name, n):
        return 0.001 if n < 2500 else 10_000.0

    row, _ = row_of(Worker(seconds=seconds))
    assert row["held"]["size"] < 2500 <= row["fails"]["size"]
    patience = search.PATIENCE_S + search.PATIENCE_CALLS * BUDGET.seconds
    assert (row["fails"]["why"], row["fails"]["reason"]) == (
        TIME,
        f"given up after {patience:.0f} s",
    )
    worker = Worker(seconds=seconds)
    row, _ = row_of(worker, seconds=10.0)
    assert worker.now <= 10.0 + GRACE_S + 1 and row["held"]["size"] == 1024
    assert row["fails"] is None or not row["fails"]["ran"]


def test_what_runs_out_of_memory_is_tried_again_in_a_fresh_worker():
    tried = []

    def probe(n):
        tried.append(n)
        return {"status": "out_of_memory", "reason": "no room"} if tried.count(n) == 1 else None

    worker = Worker(probe=probe)
    row, _ = row_of(worker)
    assert row["held"]["size"] > 9000 and worker.closed >= len(set(tried))
