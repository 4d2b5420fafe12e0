"""Claims whose figures are times, with a worker that answers with times made up."""

import math
from contextlib import contextmanager

import pytest

import impls
from attnbench.core.record import Distance, Record, Status, Time
from attnbench.core.stats import Pairs, paired
from attnbench.features.claims import claim as claims
from attnbench.features.claims import efficient, timing
from attnbench.features.claims.claim import ClaimOutcome, ClaimRequest, ClaimVerdict
from attnbench.features.claims.gpu_rates import flops, rates
from impls.asked import CantBeDone
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Variant


class Worker:
    """Times by variant and problem, as a function says them; skills by name."""

    def __init__(self, seconds, skill=lambda name: 0.9, spread=0.001):
        self.seconds, self.skill, self.spread = seconds, skill, spread

    def ask(self, question, limit_s):
        if "compare" in question:
            a_s, b_s = (self._seconds(job) for job in question["compare"])
            ratios = [math.log(b_s / a_s) + self.spread * (n % 5 - 2) for n in range(40)]
            found = paired(ratios, question["margin"])
            return {"pairs": Pairs(found, [a_s] * 40, [b_s] * 40, "decided").to_dict()}
        job = question["job"]
        variant, problem = Variant.from_dict(job["variant"]), Problem.from_dict(job["problem"])
        s, skill = self._seconds(job), self.skill(variant.name)
        time = Time(
            median_s=s,
            low_s=s,
            high_s=s,
            q25_s=s,
            q75_s=s,
            min_s=s,
            n=9,
            clock="host",
            stop="converged",
            samples_s=[s] * 9,
        )
        far = Distance(relative=0.1, max=1.0, worst_row=1.0, cosine=0.9, skill=skill)
        record = Record.of(variant, problem, Status.MEASURED)
        return {"record": record.with_(time=time, distance=far).to_dict()}

    def _seconds(self, job):
        variant, problem = Variant.from_dict(job["variant"]), Problem.from_dict(job["problem"])
        return self.seconds(variant.label, problem)

    def close(self):
        pass


@pytest.fixture
def tried(monkeypatch):
    def made(name, worker):
        @contextmanager
        def engine(request, device="cpu"):
            yield worker

        for module in (timing, efficient):
            monkeypatch.setattr(module, "open_engine", engine)
        (claim,) = claims.find([name])
        cells = {point.name: point.cell for point in claim.points if point.cell}
        return ClaimOutcome.of(claim, load_function(claim.how)(ClaimRequest(cells, seconds=60.0)))

    return made


def saving(share):
    return lambda label, problem: 1e-3 * (1 - share if "key_bias" in label else 1)


@pytest.mark.parametrize(
    ("share", "spread", "verdict", "said"),
    [
        (0.002, 0.001, ClaimVerdict.REPRODUCED, ""),
        (-0.02, 0.001, ClaimVerdict.REPRODUCED, ""),
        (0.05, 0.001, ClaimVerdict.NOT_REPRODUCED, "do not hold"),
        (0.01, 0.02, ClaimVerdict.NOT_REPRODUCED, "can't be told"),
    ],
)
def test_what_the_key_bias_costs_is_what_leaving_it_out_saves(tried, share, spread, verdict, said):
    one = tried("key-bias-cost", Worker(saving(share), spread=spread))
    assert one.verdict is verdict
    assert said in one.reason
    assert one.figure("512 wide train").value == pytest.approx(share, abs=1e-6)
    low, high = one.figure("512 wide train").interval
    assert low <= share <= high


def grows(linear, square):
    def seconds(label, problem):
        n, d = problem.kv_len, problem.head_dim
        return 1e-9 * (n**linear * d**2 if label == "linear.identity" else n**square * d * 2)

    return seconds


def test_orders_are_told_from_times(tried):
    one = tried("reassociated", Worker(grows(1, 2)))
    assert one.verdict is ClaimVerdict.REPRODUCED
    assert one.figure("re-associated").value == pytest.approx(1)
    assert one.figure("scores first").value == pytest.approx(2)
    assert one.figure("width").value == pytest.approx(2)


def test_pairs_decide_on_the_claims_own_limits():
    (claim,) = claims.find(["reassociated"])
    assert {p.name: p.published for p in claim.points if p.name != "ratio"} == efficient.LIMITS


def test_where_the_orders_cross_is_a_bracket(tried):
    """d² n against 2 d n²: they cross at n = d / 2."""
    (note,) = tried("reassociated", Worker(grows(1, 2))).findings.notes
    assert "linear.identity is faster" in note
    (note,) = tried(
        "reassociated",
        Worker(lambda label, p: grows(1, 2)(label, p.with_(head_dim=640, v_head_dim=640))),
    ).findings.notes
    assert "overtakes scores_first between 320 and" in note or "between 304 and" in note


def test_a_linear_form_that_is_quadratic_is_found_out(tried):
    one = tried("reassociated", Worker(grows(2, 2)))
    assert one.verdict is ClaimVerdict.NOT_REPRODUCED
    assert "re-associated" in one.reason


def test_sparse_attention_that_saves_nothing_is_found_out(tried):
    assert tried("sparse-long", Worker(lambda *_: 1e-3)).verdict is ClaimVerdict.NOT_REPRODUCED
    quick = Worker(lambda label, _: 1e-3 if label == "sdpa" else 3e-4)
    assert tried("sparse-long", quick).verdict is ClaimVerdict.REPRODUCED


def low_rank_seconds(label, problem):
    """Linear against quadratic: they cross at 1,024 tokens."""
    n = problem.kv_len
    return 1e-9 * n * n if label == "sdpa" else 1e-9 * n * 1024


def test_mechanisms_that_are_fast_and_lose_what_softmax_does_improve_nothing(tried):
    one = tried("low-rank", Worker(low_rank_seconds, skill=lambda name: 0.1))
    assert one.verdict is ClaimVerdict.REPRODUCED
    table, shares = one.findings.tables
    assert shares.rows[-1] == [8192.0, 0.0, 1.0]
    assert "from" in table.rows[0][table.columns.index("faster, by pairs")]


def test_mechanisms_that_are_fast_and_as_good_refute_the_claim(tried):
    one = tried("low-rank", Worker(low_rank_seconds))
    assert one.verdict is ClaimVerdict.NOT_REPRODUCED
    assert one.figure("512").value == 0.0  # too short for them
    assert one.figure("8192").value == 1.0


def test_a_search_over_lengths_that_nobody_takes_says_so():
    a, b = map(impls.table().find, ("matmul", "retention"))  # which takes no mask but causal
    with pytest.raises(CantBeDone, match="matmul and retention share no lengths"):
        efficient.find_crossing(
            Worker(grows(1, 2)), a, b, Problem(), (64, 256), ClaimRequest(), 1.0
        )


class Gpu:
    """Of each cell: the rate that its row publishes, times a factor; or another status."""

    def __init__(self, claim, factor=1.0, spread=0.002, status=Status.MEASURED):
        self.published = {self.key(p.cell["problem"]): p.published for p in claim.points}
        self.factor, self.spread, self.status, self.asked = factor, spread, status, []

    @staticmethod
    def key(values):
        return tuple(sorted((k, v) for k, v in values.items() if k != "inputs"))

    def ask(self, question, limit_s):
        if "ceilings" in question:
            assert question["device"] == "cuda"
            return {"ceilings": {"flops": {}, "copy": {}}}
        self.asked.append(question["job"])
        variant = Variant.from_dict(question["job"]["variant"])
        sent = question["job"]["problem"]
        of = Problem.from_dict(sent)
        if self.status is not Status.MEASURED:
            return {"record": Record.of(variant, of, self.status, "it was too much").to_dict()}
        known = next(iter(self.published))
        rate = self.published[self.key({k: sent[k] for k, _ in known})] * self.factor
        s = flops(of) / 1e12 / rate
        time = Time(
            median_s=s,
            low_s=s * (1 - self.spread),
            high_s=s * (1 + self.spread),
            q25_s=s,
            q75_s=s,
            min_s=s,
            n=9,
            clock="events",
            stop="converged",
            samples_s=[s] * 9,
            clocks={"sm_mhz": 1980.0},
        )
        return {"record": Record.of(variant, of, Status.MEASURED).with_(time=time).to_dict()}


ABOUT_GPUS = [claim for claim in claims.claims() if claim.needs.gpu]


def rated(claim, worker):
    cells = {point.name: point.cell for point in claim.points}
    return ClaimOutcome.of(claim, rates(worker, ClaimRequest(cells, seconds=10.0)))


@pytest.mark.parametrize("claim", ABOUT_GPUS, ids=lambda claim: claim.name)
def test_the_published_rates_reproduce_the_claim(claim):
    worker = Gpu(claim, 1.03)
    one = rated(claim, worker)
    assert one.verdict is ClaimVerdict.REPRODUCED
    assert len(worker.asked) == len(claim.points)


@pytest.mark.parametrize(
    ("factor", "spread", "verdict"),
    [
        (0.85, 0.002, ClaimVerdict.NOT_REPRODUCED),
        (1.2, 0.002, ClaimVerdict.NOT_REPRODUCED),
        (1.09, 0.05, ClaimVerdict.NOT_REPRODUCED),
        (0.92, 0.002, ClaimVerdict.REPRODUCED),
    ],
)
def test_other_rates_do_not_and_a_wide_interval_tells_nothing(factor, spread, verdict):
    claim = ABOUT_GPUS[0]
    one = rated(claim, Gpu(claim, factor, spread))
    assert one.verdict is verdict
    assert ("can't be told" in one.reason) == (spread > 0.01)


def test_a_cell_without_a_time_is_no_verdict():
    claim = ABOUT_GPUS[0]
    one = rated(claim, Gpu(claim, status=Status.OUT_OF_MEMORY))
    assert one.verdict is ClaimVerdict.NOT_RUN
    assert "out_of_memory: it was too much" in one.reason


def test_what_a_sceptic_asks_for_stands_behind_each_rate():
    claim = ABOUT_GPUS[0]
    (table,) = rated(claim, Gpu(claim)).findings.tables
    assert {"ms", "samples", "SM MHz", "kernels", "amiss"} <= set(table.columns)
    assert len(table.rows) == len(claim.points)
    assert table.rows[0][table.columns.index("SM MHz")] == 1980.0


@pytest.mark.parametrize(
    ("phase", "mask", "share"),
    [
        ("forward", "none", 1.0),
        ("forward", "causal", 0.5),
        ("backward", "none", 2.5),
        ("train", "causal", 1.75),
    ],
)
def test_work_is_counted_by_the_convention_of_the_sources(phase, mask, share):
    of = timing.problem_of(
        {"heads": 3, "kv_heads": 3, "q_len": 100, "kv_len": 100, "phase": phase, "mask": mask}
    )
    assert flops(of) == pytest.approx(4 * 3 * 100 * 100 * 64 * share)
