"""What a self-check makes of records, how it is kept and shown, and how the verb ends."""

import json
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from attnbench import cli
from attnbench.core.disk import SELFCHECK
from attnbench.core.evidence import save_beside, stored_selfcheck
from attnbench.core.machine import this_machine
from attnbench.core.record import PROTOCOL, Record, Status
from attnbench.core.store import find_runs
from attnbench.features.selfcheck import selfcheck
from attnbench.features.selfcheck.selfcheck import PlantOutcome, SelfCheck, judge, run_plants
from attnbench.gate.plants import PLANTS
from attnbench.sweep.engine import WorkerLost
from tests.answer.build import memory
from tests.selfcheck.test_plants import LEAVING
from tests.sweep.build import ToldEngine

ZEROS = next(p for p in PLANTS if p.deed == "zeros")
HOG = next(p for p in PLANTS if p.deed == "memory taken by torch and given back")
CAUGHT = PlantOutcome("zeros", "values", True, "wrong", "row 0 did not move")
ESCAPED = PlantOutcome("a hang", "costs", False, "measured", "", "timed_out, matching 'running'")
ELSEWHERE = PlantOutcome("a stream", "aside", None, "unavailable", "it runs on cuda")


def record(plant, status, reason="", **more):
    return Record.of(plant.row, plant.problem, status, reason, **more)


def result(*outcomes):
    return SelfCheck(list(outcomes), "box", {"torch": "2.13"}, date="2026-01-01T00:00:00+00:00")


MOVED = "row 0 (batch 0, head 0) did not move when key 3 changed, which"


@pytest.mark.parametrize(
    ("plant", "status", "reason", "peak", "caught"),
    [
        (ZEROS, Status.WRONG, MOVED, None, True),
        (ZEROS, Status.WRONG, "it is slow", None, False),
        (ZEROS, Status.MEASURED, "", None, False),
        (ZEROS, Status.IMPLAUSIBLE, MOVED, None, False),
        (HOG, Status.MEASURED, "", 90 << 20, True),
        (HOG, Status.MEASURED, "", (90 << 20) - 1, False),
        (HOG, Status.WRONG, "it is slow", 1 << 30, False),
        (HOG, Status.MEASURED, "", None, False),
    ],
)
def test_a_fault_is_caught_by_its_status_and_its_reason_or_its_price_together(
    plant, status, reason, peak, caught
):
    found = judge(plant, record(plant, status, reason, memory=memory(peak)))
    assert (found.caught, found.status, found.wanted == "") == (caught, status, caught)
    assert found.said == reason or found.said.startswith("memory.peak_bytes is")
    assert ("at least" in found.wanted) is (plant is HOG and not caught)


def test_the_line_counts_what_was_planted():
    aside = "; 1 could not be tried here"
    for outcomes, counts, passed in (
        ([CAUGHT, CAUGHT], "2/2", True),
        ([CAUGHT, ESCAPED], "1/2", False),
        ([CAUGHT, ELSEWHERE], "1/1", True),
        ([ELSEWHERE], "0/0", False),
        ([], "0/0", False),
    ):
        found, left = result(*outcomes), aside * (ELSEWHERE in outcomes)
        assert found.line == f"ruler self-check: {counts} on this machine{left}"
        assert found.passed is passed


def test_what_is_kept_comes_back_and_is_no_run(tmp_path):
    path = save_beside(tmp_path, "box", SELFCHECK, result(CAUGHT, ESCAPED).to_dict())
    assert path == tmp_path / "box" / "selfcheck.json"
    found = stored_selfcheck(tmp_path, "box")
    assert (found["n"], found["caught"], found["protocol"]) == (2, 1, PROTOCOL)
    assert found["versions"] == {"torch": "2.13"}
    assert [o["deed"] for o in found["outcomes"]] == ["zeros", "a hang"]
    assert list(find_runs([tmp_path])) == []
    for text in ("{", "[]", json.dumps({"protocol": PROTOCOL - 1})):
        path.write_text(text)
        assert stored_selfcheck(tmp_path, "box") is None


def test_each_plant_goes_through_the_sweep_with_its_own_limit():
    late, told = WorkerLost("it was still running after 4 s", "", timed_out=True), []
    engine = ToldEngine({"ceilings": {"flops": {}}}, late, late)
    watcher = SimpleNamespace(cell=lambda record, *more: told.append((record.variant, *more[:2])))
    hang = next(p for p in PLANTS if p.deed == "a hang")
    first, second = run_plants(this_machine(), engine, 3, watcher, [hang, ZEROS])
    assert (first.caught, second.caught) == (True, False)
    assert engine.limits[1:] == [4.0, ZEROS.limit_s]
    job = engine.asked[1]["job"]
    assert job["variant"]["name"] == "planted.hang"
    assert (job["seed"], job["ceilings"]) == (3, {"flops": {}})
    assert told == [("planted.hang", 1, 2), ("planted.zeros", 2, 2)]


def test_what_cheats_at_nothing_is_measured_again_where_it_was_not_believed(monkeypatch):
    left, engine = [], SimpleNamespace(ask=lambda *_: {"ceilings": {}})
    watcher = SimpleNamespace(cell=lambda *_: None)
    monkeypatch.setattr(selfcheck, "measure", lambda *_, **__: left.pop(0))
    for plant, told, caught in (  # as often as it is measured
        (HOG, [Status.IMPLAUSIBLE, Status.MEASURED], True),
        (HOG, [Status.IMPLAUSIBLE, Status.IMPLAUSIBLE], False),
        (HOG, [Status.WRONG], False),
        (ZEROS, [Status.IMPLAUSIBLE], False),
    ):
        for status in told:
            why = "it took 1 ms" * (status is not Status.MEASURED)
            left.append(record(plant, status, why, memory=memory(1 << 30)))
        (outcome,) = run_plants(this_machine(), engine, 0, watcher, [plant])
        assert (outcome.caught, outcome.status, left) == (caught, told[-1], [])
        assert ("at first implausible: it took 1 ms" in outcome.said) is (len(told) == 2)


def test_the_verb_ends_with_a_finding_where_something_escaped(monkeypatch, tmp_path, capsys):
    for outcomes, status in (([CAUGHT, ELSEWHERE], 0), ([CAUGHT, ESCAPED], 1)):
        monkeypatch.setattr(selfcheck, "run_plants", Mock(return_value=iter(outcomes)))
        assert cli.main(["selfcheck", "--out", str(tmp_path), "--json"]) == status
        kept = stored_selfcheck(tmp_path, this_machine().name)
        assert kept["line"] == result(*outcomes).line
        assert json.loads(capsys.readouterr().out) == kept


def test_one_that_is_stopped_shows_what_it_has_and_keeps_nothing(monkeypatch, tmp_path, capsys):
    def stopped(*_, **__):
        yield CAUGHT
        raise KeyboardInterrupt

    monkeypatch.setattr(selfcheck, "run_plants", stopped)
    assert cli.main(["selfcheck", "--out", str(tmp_path)]) == 130
    shown = " ".join(capsys.readouterr().out.split())
    assert "1/1 on this machine; stopped before its end" in shown
    assert stored_selfcheck(tmp_path, this_machine().name) is None


@pytest.mark.slow
def test_the_self_check_passes_on_this_machine(tmp_path, monkeypatch, capsys):
    """Of faults that cost a new process each, those that test_plants.py does not try in a fork."""
    some = [plant for plant in PLANTS if plant not in LEAVING]
    monkeypatch.setattr(selfcheck, "run_plants", partial(run_plants, plants=some))
    status = cli.main(["selfcheck", "--json", "--out", str(tmp_path)])
    sent = json.loads(capsys.readouterr().out)
    assert (status, [o for o in sent["outcomes"] if o["caught"] is False]) == (0, [])
    assert sent["n"] == sent["caught"] >= 44
