"""A sitting: what asv was asked for, whose impls it takes, and what is measured of them."""

import itertools
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from asv.commands import make_argparser

from attnbench.features.commits import measurement, suite
from attnbench.features.commits.suite import AsvRequest, SuiteRow
from attnbench.sweep import holding
from attnbench.sweep.holding import Refused

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("run", AsvRequest()),
        ("run --quick --bench a --bench b HEAD~3..HEAD", AsvRequest(quick=True, bench=("a", "b"))),
        ("run --interleave-rounds", AsvRequest(interleaved=True)),
        ("find HEAD~9..HEAD time.*gla", AsvRequest(bench=("time.*gla",))),
        ("continuous HEAD~1 HEAD", AsvRequest(interleaved=True)),
        ("continuous --no-interleave-rounds HEAD", AsvRequest()),
    ],
)
def test_what_asv_was_asked_for_is_handed_on(words, wanted):
    said = make_argparser()[0].parse_args(words.split())
    asked = suite.request_of(said, "cpu", energy=False)
    assert asked == wanted
    environment = {}
    asked.hand_on(environment)
    assert suite.current_request(environment) == wanted


def test_a_process_that_asv_did_not_start_has_the_defaults():
    assert suite.current_request({}) == AsvRequest()


def test_a_commit_of_another_contract_is_told_from_one_without_and_one_without_impls(tmp_path):
    spec = tmp_path / "spec.py"
    spec.write_text("INTERFACE = 999\n")
    assert measurement.why_not(tmp_path, "0123456789") == (
        "the table of commit 01234567 has version 999 of the contract between table and ruler, and "
        "this attnbench measures version 1; give a commit that has it"
    )
    spec.write_text("")
    assert "says none of the contract" in measurement.why_not(tmp_path, "0123456789")
    spec.unlink()
    assert "says none of the contract" in measurement.why_not(tmp_path, "0123456789")
    assert measurement.why_not(None, "0123456789") == (
        "commit 01234567 has no folder impls; give a later one"
    )
    assert measurement.why_not(CHECKOUT / "impls", "x") == ""


def test_impls_of_somebody_else_are_not_taken_for_the_commits(tmp_path, monkeypatch):
    shared = {"ASV_ENV_TYPE": "shared", "ASV_ENV_DIR": str(tmp_path)}
    assert measurement.impls_of_commit(shared) is None  # those that run now lie in no environment
    shared["ASV_ENV_DIR"] = str(CHECKOUT)
    assert measurement.impls_of_commit(shared) == CHECKOUT / "impls"
    assert measurement.impls_of_commit({}) == CHECKOUT / "impls"
    monkeypatch.setattr(measurement, "find_spec", lambda name: None)
    assert measurement.impls_of_commit(shared) is None


def test_a_variant_that_the_commit_has_not_costs_its_own_rows():
    names, rows = measurement._known([("matmul", 128, "forward"), ("no.such", 128, "forward")])
    assert names == {"matmul": "matmul"}
    (row,) = rows.values()
    assert row.status in ("unsupported", "unavailable")
    assert row.reason.startswith("in the commit's table there is no variant 'no.such'")


def test_a_table_of_the_commits_is_measured_by_itself_and_no_link(tmp_path):
    (tmp_path / "impls" / "__pycache__").mkdir(parents=True)
    (tmp_path / "impls" / "spec.py").write_text("INTERFACE = 1\n")
    first = measurement.laid_out(tmp_path / "impls", tmp_path / "commit")
    assert [p.name for p in (first / "impls").iterdir()] == ["spec.py"]
    assert not (first / "impls").is_symlink()
    assert measurement.laid_out(tmp_path / "impls", tmp_path / "commit") == first


def test_energy_is_counted_where_it_was_asked_for_and_nowhere_else(tmp_path, monkeypatch):
    swept = []

    def sweep(keys, asked, here, first, *, energy):
        swept.append((energy, {length for _, length, _ in keys}, len(keys)))
        return {}

    monkeypatch.setattr(measurement, "_swept", sweep)
    monkeypatch.setattr(measurement, "_timed", lambda *_: {})
    measurement.measure_all(AsvRequest(energy=True), tmp_path)
    measurement.measure_all(AsvRequest(energy=True, bench=("time",)), tmp_path)
    measurement.measure_all(AsvRequest(energy=True, bench=("energy.*gla",)), tmp_path)
    measurement.measure_all(AsvRequest(), tmp_path)
    every = {128, 256, 512}
    assert swept == [
        (False, every - {512}, 28),
        (True, {512}, 14),
        (False, every, 42),
        (True, {512}, 2),
        (False, every, 42),
    ]


@pytest.fixture
def few(monkeypatch):
    """Two variants at two lengths."""
    monkeypatch.setattr(
        suite,
        "grid",
        lambda device: suite.PRESETS["history"].with_(
            variants=("matmul", "sdpa"), seq=("16", "32"), heads=(1,), head_dim=(8,)
        ),
    )


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

    monkeypatch.setattr(holding, "open_worker", lambda *_, **__: opened)
    return taken


SWEPT = {
    (v, 16, "train"): SuiteRow("measured", "", {"time": [9.0], "memory": 7})
    for v in ("matmul", "sdpa")
}


def test_each_process_gives_one_value_the_median_in_its_best_place(few, processes, monkeypatch):
    monkeypatch.setattr(suite, "PROCESSES", 2)
    left = {("matmul", 32, "train"): SuiteRow("wrong", "it sees too much", {})}
    rows = measurement._timed({**SWEPT, **left}, [*SWEPT, *left], "cpu", CHECKOUT, suite.PROCESSES)
    assert [sorted(cells) for cells in processes] == [sorted(SWEPT)] * 2
    for row in rows.values():
        assert row == SuiteRow("measured", "", {"time": [5e-4, 1e-3], "memory": 7})


def test_a_cell_that_a_later_process_refuses_has_no_time(few, processes):
    rows = measurement._timed(SWEPT, list(SWEPT), "cpu", CHECKOUT, 4)
    assert len(rows["matmul", 16, "train"].figures["time"]) == 4
    assert rows["sdpa", 16, "train"] == SuiteRow("failed", "failed: it is not what it was", {})
    assert all(("sdpa", 16, "train") in cells for cells in processes[:2])


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (AsvRequest(interleaved=True), 1),
        (AsvRequest(), suite.PROCESSES),
        (AsvRequest(quick=True), 0),
    ],
)
def test_a_commit_is_swept_once_a_command_and_timed_by_a_process_a_round(
    few, processes, tmp_path, monkeypatch, asked, wanted
):
    swept = []
    monkeypatch.setattr(measurement, "_swept", lambda *_, **__: swept.append(1) or SWEPT)
    asked = replace(asked, bench=("16, 'train'",), kept=str(tmp_path))
    rounds = [measurement.measure_all(asked, tmp_path / name).rows for name in "ab"]
    assert len(swept) == 1
    assert len(processes) == 2 * wanted
    assert rounds[0].keys() == rounds[1].keys() == SWEPT.keys()
    assert {row.figures["memory"] for row in rounds[1].values()} == {7}


@pytest.mark.slow
def test_a_sitting_measures_what_was_asked_for_and_a_cell_anew(few, tmp_path):
    asked = AsvRequest(quick=True, bench=("matmul.*(16|32).*forward", "sdpa.*16.*train"))
    cache = measurement.measure_all(asked, tmp_path)
    wanted = {("matmul", 16, "forward"), ("matmul", 32, "forward"), ("sdpa", 16, "train")}
    assert set(cache.rows) == wanted
    assert {row.status for row in cache.rows.values()} == {"measured"}
    assert not cache.skipped
    row = measurement.measure_again(("matmul", 16, "forward"), asked, tmp_path)
    assert row.status == "measured"
    assert row.figures["time"] != cache.rows["matmul", 16, "forward"].figures["time"]
    assert row.figures["memory"] == cache.rows["matmul", 16, "forward"].figures["memory"]


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
