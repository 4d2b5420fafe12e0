"""What asv's results say of some commits."""

import json
import re
from pathlib import Path

import pytest
from asv.results import Results
from asv.runner import BenchmarkResult

from attnbench import cli
from attnbench.core.checkout import Commit, Repository
from attnbench.features.commits import asv_interface
from attnbench.features.commits.asv_interface import CommitHistory, Moved, Value
from attnbench.features.commits.view import history

NAME = "attention.Time.time(matmul, 128, forward)"
COMMITS = [Commit(x, x * 40, "one more") for x in "ab"]


def value(result, low=None, high=None):
    near = (result or 0) * 0.001
    ends = {"ci_99_a": low or (result or 0) - near, "ci_99_b": high or (result or 0) + near}
    return Value(result, {**ends, "repeat": 20}, None, "protocol 2")


@pytest.fixture
def reported(monkeypatch):
    """The report of two commits that asv gave some values."""

    def of(*values):
        left = iter(values)
        monkeypatch.setattr(asv_interface, "_values", lambda *_: next(left).items())
        monkeypatch.setattr(Repository, "changed", lambda *_: ["impls/x.py"])
        return asv_interface.report(COMMITS, Path("nowhere"), "box", 1.05, Repository(Path("root")))

    return of


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (value(1.0), value(1.1), (1, 0, 0)),
        (value(1.0), value(0.9), (0, 1, 0)),
        pytest.param(value(1.0), value(1.04), (0, 0, 0), id="less than the factor"),
        pytest.param(value(1.0, 0.7, 1.3), value(1.1, 0.8, 1.4), (0, 0, 0), id="asv's overlap"),
        pytest.param(value(1.0), value(None), (0, 0, 1), id="failed"),
        pytest.param(value(None), value(None), (0, 0, 0), id="failed before"),
        pytest.param(value(1.0), value(float("nan")), (0, 0, 0), id="skipped"),
        pytest.param(value(1.0), Value(1.5, None, None, "9"), (0, 0, 0), id="another ruler"),
    ],
)
def test_a_commit_is_compared_with_the_one_before_it(reported, before, after, counts):
    first, second = reported({NAME: before}, {NAME: after})
    assert (len(second.slower), len(second.faster), len(second.newly_failed)) == counts
    assert not first.slower and not first.faster and not first.newly_failed


def test_what_fails_now_is_a_finding(clone, asked, monkeypatch, capsys):
    results = []
    monkeypatch.setattr(asv_interface, "_values", lambda *_: results.pop(0).items())
    monkeypatch.setattr("attnbench.command.progress.EVERY_S", 0.0)
    for after, status, said in (
        (Value(None), 1, f"fails now: {NAME}"),
        (value(0.0011), 0, f"slower: {NAME}: 0.001 → 0.0011 (1.100)"),  # not in pairs: no finding
    ):
        results.extend([{NAME: value(0.001)}, {NAME: after}] * 2)
        assert cli.main(["history", "HEAD~2..HEAD"]) == status
        shown = capsys.readouterr()
        assert said in " ".join(shown.out.split()) and re.search(
            r"0 of 1 · .* · about .* left · asv\n", shown.err
        )
        assert cli.main(["history", "HEAD~2..HEAD", "--json"]) == status
        sent = json.loads(capsys.readouterr().out)
        assert [c["measured"] for c in sent["commits"]] == [1, 1 - status]
        assert sent["page"].endswith("reports/asv/index.html")


@pytest.mark.parametrize(("changed", "remarks"), [(["impls/x.py"], 0), ([], 1)])
def test_what_moves_where_nothing_changed_is_said_to(changed, remarks, capsys):
    moved = [Moved(NAME, 1.0, 1.2)]
    history([CommitHistory(COMMITS[1], 1, 0, [], [], moved, changed=changed)], 1.05)
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("changed nothing that is measured") == remarks


def test_results_are_read_as_asv_wrote_them(tmp_path):
    """A value, one that failed and one that was skipped, by asv's own writer."""
    sha = "c" * 40
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "machine.json").write_text('{"machine": "box", "version": 1}')
    made = Results({"machine": "box"}, {}, sha, 0, "3.11", "shared", {})
    benchmark = {"name": "t.time", "version": "protocol 2", "params": [["a", "b", "c"]]}
    done = BenchmarkResult(
        result=[True, None, float("nan")],
        samples=[[1.0] * 9, None, None],
        number=[1, None, None],
        errcode=0,
        stderr="",
        profile=None,
    )
    made.add_result(benchmark, done, record_samples=True)
    made.save(str(tmp_path))
    found = dict(asv_interface._values(tmp_path, "box", sha))
    assert (found["t.time(a)"].result, found["t.time(b)"].result) == (1.0, None)
    assert found["t.time(c)"].skipped
    assert dict(asv_interface._values(tmp_path, "box", "d" * 40)) == {}
