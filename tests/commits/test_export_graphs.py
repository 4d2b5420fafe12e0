"""Exported runs in asv's graphs: which share one, and what asv lists."""

import json
import sys
from itertools import product
from pathlib import Path

import pytest
from asv.machine import Machine as AsvMachine

from attnbench.core.machine import this_machine
from attnbench.features.commits import asv, suite
from attnbench.features.commits.asv import ensure_machine
from attnbench.features.commits.suite import AsvRequest
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
CELL = ("'sdpa'", "128", "'forward'")


def changed(record, **problem):
    """The record of another problem, by its JSON values."""
    return record.with_(problem={**record.problem.to_dict(), **problem})


def test_the_suites_own_problem_has_the_suites_names_params_and_units(place):
    every = [
        runs.measured(v, seq=int(n), phase=p, energy=1.0)
        for v, n, p in product(*suite.parameters("time", "cpu"))
    ]
    place.export(runs.altered(place.run("a", *every), energy=True))
    listed = json.loads((place.results / asv.FILE).read_text())
    wanted = suite.benchmarks(AsvRequest(energy=True))
    assert set(listed) == {*wanted, "version"}
    for name, told in wanted.items():
        for said in ("unit", "type", "version", "param_names", "pretty_name"):
            assert listed[name][said] == told[said]
        for ours, theirs in zip(listed[name]["params"], told["params"], strict=True):
            assert set(theirs) <= set(ours)


def test_a_run_of_this_machine_has_the_facets_that_asv_gives_its_own(place, tmp_path):
    name = ensure_machine(tmp_path / "machines")
    theirs = AsvMachine.load(machine_name=name, _path=str(tmp_path / "machines"))
    shared = f"{sys.version_info.major}.{sys.version_info.minor}"  # asv's name for its Python
    here = json.loads(json.dumps(this_machine().to_dict()))
    (file,) = place.export(place.run("a", runs.measured(), machine=here))
    assert json.loads(file.read_text())["params"] == {**theirs.__dict__, "python": shared}


@pytest.mark.parametrize(
    ("change", "group"),
    [
        ({"heads": 8, "kv_heads": 8}, "b1-h8-d64-f32-causal"),
        ({"heads": 8, "kv_heads": 2}, "b1-h8of2-d64-f32-causal"),
        ({"head_dim": 128}, "b1-h4-d128v64-f32-causal"),
        ({"dtype": "bfloat16"}, "b1-h4-d64-bf16-causal"),
        ({"kv_len": 256}, "b1-h4-d64-f32-causal-q128"),
        ({"inputs": "peaky"}, "b1-h4-d64-f32-causal-peaky"),
        ({"level": "layer"}, "b1-h4-d64-f32-causal-layer"),
        ({"batch": 2}, "b2-h4-d64-f32-causal"),
    ],
)
def test_another_problem_is_in_graphs_of_its_own(place, change, group):
    record = runs.measured()
    other = changed(runs.measured(median=0.5), **change)
    (file,) = place.export(place.run("a", record, other))
    length = str(change.get("kv_len", 128))
    assert runs.cells(file, f"{group}.time")["'sdpa'", length, "'forward'"][0] == 0.5
    assert runs.cells(file)[CELL][0] == pytest.approx(0.001)
    listed = json.loads((place.results / asv.FILE).read_text())
    assert listed[f"{group}.time"]["pretty_name"] != listed["attention.time"]["pretty_name"]


def test_files_that_masks_are_read_from_are_told_apart(place):
    one = changed(runs.measured(median=0.5), mask="dense:a/b.npy")
    other = changed(runs.measured(median=0.25), mask="dense:a_b.npy")
    (file,) = place.export(place.run("a", one, other))
    names = [n for n in json.loads((place.results / asv.FILE).read_text()) if ".time" in n]
    assert sorted(runs.cells(file, name)[CELL][0] for name in names) == [0.25, 0.5]


def test_another_number_of_threads_is_in_graphs_of_its_own(place):
    ran = runs.altered(place.run("a", runs.measured()), settings={"threads": 2})
    (file,) = place.export(ran)
    assert runs.cells(file) == {}
    assert CELL in runs.cells(file, "b1-h4-d64-f32-causal-2-threads.time")


def test_on_a_machine_with_a_gpu_the_suites_graphs_are_of_the_gpu(place):
    on_cpu, on_gpu = runs.measured(median=0.5), runs.measured(device="cuda")
    (file,) = place.export(place.run("a", on_cpu, on_gpu, machine=runs.GPU_BOX))
    assert runs.cells(file)[CELL][0] == pytest.approx(0.001)
    assert runs.cells(file, "b1-h4-d64-f32-causal.time")[CELL][0] == 0.5


def test_the_same_problem_on_the_processor_is_not_in_the_graphs_of_the_gpu(place):
    on_cpu = changed(runs.measured(median=0.5, device="cuda"), device="cpu")
    (file,) = place.export(
        place.run("a", on_cpu, runs.measured(device="cuda:1"), machine=runs.GPU_BOX)
    )
    cell = ("'sdpa'", "128", "'forward'")
    assert runs.cells(file)[cell][0] == pytest.approx(0.001)
    assert runs.cells(file, "b2-h16-d128-bf16-causal.time")[cell][0] == 0.5


def test_what_asv_listed_before_is_listed_still_and_more_besides(place):
    place.results.mkdir()
    listed = suite.benchmarks()
    (place.results / asv.FILE).write_text(json.dumps({**listed, "version": asv.INDEX_FORM}))
    place.export(place.run("a", runs.measured("lsh", seq=4096)))
    variants, lengths, _ = json.loads((place.results / asv.FILE).read_text())["attention.time"][
        "params"
    ]
    assert {"'lsh'", *listed["attention.time"]["params"][0]} == set(variants)
    assert lengths == [*listed["attention.time"]["params"][1], "4096"]


def test_what_asv_forgot_of_older_exports_is_listed_again(place):
    place.export(place.run("a", runs.measured("lsh"), sha=place.first))
    (place.results / asv.FILE).write_text(json.dumps({"version": asv.INDEX_FORM}))
    place.export(place.run("b", runs.measured("gla")))
    listed = json.loads((place.results / asv.FILE).read_text())
    assert listed["attention.time"]["params"][0] == ["'gla'", "'lsh'"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"version": 1}',
        '{"version": 2, "attention.time": 3}',
        '{"version": 2, "attention.time": {"version": "protocol 2"}}',
    ],
)
def test_a_damaged_list_is_made_anew(place, text):
    place.results.mkdir()
    (place.results / asv.FILE).write_text(text)
    place.export(place.run("a", runs.measured()))
    listed = json.loads((place.results / asv.FILE).read_text())
    assert listed["attention.time"]["params"] == [["'sdpa'"], ["128"], ["'forward'"]]


def test_what_another_ruler_measured_is_not_listed(place):
    (file,) = place.export(place.run("a", runs.measured("lsh"), sha=place.first))
    file.write_text(file.read_text().replace(suite.VERSION, "protocol 0"))
    (place.results / asv.FILE).unlink()
    place.export(place.run("b", runs.measured("gla")))
    listed = json.loads((place.results / asv.FILE).read_text())
    assert listed["attention.time"]["params"][0] == ["'gla'"]
