"""The asv suite: its benchmarks, what is measured of a commit, the machine and the command."""

import itertools
import json
from argparse import Namespace
from contextlib import contextmanager, nullcontext

import pytest
from asv.util import UserError
from asv_runner.benchmarks.mark import SkipNotImplemented

import impls
from attnbench.core.machine import this_machine
from attnbench.features.commits import asv_interface, environment, suite
from attnbench.features.commits.rows import CommitRows
from attnbench.features.commits.suite import AsvRequest, Cache, SuiteRow
from attnbench.sweep.engine import Refused
from impls.errors import CantBeDone
from tests.calling import ROOT
from tests.commits import runs

KEY = ("matmul", 128, "forward")


FIGURES = {"time": [0.1, 0.2], "memory": 7, "error": 1e-7}


@pytest.mark.parametrize("status", ["wrong", "implausible", "failed", "crashed", "timed_out"])
def test_what_should_have_a_figure_and_has_none_is_an_error(status):
    cache = Cache({KEY: SuiteRow(status, "it sees too much", FIGURES)})
    why = f"matmul at 128, forward, is {status}: it sees too much"
    with pytest.raises(suite.NoFigure, match=why):
        suite.figure(cache, KEY, "time")


@pytest.mark.parametrize(
    ("cache", "why"),
    [
        (Cache({KEY: SuiteRow("unsupported", "no padding", {})}), "no padding"),
        (Cache({KEY: SuiteRow("measured", "", {})}), "the record has no memory"),
        (Cache({}, "another contract"), "another contract"),
    ],
)
def test_what_there_is_nothing_to_measure_of_is_skipped(cache, why, capsys):
    with pytest.raises(SkipNotImplemented, match=why):
        suite.figure(cache, KEY, "memory")
    assert capsys.readouterr().out == f"asv: skipped: {why}\n"


@pytest.fixture
def few(monkeypatch):
    """Two variants at two lengths, of a commit with the rows of the table; no worker."""
    grid = suite.PRESETS["history"].with_(
        variants=("matmul", "sdpa", "gone"), seq=("16", "32"), heads=(1,), head_dim=(8,)
    )
    monkeypatch.setitem(suite.PRESETS, "history", grid)
    monkeypatch.setattr(suite, "rows_in", lambda *_: CommitRows(impls.table().rows))


@pytest.fixture
def records(few, monkeypatch):
    """In place of measuring: each cell that was measured, and how those on a list end at first."""
    calls, doubtful = [], []

    def measured(cell, header, engine):
        calls.append((cell.variant.label, cell.problem.kv_len, cell.problem.phase))
        record = runs.measured(cell.variant.label)
        bad = {"status": doubtful.pop(0), "reason": "too fast", "time": None} if doubtful else {}
        return record.with_(**bad)

    class Engine:
        ask = staticmethod(lambda *_: {"ceilings": {}})

    monkeypatch.setattr(suite, "LocalEngine", lambda *_, **__: nullcontext(Engine()))
    monkeypatch.setattr(suite, "measure", measured)
    return calls, doubtful


@pytest.fixture
def processes(monkeypatch):
    """The processes that timed something: of each the cells, in the order that it took them."""
    processes = []

    class Worker:
        def __init__(self):
            n = len(processes)
            self.places = itertools.cycle([5e-4 * n, 2e-3, 1e-3 * n, 3e-3])

        def hold(self, variant, problem):
            if variant == "sdpa" and len(processes) == 3:
                raise Refused("failed: it is not what it was", "failed")
            processes[-1].append((variant, problem.kv_len, problem.phase))
            return self

        def fresh(self):
            self.place = next(self.places)

        def samples(self, count):
            return [self.place] * count

    @contextmanager
    def opened(folder):
        processes.append([])
        yield Worker()

    monkeypatch.setattr(suite, "open_worker", lambda *_, **__: opened)
    return processes


MATMUL, SDPA = (("matmul", 16, "train"), ("sdpa", 16, "train"))


def measured(**request):
    request = AsvRequest(root=str(ROOT), bench=("16, 'train'",), **request)
    return suite.measure_commit(request).rows


@pytest.mark.parametrize(
    ("request_", "count"),
    [({"interleaved": True}, 1), ({}, suite.PROCESSES)],
    ids=["in turns", "all at once"],
)
def test_records_once_a_command_and_a_process_a_round(
    records, processes, tmp_path, request_, count
):
    rounds = [measured(**request_, scratch=str(tmp_path)) for _ in "ab"]
    assert records[0] == [MATMUL, SDPA]
    assert len(processes) == 2 * count
    assert all(set(cells) <= {MATMUL, SDPA} for cells in processes)
    for rows in rounds:
        assert rows["gone", 16, "train"].status == "unavailable"
        assert rows[MATMUL].figures["memory"] == 1 << 20
    times = rounds[0][MATMUL].figures["time"]  # the median in the best place of each process
    assert times == ([5e-4 * n for n in (1, 2, 3)] + [2e-3] * (count - 3) if count > 1 else times)
    assert len(times) == count
    if count > 2:  # the third process refuses it
        assert rounds[0][SDPA] == SuiteRow("failed", "failed: it is not what it was", {})


@pytest.mark.parametrize(("times", "status"), [(1, "measured"), (2, "implausible")])
def test_a_cell_has_to_be_implausible_twice(records, processes, times, status):
    calls, doubtful = records
    doubtful += ["implausible"] * times
    assert measured(interleaved=True)[MATMUL].status == status
    assert calls == [MATMUL, MATMUL, SDPA]


def test_a_table_that_can_not_be_read_fails(few, monkeypatch):
    monkeypatch.setattr(suite, "rows_in", lambda *_: CommitRows(unreadable="no module"))
    with pytest.raises(CantBeDone, match="that is checked out: no module"):
        measured()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".asv-machine.json"


def test_asv_is_told_of_the_machine_and_its_processes_of_the_command(home, monkeypatch):
    monkeypatch.chdir(ROOT)
    variables = {}
    environment._hand_on(Namespace(bench=["x"], interleave_rounds=None), variables)
    request = suite.current_request(variables)
    assert (request.bench, request.interleaved) == (("x",), True)
    assert request.root == str(ROOT)
    assert asv_interface.machine_entry(this_machine())["machine"] in json.loads(home.read_text())


def test_a_damaged_machine_file_is_a_sentence(home):
    home.write_text("{")
    with pytest.raises(UserError, match="mend it or move it away"):
        environment._hand_on(Namespace(), {})
