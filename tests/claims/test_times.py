"""Claims whose figures are times, with a worker that answers with times made up."""

import math
from contextlib import nullcontext

import pytest

from attnbench.core.record import Distance, Record, Status, Time
from attnbench.core.wire import convert, plain
from attnbench.features.claims import claim as claims
from attnbench.features.claims import efficient, timing
from attnbench.features.claims.claim import ClaimOutcome, ClaimRequest, ClaimVerdict
from attnbench.features.claims.timing import flops, problem_of
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Variant
from tests.times import figures, pairs_answer


def record_of(job, seconds, spread, far):
    variant, problem = convert(job["variant"], Variant), convert(job["problem"], Problem)
    if seconds is None:
        return plain(Record.of(variant, problem, Status.OUT_OF_MEMORY, "it was too much"))
    ends = {"low_s": seconds * (1 - spread), "high_s": seconds * (1 + spread)}
    known = {**figures([seconds] * 9), **ends}
    time = Time(clock="host", stop="converged", clocks={"sm_mhz": 1980.0}, **known)
    return plain(Record.of(variant, problem, Status.MEASURED).with_(time=time, distance=far))


class Worker:
    """Times by variant and problem, as a function says them; skills by name."""

    def __init__(self, seconds, skill=0.9, spread=0.001):
        self.seconds, self.spread = seconds, spread
        self.far = Distance(relative=0.1, max=1.0, worst_row=1.0, cosine=0.9, skill=skill)

    def ask(self, question, limit_s):
        if "ceilings" in question:
            return {"ceilings": {"flops": {}, "copy": {}}}
        if "compare" not in question:
            seconds = self._seconds(question["job"])
            return {"record": record_of(question["job"], seconds, self.spread, self.far)}
        a_s, b_s = (self._seconds(job) for job in question["compare"])
        ratios = [math.log(b_s / a_s) + self.spread * (n % 5 - 2) for n in range(40)]
        return pairs_answer(ratios, question["margin"], a_s, b_s)

    def _seconds(self, job):
        variant, problem = convert(job["variant"], Variant), convert(job["problem"], Problem)
        return self.seconds(variant.label, problem)


@pytest.fixture
def tried(monkeypatch):
    def made(name, *worker, **more):
        engine = nullcontext(Worker(*worker, **more))
        for module in (timing, efficient):
            monkeypatch.setattr(module, "engine_on", lambda device, settings: engine)
        (claim,) = claims.find([name])
        cells = {point.name: point.cell for point in claim.points if point.cell}
        findings = load_function(claim.measure)(ClaimRequest(cells, seconds=60.0))
        return ClaimOutcome.of(claim, findings)

    return made


@pytest.mark.parametrize(
    ("share", "spread", "verdict", "reason"),
    [
        (0.002, 0.001, ClaimVerdict.REPRODUCED, ""),
        (0.05, 0.001, ClaimVerdict.NOT_REPRODUCED, "does not hold"),
        (0.01, 0.02, ClaimVerdict.NOT_REPRODUCED, "can't tell"),
    ],
)
def test_what_the_key_bias_costs_is_what_leaving_it_out_saves(
    tried, share, spread, verdict, reason
):
    took = {True: 1e-3 * (1 - share), False: 1e-3}
    one = tried("key-bias-cost", lambda label, _: took["key_bias" in label], spread=spread)
    assert one.verdict is verdict and reason in one.reason
    figure = one.findings.figures["512 wide train"]
    assert figure.interval[0] <= 1 - share <= figure.interval[1]
    assert figure.value == pytest.approx(1 - share, abs=1e-6)


def grows(linear):
    """The one form grows with this power of the length, the other with its square."""

    def seconds(label, problem):
        n, d = problem.kv_len, problem.head_dim
        return 1e-9 * (n**linear * d**2 if label == "linear.identity" else n**2 * d * 2)

    return seconds


def test_orders_are_told_from_times(tried):
    """d² n against 2 d n²."""
    one = tried("reassociated", grows(1))
    assert one.verdict is ClaimVerdict.REPRODUCED
    names = ("re-associated", "scores first", "width")
    assert [one.findings.figures[x].value for x in names] == pytest.approx([1, 2, 2])
    wrong = tried("reassociated", grows(2))
    assert wrong.verdict is ClaimVerdict.NOT_REPRODUCED
    assert "re-associated" in wrong.reason
    limits = {p.name: p.published for p in one.claim.points if p.name != "ratio"}
    assert limits == efficient.LIMITS  # pairs decide on these


def test_mechanisms_refute_the_claim_only_where_they_are_fast_and_as_good(tried):
    """Linear against quadratic: they cross at 1,024 tokens."""

    def seconds(label, problem):
        n = problem.kv_len
        return 1e-9 * n * n if label == "sdpa" else 1e-9 * n * 1024

    one = tried("low-rank", seconds, skill=0.1)
    assert one.verdict is ClaimVerdict.REPRODUCED
    table, shares = one.findings.tables
    assert shares.rows[-1] == [8192, 0.0, 1.0]
    assert len(table.rows) == len(efficient.MECHANISMS)
    good = tried("low-rank", seconds)
    assert good.verdict is ClaimVerdict.NOT_REPRODUCED
    assert good.findings.figures["512"].value == 0.0  # too short for them
    assert good.findings.figures["8192"].value == 1.0


def by_rates(name, factor=1.0):
    """Each cell has the rate that its row publishes, times a factor."""
    (claim,) = claims.find([name])
    rates = {str(problem_of(p.cell["problem"])): p.published * factor for p in claim.points}
    return lambda label, problem: flops(problem) / 1e12 / rates[str(problem)]


def test_the_phases_of_a_problem_are_asked_one_after_another_training_first(tried):
    asked, seconds = [], by_rates("h200-sdpa-cudnn")
    one = tried("h200-sdpa-cudnn", lambda _, p: asked.append(p.phase) or seconds(_, p))
    names = [point.name for point in one.claim.points]
    assert [row[0] for row in one.findings.tables[0].rows] == names
    assert asked == ["train", "backward", "forward"] * 9


@pytest.mark.parametrize(
    ("name", "factor", "spread", "verdict"),
    [
        ("h200-sdpa-flash", 0.85, 0.002, ClaimVerdict.NOT_REPRODUCED),
        ("h200-sdpa-flash", 1.2, 0.002, ClaimVerdict.NOT_REPRODUCED),
        ("h200-sdpa-flash", 1.09, 0.05, ClaimVerdict.NOT_REPRODUCED),
        ("h200-sdpa-flash", 0.92, 0.002, ClaimVerdict.REPRODUCED),
        ("h100-standard-train", 1.03, 0.002, ClaimVerdict.REPRODUCED),
    ],
)
def test_published_rates_reproduce_a_claim_and_others_do_not(tried, name, factor, spread, verdict):
    one = tried(name, by_rates(name, factor), spread=spread)
    assert one.verdict is verdict
    assert ("can't tell" in one.reason) == (spread > 0.01)


def test_a_cell_without_a_time_is_no_verdict(tried):
    one = tried("h200-sdpa-flash", lambda *_: None)
    assert one.verdict is ClaimVerdict.NOT_RUN
    assert "out_of_memory: it was too much" in one.reason
