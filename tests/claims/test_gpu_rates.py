"""Claims about GPUs, with a worker that answers as it is told to."""

import pytest

from attnbench.core.record import Record, Status, Time
from attnbench.features.claims import claim as claims
from attnbench.features.claims.claim import ClaimOutcome, ClaimRequest, ClaimVerdict
from attnbench.features.claims.measured.gpu_rates import flops, rates
from attnbench.features.claims.measured.ruler import problem
from impls.problem import Problem
from impls.spec import Variant


class Worker:
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

    def close(self):
        pass


ABOUT_GPUS = [claim for claim in claims.claims() if claim.needs.gpu]


def tried(claim, worker):
    cells = {point.name: point.cell for point in claim.points}
    return ClaimOutcome.of(claim, rates(worker, ClaimRequest(cells, seconds=10.0)))


@pytest.mark.parametrize("claim", ABOUT_GPUS, ids=lambda claim: claim.name)
def test_the_published_rates_reproduce_the_claim(claim):
    worker = Worker(claim, 1.03)
    one = tried(claim, worker)
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
    one = tried(claim, Worker(claim, factor, spread))
    assert one.verdict is verdict
    assert ("can't be told" in one.reason) == (spread > 0.01)


def test_a_cell_without_a_time_is_no_verdict():
    claim = ABOUT_GPUS[0]
    one = tried(claim, Worker(claim, status=Status.OUT_OF_MEMORY))
    assert one.verdict is ClaimVerdict.NOT_RUN
    assert "out_of_memory: it was too much" in one.reason


def test_what_a_sceptic_asks_for_stands_behind_each_rate():
    claim = ABOUT_GPUS[0]
    (table,) = tried(claim, Worker(claim)).found.tables
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
    of = problem(
        {"heads": 3, "kv_heads": 3, "q_len": 100, "kv_len": 100, "phase": phase, "mask": mask}
    )
    assert flops(of) == pytest.approx(4 * 3 * 100 * 100 * 64 * share)
