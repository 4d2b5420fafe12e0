"""One cell that is measured, and what its record says; the bench and its jobs."""

import json
from pathlib import Path

import pytest

import impls
from attnbench.core.record import Status
from attnbench.meter import cell
from attnbench.meter.cell import Bench, Job
from impls.loading import load_file
from impls.masks import Mask

codes = load_file(Path(__file__).with_name("codes.py"))
COST, HONEST, raising = codes.COST, codes.HONEST, codes.raising


# ---- measured ------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["forward", "train", "backward", "decode"])
def test_what_passes_is_measured_and_says_everything(cells, phase):
    problem = cells.problem(phase=phase, mask=Mask.parse("causal"), kv_heads=1)
    ceilings = {"flops": {"float32": 1e12}, "copy": {"1000000": 1e11}}
    variant = cells.variant(HONEST + COST.format(peak=12345), cost=True)
    record = cells.measure(variant, problem, ceilings=ceilings, seed=3)
    assert (record.status, record.reason) == (Status.MEASURED, "")
    assert record.time.median_s > 0
    assert record.time.clock == "host"
    assert record.time.n == len(record.time.samples_s) >= 7
    assert record.memory.peak_bytes > 0
    assert record.memory.expected_bytes == 12345
    trained = phase in ("train", "backward")
    assert (record.memory.saved_bytes is not None) == trained
    assert set(record.error) == ({"forward", "dq", "dk", "dv"} if trained else {"forward"})
    assert (record.cost.flops, record.cost.bytes) == (1000, 2000)
    assert record.share_of_ceiling == pytest.approx(2e-8 / record.time.median_s)
    assert record.setup_s > 0
    assert any("aten::" in name for name in record.kernels)
    assert 0 < record.entropy < 1
    assert (record.seed, record.variant, record.family) == (3, "planted", "dense")
    assert record.problem == problem


def test_an_approximation_is_measured_with_its_distance(cells):
    record = cells.measure(impls.table().find("mean_v"))
    assert record.status is Status.MEASURED
    assert record.distance.skill == pytest.approx(0, abs=1e-6)
    assert record.time is not None


def test_checking_alone_gives_no_time(cells):
    record = cells.measure(cells.variant(HONEST), timed=False)
    assert record.status is Status.MEASURED
    assert record.time is None
    assert record.error["forward"].relative < 1e-6
    assert "sampling" not in record.spent_s


def test_without_ceilings_or_a_cost_there_is_no_share_of_them(cells):
    record = cells.measure(cells.variant(HONEST), ceilings={})
    assert record.share_of_ceiling is None
    assert record.cost is None
    assert record.memory.expected_bytes is None


def test_options_reach_the_code_and_the_label(cells):
    code = (
        "def build(problem, swap):\n"
        "    if swap != 4: raise ValueError(f'swap is {swap}')\n    return right(problem)\n"
    )
    variant = cells.variant(code, options={"swap": 2}).with_options({"swap": "4"})
    record = cells.measure(variant)
    assert record.status is Status.MEASURED
    assert record.variant == "planted?swap=4"
    assert record.options == {"swap": 4}


def test_what_a_variant_notes_is_in_the_record(cells):
    code = (
        "def build(problem):\n    inner = right(problem)\n"
        "    def attend(q, k, v): return inner(q, k, v)\n"
        "    attend.note = lambda: 'two blocks'\n    return attend\n"
    )
    assert cells.run(code).note == "two blocks"


def test_building_is_paid_in_the_setup_and_not_in_the_time(cells):
    code = (
        "import time\n"
        "def build(problem):\n    time.sleep(0.1)\n    inner, first = right(problem), []\n"
        "    def attend(q, k, v):\n"
        "        if not first: time.sleep(0.1); first.append(1)\n"
        "        return inner(q, k, v)\n    return attend\n"
    )
    record = cells.run(code)
    assert record.setup_s > 0.19
    assert record.time.median_s < 0.05
    assert 0.09 < record.spent_s["setup"] < record.setup_s  # building alone


@pytest.mark.parametrize("code", [HONEST, raising("raise ValueError('no')")])
def test_the_parts_of_the_time_spent_add_up_to_the_total(cells, code):
    spent = dict(cells.run(code).spent_s)
    total = spent.pop("total")
    assert {"inputs", "setup", "own"} <= set(spent)
    assert sum(spent.values()) == pytest.approx(total, abs=1e-5)
    assert all(seconds >= 0 for seconds in spent.values())


# ---- the bench and its jobs ----------------------------------------------------------------------


def test_the_truth_of_a_problem_is_made_once_for_all_its_variants(cells, monkeypatch):
    made = []
    make = cell.make
    monkeypatch.setattr(cell, "make", lambda p, seed: made.append((p, seed)) or make(p, seed))
    one, two = cells.problem(), cells.problem(q_len=16)
    for problem, seed in ((one, 0), (one, 0), (one, 1), (two, 1), (one, 0)):
        cells.measure(cells.variant(HONEST), problem, seed=seed, timed=False)
    assert made == [(one, 0), (one, 1), (two, 1), (one, 0)]


def test_a_variant_that_spoils_its_inputs_does_not_spoil_the_next_ones(cells):
    spoil = (
        "def build(problem):\n    inner = right(problem)\n    def attend(q, k, v):\n"
        "        out = inner(q, k, v)\n        k.zero_()\n        return out\n    return attend\n"
    )
    assert cells.run(spoil).status is Status.WRONG
    assert cells.run(HONEST).status is Status.MEASURED


def test_the_bench_goes_on_after_any_ending(cells):
    for code in (raising("raise MemoryError"), raising("raise ValueError"), HONEST):
        last = cells.run(code)
    assert last.status is Status.MEASURED


def test_a_job_travels_as_json(cells):
    variant = cells.variant(HONEST, options={"block": 4}, head_dims=(1, 64))
    job = Job(
        variant, cells.problem(mask=Mask.parse("causal+alibi")), 5, 0.25, False, {"flops": {}}
    )
    assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job


def test_inputs_that_cannot_be_read_fail_the_cell_and_not_the_bench(cells, tmp_path):
    problem = cells.problem(inputs=f"captured:{tmp_path / 'none.npz'}")
    record = Bench().measure(Job(cells.variant(HONEST), problem))
    assert record.status is Status.FAILED
    assert "none.npz" in record.reason
