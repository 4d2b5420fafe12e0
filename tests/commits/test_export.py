"""Runs as asv's results: what each cell says there, and what several runs say of one."""

import json
import statistics
from pathlib import Path

import pytest

from attnbench.core.record import Energy, Status
from attnbench.features.commits import suite
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
CELL = ("'sdpa'", "128", "'forward'")

TRIED = [s for s in Status if s not in ("measured", "unsupported", "unavailable")]


def test_a_run_is_one_process_and_gives_one_value_its_records_median(place):
    record = runs.measured(median=0.004)
    value, samples = place.cells(place.run("a", record))[CELL]
    assert samples == [statistics.median(record.time.samples_s)]
    assert value == samples[0]


def test_samples_that_an_earlier_version_exported_become_one_value(place):
    ran = [place.run(name, runs.measured(median=m)) for name, m in (("a", 0.002), ("b", 0.003))]
    (file,) = place.export(ran[0])
    said = json.loads(file.read_text())
    column = said["result_columns"].index("samples"), said["result_columns"].index("version")
    row = said["results"]["attention.time"]
    row[column[0]], row[column[1]] = [[0.001, 0.002, 0.009]], suite.VERSION
    file.write_text(json.dumps(said))
    (file,) = place.export(ran[1])
    assert runs.cells(file)[CELL][1] == [0.002, 0.003]


def test_memory_and_error_are_the_figures_that_the_suite_takes(place):
    record = runs.measured()
    (file,) = place.export(place.run("a", record))
    for name, figure in suite.FIGURES.items():
        if name in ("memory", "error"):
            assert runs.cells(file, f"attention.{name}")[CELL] == (figure.of(record), None)


@pytest.mark.parametrize("status", ["unsupported", "unavailable"])
def test_what_is_not_to_be_had_is_skipped(place, status):
    found = place.cells(place.run("a", runs.ended(status), runs.measured("matmul")))
    assert runs.skipped(found[CELL][0])
    assert found[CELL][1] is None


@pytest.mark.parametrize("status", TRIED)
@pytest.mark.parametrize("figure", ["time", "memory", "error"])
def test_what_did_not_end_as_measured_is_failed(place, status, figure):
    ran = place.run("a", runs.ended(status), runs.measured("matmul"))
    found = place.cells(ran, name=f"attention.{figure}")
    assert found[CELL] == (None, None)
    assert found["'matmul'", "128", "'forward'"][0] > 0


def test_what_no_run_asked_for_is_skipped_and_not_failed(place):
    found = place.cells(
        place.run("a", runs.measured("sdpa", seq=128), runs.measured("matmul", seq=256))
    )
    assert len(found) == 4
    assert runs.skipped(found["'sdpa'", "256", "'forward'"][0])


def test_a_figure_that_a_measured_record_lacks_is_skipped(place):
    record = runs.measured(energy=2.0)
    without = runs.measured("matmul").with_(energy=Energy(why="no counter"))
    ran = runs.altered(place.run("a", record, without), energy=True)
    found = place.cells(ran, name="attention.energy")
    assert found[CELL] == (2.0, None)
    assert runs.skipped(found["'matmul'", "128", "'forward'"][0])


def test_where_energy_was_not_asked_for_nothing_is_said_of_it(place):
    ran = place.run("a", runs.measured(), runs.ended("wrong", "matmul"))
    assert place.cells(ran, name="attention.energy") == {}


def test_lengths_are_numbers_in_order_for_they_are_an_axis(place):
    records = [runs.measured(seq=n) for n in (1024, 128, 512)]
    assert [seq for _, seq, _ in place.cells(place.run("a", *records))] == ["128", "512", "1024"]


def test_the_suites_variants_are_the_first_for_asv_draws_no_more_than_eight(place):
    records = [runs.measured(name) for name in ("bmm", "sdpa", "abc", "matmul")]
    found = [variant for variant, *_ in place.cells(place.run("a", *records))]
    assert found == ["'matmul'", "'sdpa'", "'abc'", "'bmm'"]


def test_in_decoding_the_length_is_that_of_the_cache(place):
    found = place.cells(place.run("a", runs.measured(seq=512, phase="decode")))
    assert list(found) == [("'sdpa'", "512", "'decode'")]


def test_the_same_run_exported_twice_says_the_same(place):
    ran = place.run("a", runs.measured(), runs.ended("wrong", "matmul"))
    (file,) = place.export(ran)
    before = file.read_bytes()
    assert place.export(ran) == [file]
    assert file.read_bytes() == before
    assert place.export(ran, ran, place.runs) == [file]
    assert file.read_bytes() == before


@pytest.mark.parametrize("together", [True, False])
def test_two_runs_of_a_commit_are_put_together(place, together):
    both, later = runs.measured(median=0.002), runs.measured(median=0.003)
    a = place.run("a", both, runs.measured("matmul"))
    b = place.run("b", later, runs.measured("gla", seq=256), started="2026-11-22T11:00:00+00:00")
    if together:
        (file,) = place.export(b, a)
    else:
        place.export(a)
        (file,) = place.export(b)
    found = runs.cells(file)
    assert found[CELL][1] == [both.time.median_s, later.time.median_s]
    assert found["'matmul'", "128", "'forward'"][0] == pytest.approx(0.001)
    assert found["'gla'", "256", "'forward'"][0] == pytest.approx(0.001)


def test_of_one_figure_a_cell_the_later_run_says_it(place):
    smaller = runs.measured()
    smaller = smaller.with_(memory=smaller.memory.with_(peak_bytes=512))
    b = place.run("b", smaller, started="2026-11-22T11:00:00+00:00")
    (file,) = place.export(b, place.run("a", runs.measured()))
    assert runs.cells(file, "attention.memory")[CELL] == (512, None)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("figure", ["time", "memory", "error"])
def test_what_failed_in_one_run_of_a_commit_stays_failed(place, order, figure):
    ran = {"a": place.run("a", runs.measured()), "b": place.run("b", runs.ended("wrong"))}
    for each in order:
        (file,) = place.export(ran[each])
    assert runs.cells(file, f"attention.{figure}")[CELL] == (None, None)


def test_a_commit_that_another_run_left_out_keeps_its_figures(place):
    ran = [place.run("a", runs.measured()), place.run("b", runs.ended("unavailable"))]
    (file,) = place.export(*ran)
    assert runs.cells(file)[CELL][0] == pytest.approx(0.001)
    assert runs.cells(file, "attention.memory")[CELL][0] == 1 << 20


def test_each_commit_has_a_file_with_its_date(place):
    files = place.export(
        place.run("a", runs.measured(), sha=place.first),
        place.run("b", runs.measured(), sha=place.second),
    )
    said = [json.loads(file.read_text()) for file in files]
    assert [each["commit_hash"] for each in said] == [place.first, place.second]
    assert said[1]["date"] - said[0]["date"] == 24 * 60 * 60 * 1000
    assert len({each["env_name"] for each in said}) == 1  # or asv would not compare them


def test_runs_of_two_machines_are_two_machines_of_asvs(place):
    newer = {**runs.BOX, "versions": {"torch": "2.14.0"}}
    machines = [runs.BOX, newer, runs.GPU_BOX]
    files = place.export(
        *(place.run(str(i), runs.measured(median=i + 1), machine=m) for i, m in enumerate(machines))
    )
    assert len({file.parent for file in files}) == 3
    for i, (file, machine) in enumerate(zip(files, machines, strict=True)):
        told = json.loads((file.parent / "machine.json").read_text())
        assert told["machine"] == file.parent.name
        assert told["torch"] == machine["versions"]["torch"]
        name = "attention" if i < 2 else "b1-h4-d64-f32-causal"
        assert runs.cells(file, f"{name}.time")[CELL][0] == i + 1


def test_what_the_nodes_of_a_cluster_measured_is_theirs(place):
    nodes = {"h200": {"machine": {**runs.GPU_BOX, "name": "node"}}}
    ran = place.run("a", runs.measured(node="h200", device="cuda"), nodes=nodes)
    (file,) = place.export(ran)
    assert file.parent.name.startswith("node-")
    assert json.loads((file.parent / "machine.json").read_text())["gpu"] == "NVIDIA H200"
