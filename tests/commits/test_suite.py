"""What asv is shown: the benchmarks, what is measured for them, the machine and the command."""

import itertools
import json
import os
import statistics
import subprocess
import sys
from argparse import Namespace
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from asv._stats import is_different
from asv.util import UserError
from asv_runner.benchmarks.mark import SkipNotImplemented
from asv_runner.statistics import compute_stats

from attnbench.core import machine
from attnbench.core.record import PROTOCOL, Energy, Error
from attnbench.features.commits import asv_interface, environment, measurement, suite
from attnbench.features.commits.suite import AsvRequest, Cache, SuiteRow
from attnbench.sweep import engine
from attnbench.sweep.engine import Refused
from impls.errors import CantBeDone
from tests.calling import ROOT
from tests.commits import runs

KEY = ("matmul", 128, "forward")
SAMPLES = [0.004, 0.001, 0.003, 0.002, 0.0035, 0.0015, 0.0025]


def discovered(folder, request):
    """What asv's own discovery says, in a process of its own that loads nothing that is slow."""
    environment = {**os.environ}
    request.hand_on(environment)
    words = [str(ROOT / "benchmarks"), str(folder / "found.json")]
    code = f"from asv_runner.discovery import _discover; _discover({words}); import sys; "
    code += "assert not {'torch', 'impls', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", code], env=environment, check=True, cwd=folder)
    return {each["name"]: each for each in json.loads((folder / "found.json").read_text())}


def test_the_benchmarks_are_described_as_asv_finds_them(tmp_path):
    request = AsvRequest(energy=True, interleaved=True)
    found = discovered(tmp_path, request)
    assert set(found) == set(suite.benchmarks(request))
    for name, said in suite.benchmarks(request).items():
        assert {key: found[name][key] for key in said} == said
    assert found["attention.time"]["version"] == f"protocol {PROTOCOL}, a value a process"
    assert found["attention.energy"]["params"][1] == ["512"]
    assert [found[f"attention.{n}"]["rounds"] for n in ("time", "memory")] == [suite.PROCESSES, 1]
    assert len({each["setup_cache_key"] for each in found.values()} - {None}) == 1
    assert "attention.energy" not in suite.benchmarks(AsvRequest())


def test_each_figure_is_what_the_record_says_and_none_is_none():
    record = runs.measured(energy=0.0123456)
    assert suite.row(record).figures == {
        "time": [record.time.median_s],
        "memory": 1 << 20,
        "error": 1.235e-7,
        "energy": 0.01235,
    }
    exact = {"forward": Error(relative=0.0, max=0.0, worst_row=0.0, cosine=1.0)}
    assert suite.row(record.with_(error=exact)).figures["error"] == suite.LEAST > 0
    bare = record.with_(memory=None, error=None, energy=Energy(why="no counter"))
    assert list(suite.row(bare).figures.values())[1:] == [None] * 3
    assert suite.row(bare).reason == "no counter"


def test_as_many_processes_as_asv_needs_to_tell_two_commits_apart_and_no_fewer():
    def told_apart(n, swapped=0):
        low, high = [1.0 + i / 100 for i in range(n)], [2.0 + i / 100 for i in range(n)]
        low[-1], high[0] = (high[0], low[-1]) if swapped else (low[-1], high[0])
        both = [compute_stats(values, 1)[1] for values in (low, high)]
        return is_different(low, high, *both)

    assert told_apart(suite.PROCESSES)
    assert told_apart(suite.PROCESSES, swapped=1)
    assert not told_apart(suite.PROCESSES - 1)


def told(kind, row, key=KEY, *, quick=False):
    """What a benchmark says to asv of a row."""
    cache = Cache({}, row) if isinstance(row, str) else Cache({key: row})
    sources = [SimpleNamespace(repeat=1)] if quick else []
    return kind("attention.x", lambda: None, sources).run(cache, *key)


def test_values_are_handed_over_once_and_then_measured_anew(tmp_path, monkeypatch):
    again = []

    def anew(key, request, here):
        again.append((key, request.quick, here))
        return SuiteRow("measured", "", {"time": [0.5]})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measurement, "measure_again", anew)
    row = SuiteRow("measured", "", {"time": SAMPLES, "memory": 7})
    given = told(measurement.KINDS[0], row)
    assert given == {"samples": SAMPLES, "number": 1}
    assert compute_stats(**given)[0] == statistics.median(SAMPLES)
    assert told(measurement.KINDS[0], row, quick=True) == {"samples": [0.5], "number": 1}
    assert again == [(KEY, True, tmp_path)]
    assert told(measurement.KINDS[0], row, ("sdpa", 128, "forward"))["samples"] == SAMPLES
    assert [told(measurement.KINDS[1], row) for _ in "ab"] == [7, 7]


@pytest.mark.parametrize("kind", measurement.KINDS)
def test_what_has_no_figure_is_an_error_or_skipped_and_why(tmp_path, monkeypatch, kind, capsys):
    monkeypatch.chdir(tmp_path)
    figures = {"time": [1.0], "memory": 1, "error": 1.0, "energy": 1.0}
    for status in ("wrong", "implausible", "failed", "crashed", "timed_out"):
        said = f"matmul at 128, forward, is {status}: it sees too much"
        with pytest.raises(measurement.NoFigure, match=said):
            told(kind, SuiteRow(status, "it sees too much", figures))
    assert list(tmp_path.iterdir()) == []
    for row, why in (
        (SuiteRow("unsupported", "fixed takes no padding", {}), "fixed takes no padding"),
        (SuiteRow("measured", "", {}), f"the record has no {kind.figure}"),
        ("another contract", "another contract"),
    ):
        with pytest.raises(SkipNotImplemented, match=why):
            told(kind, row)
        assert capsys.readouterr().out == f"asv: skipped: {why}\n"


@pytest.fixture
def few(monkeypatch):
    """Two variants at two lengths."""
    grid = suite.PRESETS["history"].with_(
        variants=("matmul", "sdpa"), seq=("16", "32"), heads=(1,), head_dim=(8,)
    )
    monkeypatch.setattr(suite, "grid", lambda device: grid)


@pytest.fixture
def processes(monkeypatch):
    """The processes that timed something: of each the cells, in the order that it took them."""
    taken = []

    class Worker:
        def hold(self, variant, problem):
            if variant == "sdpa" and len(taken) == 3:
                raise Refused("failed: it is not what it was", "failed")
            taken[-1].append((variant, problem.kv_len, problem.phase))
            return self

        def fresh(self):
            self.place = next(self.places)

        def samples(self, count):
            return [self.place] * count

    @contextmanager
    def opened(folder):
        taken.append([])
        worker = Worker()
        worker.places = itertools.cycle([5e-4 * len(taken), 2e-3, 1e-3 * len(taken), 3e-3])
        yield worker

    monkeypatch.setattr(engine, "open_worker", lambda *_, **__: opened)
    return taken


SWEPT = {
    (v, 16, "train"): SuiteRow("measured", "", {"time": [9.0], "memory": 7})
    for v in ("matmul", "sdpa")
}


def test_each_process_gives_one_value_the_median_in_its_best_place(few, processes):
    left = {("matmul", 32, "train"): SuiteRow("wrong", "it sees too much", {})}
    rows = measurement._timed({**SWEPT, **left}, [*SWEPT, *left], AsvRequest(), ROOT, 2)
    assert [sorted(cells) for cells in processes] == [sorted(SWEPT)] * 2
    for row in rows.values():
        assert row == SuiteRow("measured", "", {"time": [5e-4, 1e-3], "memory": 7})


@pytest.mark.parametrize(
    ("asked", "wanted"), [({"interleaved": True}, 1), ({}, suite.PROCESSES), ({"quick": True}, 0)]
)
def test_a_sweep_a_command_a_process_a_round(few, processes, tmp_path, monkeypatch, asked, wanted):
    swept = []
    monkeypatch.setattr(measurement, "_swept", lambda *_, **__: swept.append(1) or {**SWEPT})
    asked = AsvRequest(**asked, bench=("16, 'train'",), kept=str(tmp_path))
    rounds = [measurement.measure_all(asked, tmp_path / name).rows for name in "ab"]
    assert (len(swept), len(processes)) == (1, 2 * wanted)
    matmul, sdpa = (rounds[0][name, 16, "train"] for name in ("matmul", "sdpa"))
    assert rounds[1]["matmul", 16, "train"].figures["memory"] == matmul.figures["memory"] == 7
    if wanted > 2:  # the third process refuses it
        assert sdpa == SuiteRow("failed", "failed: it is not what it was", {})
        assert len(matmul.figures["time"]) == wanted


def test_a_cell_has_to_be_implausible_twice(few, tmp_path, monkeypatch):
    swept = []
    doubted = SuiteRow("implausible", "it kept 1.4 processors busy and was given 1 thread", {})

    def sweep(keys, *_, **__):
        swept.append(sorted(keys))
        liar = ("matmul", 16, "train")
        return {k: doubted if k == liar or len(swept) == 1 else SWEPT[k] for k in keys}

    monkeypatch.setattr(measurement, "_swept", sweep)
    rows = measurement.measure_all(AsvRequest(quick=True, bench=("16, 'train'",)), tmp_path).rows
    assert swept == [sorted(SWEPT)] * 2
    assert rows["sdpa", 16, "train"].status == "measured"
    assert rows["matmul", 16, "train"] == doubted


def test_asv_is_told_of_the_machine_and_its_processes_of_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(environment.Machine, "hardcoded_machine_name", None)
    counter = tmp_path / "intel-rapl:0" / "energy_uj"
    monkeypatch.setattr(machine, "POWERCAP", tmp_path)
    assert not environment._counts_energy()
    counter.parent.mkdir()
    counter.write_text("1")
    (counter.parent / "name").write_text("psys")
    assert not environment._counts_energy()
    (counter.parent / "name").write_text("package-0")
    given = {}
    environment._hand_on(Namespace(quick=True, bench=["x"]), given)
    asked = suite.current_request(given)
    assert (asked.quick, asked.bench, asked.energy) == (True, ("x",), True)
    name = environment.Machine.hardcoded_machine_name
    assert name in json.loads((tmp_path / ".asv-machine.json").read_text())

    def damaged():
        raise CantBeDone("asv's machine file is no JSON")

    monkeypatch.setattr(asv_interface, "ensure_machine", damaged)
    with pytest.raises(UserError, match="is no JSON"):
        environment._hand_on(Namespace(), {})
