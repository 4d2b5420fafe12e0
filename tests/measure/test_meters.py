"""What the meters add to a record: attestation, energy, the same bits; each asked for or not."""

import pytest

from attnbench.measure import meters
from attnbench.record import Energy, Status


@pytest.mark.parametrize(("operator", "status"), [
    ("aten::bmm", Status.MEASURED), ("aten::_nobody_runs_this", Status.WRONG),
])  # fmt: skip
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

    monkeypatch.setattr(meters, "counter_for", lambda device: f"counter of {device}")
    monkeypatch.setattr(meters, "measure_energy", measured)
    variant = cells.variant("build = right")
    assert cells.measure(variant).energy is None
    assert cells.measure(variant, energy=True).energy == wanted
    assert calls == ["counter of cpu"]


def test_where_there_is_no_counter_the_record_says_why(cells, monkeypatch):
    monkeypatch.setattr(meters, "counter_for", lambda device: Energy(why="no counter here"))
    record = cells.measure(cells.variant("build = right"), energy=True)
    assert record.status is Status.MEASURED
    assert (record.energy.joules, record.energy.why) == (None, "no counter here")


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
            import attnbench.truth.errors as errors
            kept.append(errors.compare)
            errors.compare = lambda *a: None
        return inner(q, k, v)
    return attend
kept = []
"""
    import attnbench.truth.errors as errors

    before = errors.compare
    try:
        record = cells.run(code)
    finally:
        errors.compare = before
    assert record.status is Status.WRONG
    assert "it replaced attnbench.truth.errors.compare" in record.reason
