"""What the meters add to a record: attestation, energy, the same bits; each asked for or not."""

from types import SimpleNamespace

import pytest
import torch

from attnbench.core.record import Energy, Status, Time
from attnbench.meter import cell
from attnbench.meter.audit import Audit


@pytest.mark.parametrize(
    ("operator", "status"),
    [
        ("aten::bmm", Status.MEASURED),
        ("aten::_nobody_runs_this", Status.WRONG),
    ],
)
def test_a_row_that_forces_what_did_not_run_is_wrong_with_both_names(cells, operator, status):
    record = cells.measure(cells.variant("build = right", runs={"cpu": operator}))
    assert record.status is status
    if status is Status.WRONG:
        assert record.reason.startswith(f"it should run {operator} and ran aten::")
        assert record.time is None


def test_energy_is_measured_only_when_asked_for(cells, monkeypatch):
    wanted = Energy(joules=0.5, gross_joules=0.7, idle_w=3.0, calls=9, method="a counter")
    calls = []

    def measured(problem, run, before, counter):
        before()
        run()
        calls.append(counter)
        return wanted

    monkeypatch.setattr(cell, "counter_for", lambda device: f"counter of {device}")
    monkeypatch.setattr(cell, "measure_energy", measured)
    variant = cells.variant("build = right")
    assert cells.measure(variant).energy is None
    assert cells.measure(variant, energy=True).energy == wanted
    assert calls == ["counter of cpu"]


def test_where_there_is_no_counter_the_record_says_why(cells, monkeypatch):
    monkeypatch.setattr(cell, "counter_for", lambda device: Energy(why="no counter here"))
    record = cells.measure(cells.variant("build = right"), energy=True)
    assert record.status is Status.MEASURED
    assert (record.energy.joules, record.energy.why) == (None, "no counter here")


CHEAPER = """
def build(problem):
    inner = right(problem)
    def attend(q, k, v):
        return inner(q, k, v) * (0.5 if hasattr(torch, "energy_is_measured") else 1)
    return attend
"""


def test_what_is_wrong_while_its_energy_is_measured_is_wrong(cells, monkeypatch):
    def measured(problem, run, before, counter):
        monkeypatch.setattr(torch, "energy_is_measured", True, raising=False)
        run()
        monkeypatch.delattr(torch, "energy_is_measured")
        return Energy(joules=0.1, method="a counter")

    monkeypatch.setattr(cell, "counter_for", lambda device: "a counter")
    monkeypatch.setattr(cell, "measure_energy", measured)
    assert cells.measure(cells.variant(CHEAPER)).status is Status.MEASURED
    record = cells.measure(cells.variant(CHEAPER), energy=True)
    assert (record.status, record.energy) == (Status.WRONG, None)
    assert "while it was timed its output was not what it was" in record.reason


# ---- what is looked at besides the time ----------------------------------------------------------


def looked_at(least, new, threads=1):
    """The least that a call took by either look, as it is held against its time."""
    ready = SimpleNamespace(
        job=SimpleNamespace(problem=SimpleNamespace(device="cpu")),
        values=None,
        define=None,
        verdict=SimpleNamespace(plain={}),
    )
    timed = SimpleNamespace(wrong=lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell.torch, "get_num_threads", lambda: threads)
        audit = Audit(1.0, "process", least=least)
        patch.setattr(cell, "audit_host", lambda timed, threads: audit)
        patch.setattr(cell, "check_remembers_nothing", lambda *_: new)
        return cell.audited(ready, timed, None, 1.0)[1]


def test_a_call_is_as_slow_as_the_slower_of_two_looks_at_it():
    assert looked_at(least=3.0, new=2.0) == 3.0
    assert looked_at(least=1.0, new=2.0) == 2.0
    assert looked_at(least=3.0, new=1.0, threads=2) == 1.5  # two at work take half as long


def test_what_the_second_clock_notes_joins_what_the_first_did(monkeypatch):
    time = Time(
        median_s=1.0,
        low_s=1.0,
        high_s=1.0,
        q25_s=1.0,
        q75_s=1.0,
        min_s=1.0,
        n=7,
        clock="events",
        stop="converged",
        samples_s=[1.0] * 7,
        flags=["drifting"],
    )
    audit = Audit(2.0, "e2e", ["launch-bound"])
    monkeypatch.setattr(cell, "audited", lambda *_: (audit, 0.0))
    found = cell._confirmed(None, None, None, time)
    assert (found.audit_s, found.audit_clock) == (2.0, "e2e")
    assert found.flags == ["drifting", "launch-bound"]


@pytest.fixture
def undone(monkeypatch):
    """Lets a random state be changed in one part of the metering, and be put back in another."""
    state = torch.get_rng_state()

    def after(name, deed):
        real = getattr(cell, name)
        monkeypatch.setattr(cell, name, lambda *a, **k: (real(*a, **k), deed())[0])

    after.change, after.undo = lambda: torch.rand(1), lambda: torch.set_rng_state(state)
    yield after
    torch.set_rng_state(state)


def test_what_others_share_is_looked_at_after_the_last_look_at_a_variant(cells, undone):
    undone("audited", undone.change)
    record = cells.run("build = right")
    assert (record.status, record.time) == (Status.WRONG, None)
    assert "torch's random state" in record.reason


def test_what_is_changed_while_it_is_timed_can_not_be_put_back_in_time(cells, undone):
    undone("measure_time", undone.change)
    undone("audited", undone.undo)
    record = cells.run("build = right")
    assert (record.status, record.time) == (Status.WRONG, None)
    assert "torch's random state" in record.reason


CHANGES = """
def build(problem):
    inner, calls = right(problem), []
    def attend(q, k, v):
        calls.append(1)
        return inner(q, k, v) * (1 + 1e-7 * (len(calls) % 2))
    return attend
"""


@pytest.mark.parametrize("timed", [True, False])
def test_the_same_bits_are_tried_when_asked_for_timed_or_not(cells, timed):
    variant = cells.variant("build = right")
    assert cells.measure(variant, timed=timed).determinism is None
    bits = cells.measure(variant, timed=timed, bits=True).determinism
    assert (bits.repeats, bits.batch, bits.place) == (True, True, True)
    assert (
        cells.measure(cells.variant(CHANGES), timed=False, bits=True).determinism.repeats is False
    )


def test_the_fault_of_a_ruler_that_was_rewritten_while_it_was_timed_is_found(cells):
    code = """
def build(problem):
    inner, calls = right(problem), []
    def attend(q, k, v):
        calls.append(1)
        if len(calls) == 30:
            import attnbench.gate.oracle as errors
            kept.append(errors.compare)
            errors.compare = lambda *a: None
        return inner(q, k, v)
    return attend
kept = []
"""
    import attnbench.gate.oracle as errors

    before = errors.compare
    try:
        record = cells.run(code)
    finally:
        errors.compare = before
    assert record.status is Status.WRONG
    assert "it replaced attnbench.gate.oracle.compare" in record.reason
