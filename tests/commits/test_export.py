"""Runs as asv's results: what each cell says there, who shares a graph, and who has no place."""

import json
from itertools import product

import pytest
from asv.machine import Machine as AsvMachine

from attnbench.core.disk import HEADER, RECORDS
from attnbench.core.machine import this_machine
from attnbench.core.record import PROTOCOL, Status
from attnbench.features.commits import asv_interface, suite
from attnbench.features.commits.asv_interface import ensure_machine, entry
from attnbench.features.commits.suite import AsvRequest
from tests.commits import runs

CELL = ("'sdpa'", "128", "'forward'")
MATMUL = ("'matmul'", "128", "'forward'")
LATER = {"started": "2026-11-22T11:00:00+00:00"}


def listed(place):
    return json.loads((place.results / asv_interface.FILE).read_text())


def test_what_is_not_to_be_had_is_skipped_and_what_did_not_end_as_measured_failed(place):
    """Each status at a length of its own; what no run asked for is skipped too."""
    statuses = [s for s in Status if s is not Status.MEASURED]
    ended = [runs.ended(s, seq=64 * n) for n, s in enumerate(statuses, 1)]
    (file,) = place.export(place.run("a", *ended, runs.measured("matmul", seq=64)))
    for figure in ("time", "memory", "error"):
        found = runs.cells(file, f"attention.{figure}")
        for number, status in enumerate(statuses, 1):
            value, samples = found["'sdpa'", str(64 * number), "'forward'"]
            assert samples is None
            assert runs.skipped(value) == (status in ("unsupported", "unavailable")), status
            assert value is None or runs.skipped(value)
        assert runs.skipped(found["'matmul'", "128", "'forward'"][0])
        assert found["'matmul'", "64", "'forward'"][0] > 0


@pytest.mark.parametrize("together", [True, False])
def test_two_runs_of_a_commit_are_put_together(place, together):
    """Times of one cell are values of two processes; of another figure the later run says it."""
    both, later = runs.measured(median=0.002), runs.measured(median=0.003)
    later = later.with_(memory=later.memory.with_(peak_bytes=512))
    a = place.run("a", both, runs.measured("matmul"))
    b = place.run("b", later, runs.ended("unavailable", "matmul"), **LATER)
    files = place.export(b, a) if together else [*place.export(a), *place.export(b)][:1]
    assert runs.cells(files[0])[CELL][1] == [both.time.median_s, later.time.median_s]
    assert runs.cells(files[0])[MATMUL][0] == pytest.approx(0.001)
    assert runs.cells(files[0], "attention.memory")[CELL] == (512, None)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_what_failed_in_one_run_of_a_commit_stays_failed(place, order):
    ran = {"a": place.run("a", runs.measured()), "b": place.run("b", runs.ended("wrong"))}
    for each in order:
        (file,) = place.export(ran[each])
    for figure in ("time", "memory", "error"):
        assert runs.cells(file, f"attention.{figure}")[CELL] == (None, None)


def test_runs_of_two_machines_are_two_machines_of_asvs(place):
    newer = {**runs.BOX, "versions": {"torch": "2.14.0"}}
    nodes = {"h200": {"machine": {**runs.GPU_BOX, "name": "node"}}}
    files = place.export(
        place.run("0", runs.measured(median=1)),
        place.run("1", runs.measured(median=2), machine=newer),
        place.run("2", runs.measured(median=3, node="h200", device="cuda"), nodes=nodes),
    )
    for number, (file, torch) in enumerate(
        zip(files, ("2.13.0+cpu", "2.14.0", "2.13.0+cu130"), strict=True), 1
    ):
        told = json.loads((file.parent / "machine.json").read_text())
        assert (told["machine"], told["torch"]) == (file.parent.name, torch)
        assert runs.cells(file)[CELL][0] == number
    assert files[2].parent.name.startswith("node-")


def test_the_suites_own_problem_has_the_suites_names_params_and_units(place):
    every = [
        runs.measured(v, seq=int(n), phase=p, energy=1.0)
        for v, n, p in product(*suite.parameters("time", suite.AsvRequest()))
    ]
    place.export(place.run("a", *every, energy=True))
    wanted = suite.benchmarks(AsvRequest(energy=True))
    assert set(listed(place)) == {*wanted, "version"}
    for name, told in wanted.items():
        there = listed(place)[name]
        for said in ("unit", "type", "version", "param_names", "pretty_name"):
            assert there[said] == told[said]
        for ours, theirs in zip(there["params"], told["params"], strict=True):
            assert set(theirs) <= set(ours)


def test_a_run_with_pages_kept_is_in_graphs_of_its_own(place):
    threads = runs.BOX["cores"] - 1
    kept = place.run(
        "b", runs.measured(median=2), settings={"threads": threads, "allocator": "kept"}
    )
    (file,) = place.export(place.run("a", runs.measured(median=1)), kept)
    assert runs.cells(file)[CELL][0] == pytest.approx(1)
    assert runs.cells(file, "attention-kept.time")[CELL][0] == pytest.approx(2)


def test_another_problem_is_in_graphs_of_its_own(place):
    groups = {
        "b1-h8of2-d64-f32-causal": {"heads": 8, "kv_heads": 2},
        "b1-h4-d128v64-f32-causal": {"head_dim": 128},
        "b1-h4-d64-bf16-causal": {"dtype": "bfloat16"},
        "b1-h4-d64-f32-causal-q128": {"kv_len": 256},
        "b1-h4-d64-f32-causal-cuda": {"device": "cuda:1"},
    }
    each = enumerate(groups.values(), 1)
    others = [runs.changed(runs.measured(median=n), **change) for n, change in each]
    (file,) = place.export(place.run("a", runs.measured(), *others))
    assert runs.cells(file)[CELL][0] == pytest.approx(0.001)
    for number, (group, change) in enumerate(groups.items(), 1):
        length = str(change.get("kv_len", 128))
        assert runs.cells(file, f"{group}.time")["'sdpa'", length, "'forward'"][0] == number
        assert listed(place)[f"{group}.time"]["pretty_name"].endswith(f", {group}")


def test_a_run_that_has_no_place_is_refused_in_a_sentence(place):
    good = place.run("good", runs.measured())
    unfit = (
        ({"code": {"commit": None, "dirty": None}}, ["says no commit", "from a clone"]),
        ({"code": {"commit": "f" * 40, "dirty": True}}, ["f" * 8, "commit the changes"]),
        ({"protocol": PROTOCOL - 1}, [f"protocol {PROTOCOL - 1}", "measure that commit again"]),
        ({"code": {"commit": "0" * 40, "dirty": False}}, ["0" * 40, "git"]),
        ({"machine": {"name": "box"}}, ["damaged"]),
        ({"nodes": {"a": {}}}, ["damaged"]),
        ({"schema": 99}, ["schema 99"]),
    )
    for number, (change, words) in enumerate(unfit):
        bad = place.run(f"bad{number}", runs.measured(), **change)
        place.refused(good, bad, holding=[str(bad), *words])
    assert not place.results.exists()
    said = []
    assert CELL in runs.cells(place.export(place.runs, say=said.append)[0])
    assert [each.startswith("left out: ") for each in said] == [True] * len(unfit)


def test_damaged_lines_are_refused_with_their_number_and_a_torn_last_one_is_left_out(place):
    ran = place.run("a", runs.measured(), runs.measured("gla"))
    text = (ran / RECORDS).read_text()
    (ran / RECORDS).write_text(text[:-20])
    assert list(runs.cells(*place.export(ran))) == [CELL]
    (ran / RECORDS).write_text("{}\n" + text.splitlines(keepends=True)[1])
    place.refused(ran, holding=["line 1"])
    (ran / HEADER).write_text('{"schema": 3')
    place.refused(ran, holding=[str(ran), "damaged"])


def test_this_machine_is_entered_without_asking_and_what_is_others_stays(tmp_path):
    file, here = tmp_path / "home" / "machines", this_machine().to_dict()
    before = entry({**here, "versions": {"torch": "1.0"}})
    neighbour = entry({**here, "name": here["name"] + "-2"})
    file.parent.mkdir()
    known = {each["machine"]: each for each in (before, neighbour)}
    file.write_text(json.dumps({**known, "laptop": {"machine": "laptop"}, "version": 1}))
    name = ensure_machine(file)
    assert set(json.loads(file.read_text())) == {neighbour["machine"], "laptop", name, "version"}
    assert AsvMachine.load(machine_name=name, _path=str(file)).__dict__ == entry(here)
    written = file.stat().st_mtime_ns
    assert ensure_machine(file) == name
    assert file.stat().st_mtime_ns == written


MIXED = ("sdpa", "my.good", "mha?core=my.good")


def with_kernels(place, commit, **more):
    """A run of rows of attnbench's and of a distribution's, each of a commit of its own."""
    facts = {"rows": ["my.good"], "commit": commit, "dirty": False, **more}
    records = [runs.measured(variant) for variant in MIXED]
    return place.run("mixed", *records, sha=place.first, outside={"mine 0.1": facts})


@pytest.mark.parametrize("own", [False, True])
def test_rows_are_filed_under_the_commit_of_their_own_code(place, monkeypatch, own):
    """attnbench's in a clone, whichever these are run with; a distribution's in its repository."""
    run, said = with_kernels(place, place.second), []
    monkeypatch.setattr(runs.CloneOf, "own", own)
    (file,) = place.export(run, say=said.append)
    commit, names = (place.second, MIXED[1:]) if own else (place.first, MIXED[:1])
    assert file.name.startswith(commit[:8])
    assert {cell[0].strip("'") for cell in runs.cells(file)} == {*names}
    assert f"{len(MIXED) - len(names)} measurement" in said[0]


@pytest.mark.parametrize(
    ("commit", "more", "says"),
    [
        (None, {}, "holds no rows of a commit of"),
        ("0" * 40, {}, "holds no rows of a commit of"),
        ("", {"dirty": True}, "changes that no commit holds"),
    ],
)
def test_rows_whose_commit_is_not_known_are_not_filed(place, monkeypatch, commit, more, says):
    monkeypatch.setattr(runs.CloneOf, "own", True)
    run = with_kernels(place, place.second if commit == "" else commit, **more)
    place.refused(run, holding=[says])
