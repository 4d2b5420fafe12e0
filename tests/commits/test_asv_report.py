"""What asv's results say of some commits."""

import json
import re

import pytest
from asv.results import Results
from asv.runner import BenchmarkResult

from attnbench import cli
from attnbench.core.checkout import Commit
from attnbench.features.commits.asv_interface import CommitResults

NAME = ("attention.time", "matmul", "128", "forward")


@pytest.mark.parametrize(
    ("after", "status"), [(None, 1), pytest.param(0.0011, 0, marks=pytest.mark.slow)]
)
def test_what_fails_now_is_a_finding_and_asvs_own_verdict_is_shown(
    clone, asked, monkeypatch, capsys, after, status
):
    def read(commit, results, machine):
        return CommitResults(commit, {NAME: after if commit.subject == "commit 3" else 0.001})

    monkeypatch.setattr(CommitResults, "read", read)
    monkeypatch.setattr("attnbench.command.progress.EVERY_S", 0.0)
    assert cli.main(["history", "HEAD~2..HEAD"]) == status
    shown = capsys.readouterr()
    words_shown = " ".join(shown.out.split())
    assert ("fails now: attention.time matmul 128 forward" in words_shown) == bool(status)
    assert "asv at work on compare" in words_shown
    assert re.search(r"0 of 1 · .* · about .* left · asv\n", shown.err)
    words = asked()[-1][0]
    assert words[0] == "compare" and "--only-changed" in words
    assert cli.main(["history", "HEAD~2..HEAD", "--json"]) == status
    sent = json.loads(capsys.readouterr().out)
    assert [c["measured"] for c in sent["commits"]] == [1, 1 - status]
    assert sent["page"].endswith("reports/asv/index.html")


def test_results_are_read_as_asv_wrote_them(tmp_path):
    """A value, one that failed and one that was skipped, by asv's own writer."""
    commit, other = (Commit(x, x * 40, "one more") for x in "cd")
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "machine.json").write_text('{"machine": "box", "version": 1}')
    made = Results({"machine": "box"}, {}, commit.sha, 0, "3.11", "shared", {})
    benchmark = {"name": "t.time", "version": "protocol 2", "params": [["'a'", "'b'", "'c'"]]}
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
    found = CommitResults.read(commit, tmp_path, "box")
    assert (found.values["t.time", "a"], found.failed) == (1.0, [("t.time", "b")])
    assert (found.skipped, len(found.values)) == (1, 3)
    none = CommitResults.read(other, tmp_path, "box")
    assert none.values == {} and found.newly_failed(none) == []
    before = CommitResults(other, {("t.time", "b"): 1.0})
    assert found.newly_failed(before) == ["t.time b"]
