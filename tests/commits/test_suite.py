"""What asv is shown: which benchmarks there are, and what each hands over of a record."""

import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace

import pytest
from asv._stats import is_different
from asv_runner.benchmarks.mark import SkipNotImplemented
from asv_runner.statistics import compute_stats

import impls
from attnbench.core.machine import Gpu, this_machine
from attnbench.core.record import PROTOCOL, Energy, Error, Memory, Record, Time
from attnbench.features.commits import benchmark_kinds as kinds
from attnbench.features.commits import measurement, suite
from attnbench.features.commits.suite import AsvRequest, Cache, SuiteRow
from attnbench.sweep.plan import make_plan
from impls.problem import Problem

CHECKOUT = Path(__file__).resolve().parents[2]
KEY = ("matmul", 128, "forward")
SAMPLES = [0.004, 0.001, 0.003, 0.002, 0.0035, 0.0015, 0.0025]


def record(**changes):
    time = Time(
        median_s=0.0025,
        low_s=0.001,
        high_s=0.004,
        q25_s=0.0015,
        q75_s=0.0035,
        min_s=0.001,
        n=7,
        clock="host",
        stop="budget",
        samples_s=SAMPLES,
    )
    errors = {
        "forward": Error(relative=1.23456e-7, max=0.0, worst_row=0.0, cosine=1.0),
        "dq": Error(relative=4.56789e-7, max=0.0, worst_row=0.0, cosine=1.0),
    }
    memory = Memory(peak_bytes=123_457, saved_bytes=None, expected_bytes=None, method="events")
    whole = {
        "status": "measured",
        "variant": "matmul",
        "problem": Problem().to_dict(),
        "time": time,
        "memory": memory,
        "error": errors,
    }
    return Record(**{**whole, **changes})


def told(kind, here, monkeypatch, cache, *, quick=False, key=KEY):
    """What a benchmark says to asv from a folder."""
    monkeypatch.chdir(here)
    sources = [SimpleNamespace(repeat=1)] if quick else []
    return kind("attention.x", lambda: None, sources).run(cache, *key)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_commit_takes_at_most_sixty_cells(device):
    cells = suite.keys(AsvRequest(device, energy=True))
    assert 0 < len(cells) <= 60
    assert len(cells) == prod(map(len, suite.parameters("time", device)))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_variant_of_the_suite_is_in_the_table_under_the_name_it_has_there(device):
    table = impls.table(())
    for name in suite.grid(device).variants:
        assert table.find(name).label == name
        assert device in table.find(name).devices


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_cell_of_the_suite_can_be_asked_of_its_device(device):
    gpu = Gpu("A GPU", "GPU-1", 9.0, 1 << 37, "570")
    here = replace(this_machine(), gpus=(gpu,), torch_cuda="13.0")
    plan = make_plan(impls.table(()), (), suite.grid(device), here)
    assert len(plan.cells) == len(suite.keys(AsvRequest(device)))
    assert [c.left_out.reason for c in plan.cells if c.left_out] == []


def test_the_benchmarks_are_described_as_asv_finds_them(tmp_path):
    found = discovered(tmp_path, AsvRequest(energy=True))
    for name, said in suite.benchmarks(AsvRequest(energy=True)).items():
        assert {key: found[name][key] for key in said} == said
    assert set(found) == {f"attention.{x}" for x in ("time", "memory", "error", "energy")}
    assert found["attention.memory"]["version"] == f"protocol {PROTOCOL}"
    assert found["attention.time"]["version"] == f"protocol {PROTOCOL}, a value a process"
    assert found["attention.energy"]["params"][1] == ["512"]


def test_one_set_up_serves_all_benchmarks(tmp_path):
    keys = {
        each["setup_cache_key"] for each in discovered(tmp_path, AsvRequest(energy=True)).values()
    }
    assert len(keys) == 1
    assert None not in keys


def test_energy_is_no_benchmark_where_nothing_counts_it(tmp_path):
    assert set(discovered(tmp_path, AsvRequest())) == set(suite.benchmarks(AsvRequest()))
    assert "attention.energy" not in suite.benchmarks(AsvRequest())


def test_where_commits_take_turns_the_time_has_rounds_and_the_rest_has_one(tmp_path):
    alone, turns = (discovered(tmp_path, AsvRequest(interleaved=x)) for x in (False, True))
    assert {each["rounds"] for each in alone.values()} == {1}
    assert turns["attention.time"]["rounds"] == suite.PROCESSES
    assert turns["attention.memory"]["rounds"] == 1


def discovered(folder, asked):
    """What asv's own discovery says, in a process of its own."""
    environment = {**os.environ}
    asked.hand_on(environment)
    result = folder / "found.json"
    code = f"from asv_runner.discovery import _discover; _discover({_words(result)})"
    subprocess.run([sys.executable, "-P", "-c", code], env=environment, check=True, cwd=folder)
    return {each["name"]: each for each in json.loads(result.read_text())}


def _words(result):
    return [str(CHECKOUT / "benchmarks"), str(result)]


def test_the_benchmarks_load_the_checkouts_ruler_and_neither_torch_nor_what_is_measured(tmp_path):
    for name in ("attnbench", "impls"):  # what an environment may have of a commit
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the commit is broken')")
    code = (
        "import sys; from asv_runner.discovery import _discover; "
        f"_discover({_words(tmp_path / 'x')}); "
        "print(sorted({'torch', 'impls', 'pandas'} & set(sys.modules)), "
        "sys.modules['attnbench'].__file__, sys.path)"
    )
    environment = {
        **os.environ,
        "ASV_ENV_TYPE": "shared",
        "ASV_ENV_DIR": str(tmp_path),
        "PYTHONPATH": str(tmp_path),
    }
    said = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    ).stdout
    assert said.startswith(f"[] {CHECKOUT / 'attnbench'}")
    assert f"'{CHECKOUT}'" not in said


def test_each_figure_is_what_the_record_says():
    figures = suite.row(record()).figures
    assert figures == {"time": [0.0025], "memory": 123_457, "error": 4.568e-7, "energy": None}
    drawn = suite.row(record(energy=Energy(joules=0.0123456))).figures
    assert drawn["energy"] == 0.01235


def test_what_is_exact_has_an_error_that_asv_can_take_the_logarithm_of():
    exact = {"forward": Error(relative=0.0, max=0.0, worst_row=0.0, cosine=1.0)}
    assert suite.row(record(error=exact)).figures["error"] == suite.LEAST > 0


def test_a_figure_that_nobody_could_take_is_none():
    bare = suite.row(record(memory=None, error=None, energy=Energy(why="no counter")))
    assert bare.figures == {"time": [0.0025], "memory": None, "error": None, "energy": None}


def test_asv_gets_every_processs_value_and_comes_to_their_median(tmp_path, monkeypatch):
    values = SuiteRow("measured", "", {"time": SAMPLES})
    given = told(kinds.TimeBenchmark, tmp_path, monkeypatch, Cache({KEY: values}))
    assert given == {"samples": SAMPLES, "number": 1}
    result, stats = compute_stats(given["samples"], given["number"])
    assert result == statistics.median(SAMPLES)
    assert stats["repeat"] == len(SAMPLES)


def test_as_many_processes_as_asv_needs_to_tell_two_commits_apart_and_no_fewer():
    def told_apart(n, swapped=0):
        low, high = [1.0 + i / 100 for i in range(n)], [2.0 + i / 100 for i in range(n)]
        low[-1], high[0] = (high[0], low[-1]) if swapped else (low[-1], high[0])
        both = [compute_stats(values, 1)[1] for values in (low, high)]
        return is_different(low, high, *both)

    assert told_apart(suite.PROCESSES)
    assert told_apart(suite.PROCESSES, swapped=1)
    assert not told_apart(suite.PROCESSES - 1)


def test_values_are_handed_over_once_and_then_measured_anew(tmp_path, monkeypatch):
    asked = []

    def anew(key, how, here):
        asked.append((key, how.quick, here))
        return SuiteRow("measured", "", {"time": [0.5]})

    monkeypatch.setattr(measurement, "measure_again", anew)
    row = SuiteRow("measured", "", {"time": SAMPLES})
    cache = Cache({KEY: row, ("sdpa", 128, "forward"): row})
    assert told(kinds.TimeBenchmark, tmp_path, monkeypatch, cache)["samples"] == SAMPLES
    again = told(kinds.TimeBenchmark, tmp_path, monkeypatch, cache, quick=True)
    assert again == {"samples": [0.5], "number": 1}
    assert asked == [(KEY, True, tmp_path)]
    other = told(kinds.TimeBenchmark, tmp_path, monkeypatch, cache, key=("sdpa", 128, "forward"))
    assert other["samples"] == SAMPLES


def test_one_number_a_cell_is_looked_up_as_often_as_asked(tmp_path, monkeypatch):
    cache = Cache({KEY: suite.row(record(energy=Energy(joules=2.0)))})
    for kind, value in (
        (kinds.MemoryBenchmark, 123_457),
        (kinds.ErrorBenchmark, 4.568e-7),
        (kinds.EnergyBenchmark, 2.0),
    ):
        assert [told(kind, tmp_path, monkeypatch, cache) for _ in range(2)] == [value, value]


@pytest.mark.parametrize("status", ["wrong", "implausible", "failed", "crashed", "timed_out"])
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_what_went_wrong_is_an_error_with_its_reason_and_never_a_figure(
    tmp_path, monkeypatch, status, kind
):
    row = SuiteRow(
        status, "it sees too much", {"time": [1.0], "memory": 1, "error": 1.0, "energy": 1.0}
    )
    with pytest.raises(
        kinds.NoFigure, match=f"matmul at 128, forward, is {status}: it sees too much"
    ):
        told(kind, tmp_path, monkeypatch, Cache({KEY: row}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_what_cannot_be_asked_is_skipped_in_the_records_words(tmp_path, monkeypatch, capsys, kind):
    row = SuiteRow("unsupported", "fixed takes no padding", {})
    with pytest.raises(SkipNotImplemented, match="fixed takes no padding"):
        told(kind, tmp_path, monkeypatch, Cache({KEY: row}))
    assert capsys.readouterr().out == "asv: skipped: fixed takes no padding\n"
    with pytest.raises(SkipNotImplemented, match="another contract"):
        told(kind, tmp_path, monkeypatch, Cache({}, "another contract"))


def test_a_figure_that_is_missing_is_skipped_and_said_so(tmp_path, monkeypatch):
    with pytest.raises(SkipNotImplemented, match="the record has no energy"):
        told(
            kinds.EnergyBenchmark,
            tmp_path,
            monkeypatch,
            Cache({KEY: suite.row(record())}),
        )
    bare = suite.row(record(memory=None, energy=Energy(why="the counter did not move")))
    for kind, why in (
        (kinds.EnergyBenchmark, "counter did not move"),
        (kinds.MemoryBenchmark, "has no memory"),
    ):
        with pytest.raises(SkipNotImplemented, match=why):
            told(kind, tmp_path, monkeypatch, Cache({KEY: bare}))


def test_asv_knows_the_kinds_once_however_often_they_are_taught():
    kinds.register()
    kinds.register()
    from asv_runner.benchmarks import benchmark_types

    assert [benchmark_types.count(kind) for kind in kinds.KINDS] == [1, 1, 1, 1]
    for kind in kinds.KINDS:
        first = next(t for t in benchmark_types if t.name_regex.match(kind.figure))
        assert first is kind


def test_only_the_cells_that_an_expression_names_are_measured():
    asked = AsvRequest(bench=(r"time.*'sdpa', (128|256), 'forward'", "memory.*gla.*512.*train"))
    assert suite.keys(asked) == [
        ("sdpa", 128, "forward"),
        ("sdpa", 256, "forward"),
        ("gla", 512, "train"),
    ]
    assert suite.keys(AsvRequest(bench=("nobody",))) == []
    assert suite.keys(AsvRequest(bench=("energy",))) == []
    lengths = {n for _, n, _ in suite.keys(AsvRequest(bench=("energy",), energy=True))}
    assert lengths == {512}
