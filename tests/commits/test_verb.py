"""``attnbench history``: what asv is asked, and what the other forms ask."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import attnbench
from attnbench import cli
from attnbench.features.commits import suite
from attnbench.features.commits.asv import Asv
from attnbench.features.commits.pairs import PullRequest
from attnbench.features.commits.rounds import BUDGET_S

ROOT = Path(attnbench.__file__).parents[1]


def test_asv_measures_each_commit_by_its_hash_in_rounds_and_then_makes_the_pages(
    pulls, clone, asked, capsys
):
    assert cli.main(["history", "HEAD~3..HEAD"]) == 0
    (run, hashes, where), (publish, _, _) = asked()
    assert run[0] == "run"
    assert run[run.index("--config") + 1] == str(clone / "asv.conf.json")
    assert "--interleave-rounds" in run
    assert run[run.index("--attribute") + 1] == f"rounds={suite.PROCESSES}"
    assert "--record-samples" in run
    assert hashes.split() == [pulls.git(clone, "rev-parse", f"HEAD~{n}") for n in (2, 1, 0)]
    assert where == str(clone)
    assert publish[0] == "publish"
    said = capsys.readouterr()
    assert "commit 1" in said.out
    assert "reports/asv/index.html" in said.err
    assert "asv at work on run" in said.err


def test_the_machine_is_written_down_without_asking(pulls, clone, asked, tmp_path):
    assert not (tmp_path / "home" / ".asv-machine.json").exists()
    assert cli.main(["history", "HEAD"]) == 0
    known = json.loads((tmp_path / "home" / ".asv-machine.json").read_text())
    ((run, hashes, _), _) = asked()
    assert run[run.index("--machine") + 1] in known
    assert hashes == pulls.git(clone, "rev-parse", "HEAD")


def test_rounds_and_benchmarks_may_be_chosen(clone, asked):
    assert cli.main(["history", "HEAD~1..", "--rounds", "5", "--bench", "time.*matmul"]) == 0
    ((run, _, _), _) = asked()
    assert run[run.index("--attribute") + 1] == "rounds=5"
    assert run[run.index("--bench") + 1] == "time.*matmul"


def test_the_pages_are_shown_if_that_is_wanted(clone, asked):
    assert cli.main(["history", "HEAD", "--open"]) == 0
    assert [words[0] for words, _, _ in asked()] == ["run", "publish", "preview"]


def test_benchmarks_that_failed_are_no_failure_of_asv(clone, asked, monkeypatch, capsys):
    monkeypatch.setenv("STATUS_RUN", "2")
    assert cli.main(["history", "HEAD"]) == 0
    assert "some benchmarks failed" in capsys.readouterr().err
    assert len(asked()) == 2


def test_what_asv_can_not_do_is_said_in_its_last_words(clone, asked, monkeypatch, refused):
    monkeypatch.setenv("STATUS_RUN", "1")
    monkeypatch.setenv("LAST", "No commit hashes selected")
    said = refused("HEAD")
    assert "'asv run' ended with status 1: No commit hashes selected" in said
    assert len(asked()) == 1


def test_asv_comes_from_no_folder_that_we_stand_in(clone, asked):
    (clone / "asv.py").write_text("raise SystemExit(7)")
    assert Asv.of(clone).publish() == clone / "reports" / "asv" / "index.html"


# ---- the other forms -----------------------------------------------------------------------------


@pytest.fixture
def changes(monkeypatch):
    """In place of the comparison: what was asked, and an answer."""
    from attnbench.features.commits import rounds

    calls = []

    def stood_in(base, head, names, grid, machine, opened, **more):
        calls.append((base.name, head.name, names, grid, more))
        return PullRequest(base, head, (), (), 0.01, ("fresh",), ())

    monkeypatch.setattr(rounds, "compare", stood_in)
    return calls


def test_two_commits_are_compared_as_asked(clone, changes, capsys):
    words = [
        "compare",
        "HEAD~1",
        "HEAD",
        "--variant",
        "matmul",
        "--seq",
        "64",
        "--margin",
        "0.02",
        "--budget",
        "7",
    ]
    assert cli.main(["history", *words]) == 0
    ((a, b, names, grid, more),) = changes
    assert (a, b, names, grid.seq) == ("HEAD~1", "HEAD", ["matmul"], ("64",))
    assert (more["margin"], more["budget_s"], more["root"]) == (0.02, 7.0, clone)
    assert "added: fresh" in capsys.readouterr().out


def test_without_variants_those_of_the_history_are_compared(clone, changes):
    from attnbench.sweep.presets import PRESETS

    assert cli.main(["history", "compare", "HEAD~1", "HEAD"]) == 0
    ((_, _, names, grid, more),) = changes
    assert (names, grid.variants) == ([], PRESETS["history"].variants)
    assert more["budget_s"] == BUDGET_S


@pytest.mark.parametrize(("option", "starts"), [("--markdown", "### Attention"), ("--json", "{")])
def test_the_answer_comes_in_the_form_that_was_asked(clone, changes, capsys, option, starts):
    assert cli.main(["history", "compare", "HEAD~1", "HEAD", option]) == 0
    assert capsys.readouterr().out.startswith(starts)


def test_rows_of_a_repository_are_named_by_their_place_in_it(pulls, clone, changes, monkeypatch):
    (clone / "rows.py").write_text("ROWS = []")
    pulls.git(clone, "add", "rows.py")
    pulls.git(clone, "commit", "--quiet", "-m", "rows")
    monkeypatch.chdir(clone / "impls")
    assert cli.main(["history", "compare", "HEAD~1", "HEAD", "--table", "../rows.py"]) == 0
    assert changes[0][4]["tables"] == ["rows.py"]


def test_runs_are_exported_and_shown(clone, asked, monkeypatch, capsys):
    from attnbench.features.commits import export

    calls = []

    def stood_in(paths, results, **more):
        calls.append((paths, results))
        return [results / "box" / "abc.json"]

    monkeypatch.setattr(export, "export", stood_in)
    assert cli.main(["history", "export", "one", "two"]) == 0
    assert calls == [(["one", "two"], clone / "results" / "asv")]
    assert [words[0] for words, _, _ in asked()] == ["publish"]
    assert "box/abc.json" in capsys.readouterr().out


def test_looking_at_the_help_loads_neither_torch_nor_asv():
    code = "import sys; from attnbench.cli import main\ntry: main(['history', '--help'])\n"
    code += "except SystemExit: pass\nprint({'torch', 'asv'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert "history compare BASE HEAD" in " ".join(done.stdout.split())
