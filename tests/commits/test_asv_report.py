"""What asv's results say of some commits."""

import json
import re
from pathlib import Path

import pytest
from asv.machine import Machine as AsvMachine
from asv.results import Results
from asv.runner import BenchmarkResult

from attnbench import cli
from attnbench.core.checkout import Commit, Repository
from attnbench.core.machine import this_machine
from attnbench.features.commits import asv_interface
from attnbench.features.commits.asv_interface import Value, ensure_machine, entry, save_entry

NAME = "attention.Time.time(matmul, 128, forward)"
COMMITS = [Commit(x, x * 40, "one more") for x in "abc"]


def value(result, low=None, high=None):
    near = (result or 0) * 0.001
    ends = {"ci_99_a": low or (result or 0) - near, "ci_99_b": high or (result or 0) + near}
    return Value(result, {**ends, "repeat": 20}, None, "protocol 2")


@pytest.fixture
def history(monkeypatch):
    """The report of commits that asv gave some values, and of which files changed."""

    def said(*values, files=("impls/x.py",)):
        given, changed = iter(values), iter([files] * 2 if isinstance(files, tuple) else files)
        monkeypatch.setattr(asv_interface, "_values", lambda *_: next(given).items())
        monkeypatch.setattr(Repository, "changed", lambda *_: next(changed))
        some = COMMITS[: len(values)]
        return asv_interface.report(some, Path("nowhere"), "box", 1.05, Repository(Path("root")))

    return said


def test_a_commit_is_held_against_the_one_before_it(history):
    for before, after, counts in (
        (value(1.0), value(1.1), (1, 0, 0)),
        (value(1.0), value(0.9), (0, 1, 0)),
        (value(1.0), value(1.04), (0, 0, 0)),  # less than the factor
        (value(1.0, 0.7, 1.3), value(1.1, 0.8, 1.4), (0, 0, 0)),  # asv's intervals overlap
        (value(1.0), value(None), (0, 0, 1)),
        (value(None), value(None), (0, 0, 0)),  # it failed before
        (value(1.0), value(float("nan")), (0, 0, 0)),
        (value(1.0), Value(1.5, None, None, "protocol 9"), (0, 0, 0)),  # of another ruler
    ):
        first, second = history({NAME: before}, {NAME: after})
        assert (len(second.slower), len(second.faster), len(second.newly_failed)) == counts
        assert not first.slower and not first.faster and not first.newly_failed


def test_what_moves_where_nothing_changed_moves_by_itself_and_so_does_less(history):
    """The second commit changed nothing: 1.2 there is the machine, so 1.15 is nothing elsewhere."""
    names = [f"attention.Time.time({name}, 128, forward)" for name in ("x", "y", "z")]
    names.append("attention.Memory.peak(x, 128, forward)")
    times = [(1.0, 1.0, 1.0, 1.0), (1.2, 1.0, 0.9, 1.0), (1.2, 1.15, 0.6, 1.1)]
    rows = [dict(zip(names, map(value, row), strict=True)) for row in times]
    _, same, other = history(*rows, files=[[], ["impls/x.py"]])
    assert not same.slower and not same.faster
    assert {m.name for m in same.by_itself} == {names[0], names[2]}
    assert [m.name for m in other.faster] == [names[2]]
    assert [m.name for m in other.by_itself] == [names[1]]
    assert [m.name for m in other.slower] == [names[3]]  # a time that moves says nothing of memory


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


def test_results_are_read_as_asv_wrote_them(tmp_path):
    """A value, one that failed and one that was skipped, by asv's own writer."""
    sha = "c" * 40
    save_entry(tmp_path, {"machine": "box"})
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
