"""``attnbench history``, and ``compare`` of commits: what is asked, and what is refused."""

import json
import signal
import threading
import time

import pytest

from attnbench import cli
from attnbench.core.checkout import BadCommit, Repository, find_commit
from attnbench.features.commits import rounds, rows, suite
from attnbench.features.commits.rounds import BUDGET_S, CommitsComparison
from attnbench.features.commits.rows import CellPlan
from attnbench.sweep.presets import PRESETS
from tests import calling, processes
from tests.commits import plants
from tests.repositories import git


class CloneOf(Repository):
    """A repository that is taken for a clone of attnbench."""

    own = False


def refused(*words):
    """The sentence that a form of the verb was refused with."""
    status, out, err = calling.asked("history", *words)
    assert (status, out) == (2, "")
    return err


def test_asv_measures_each_commit_by_its_hash_and_makes_the_pages(clone, asked, tmp_path, capsys):
    assert cli.main(["history", "HEAD~3..HEAD"]) == 0
    (run, hashes, where), (publish, _, _) = asked()
    assert (run[0], publish[0], where) == ("run", "publish", str(clone))
    assert run[run.index("--config") + 1] == str(clone / "asv.conf.json")
    assert {"--interleave-rounds", "--record-samples"} <= set(run)
    assert run[run.index("--attribute") + 1] == f"rounds={suite.PROCESSES}"
    assert hashes.split() == [git(clone, "rev-parse", f"HEAD~{n}") for n in (2, 1, 0)]
    known = json.loads((tmp_path / "home" / ".asv-machine.json").read_text())
    assert run[run.index("--machine") + 1] in known  # written down without asking
    said = capsys.readouterr()
    assert {"commit", "1"} <= set(said.out.split())
    assert "reports/asv/index.html" in said.err
    assert "asv at work on run" in said.err


def test_benchmarks_that_failed_are_no_failure_of_asv(clone, asked, monkeypatch, capsys):
    monkeypatch.setenv("STATUS_RUN", "2")
    assert cli.main(["history", "HEAD"]) == 0
    assert "some benchmarks failed" in capsys.readouterr().err
    monkeypatch.setenv("STATUS_RUN", "1")
    monkeypatch.setenv("LAST", "No commit hashes selected")
    assert "'asv run' ended with status 1: No commit hashes selected" in refused("HEAD")


def test_ctrl_c_ends_it_with_a_sentence_and_not_with_what_asv_says_then(
    clone, tmp_path, monkeypatch, capsys
):
    def interrupt():
        processes.until((tmp_path / "asked").exists)
        time.sleep(0.2)  # until what asv printed before has been read
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    monkeypatch.setenv("TAKES_S", "20")
    waiting = threading.Thread(target=interrupt)
    with processes.handling(signal.default_int_handler, signal.SIGINT):
        waiting.start()
        assert cli.main(["history", "HEAD"]) == 130
    waiting.join()
    err = capsys.readouterr().err
    assert "asv at work on run" in err and "Traceback" not in err
    assert err.endswith("\nattnbench: stopped\n")


@pytest.fixture
def changes(monkeypatch):
    """In place of the comparison: what was asked, and an answer."""
    calls = []

    def planned(base, head, names, grid, machine, repository):
        calls.append({"names": names, "grid": grid})
        return CellPlan([], ["impls/speed"], ["fresh"])

    def stood_in(base, head, plan, opened, **more):
        calls[-1] |= {"ends": (base.name, head.name), **more}
        return CommitsComparison(base, head, ("impls/speed",), (), 0.01, ("fresh",), ())

    monkeypatch.setattr(rows, "plan_cells", planned)
    monkeypatch.setattr(rounds, "compare_in_rounds", stood_in)
    return calls


def test_two_commits_are_compared_as_asked(clone, changes, capsys):
    words = "HEAD~1 HEAD --variant matmul --seq 64 --margin 0.02 --budget 7"
    assert cli.main(["history", "compare", *words.split()]) == 0
    one = changes[0]
    assert (one["ends"], one["names"], one["grid"].seq) == (("HEAD~1", "HEAD"), ["matmul"], ("64",))
    assert (one["margin"], one["budget_s"], one["repository"].root) == (0.02, 7.0, clone)
    assert "added: fresh" in capsys.readouterr().out
    assert cli.main(["history", "compare", "HEAD~1", "HEAD", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("### Attention")
    assert cli.main(["history", "compare", "HEAD~1", "HEAD", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {}
    last = changes[-1]  # without variants, those of the history
    assert (last["names"], last["grid"].variants) == ([], PRESETS["history"].variants)
    assert last["budget_s"] == BUDGET_S
    assert cli.main(["compare", "HEAD~1", "HEAD"]) == 0
    assert changes[-1]["names"] == []  # the same by another verb


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("nowhere", "'nowhere' is no commit of"),
        ("HEAD..HEAD", "holds no commit"),
        ("HEAD...HEAD~1", "has three dots"),
        ("HEAD --bench (", "is not a regular expression"),
        ("compare HEAD nowhere", "'nowhere' is no commit of"),
        ("compare HEAD HEAD~1 --table /elsewhere/rows.py", "is not in"),
    ],
)
def test_what_can_not_be_done_is_refused_in_a_sentence(clone, words, why):
    assert why in refused(*words.split())


@pytest.mark.parametrize("words", [["HEAD~1..HEAD"], ["compare", "HEAD~1", "HEAD"]])
def test_changes_that_no_commit_holds_are_named(clone, asked, words):
    (clone / "impls" / "speed").write_text("changed")
    said = refused(*words)
    assert "impls/speed has changes that no commit holds" in said
    assert "git stash" in said
    git(clone, "commit", "--quiet", "--all", "-m", "now it does")
    (clone / "impls" / "mine.py").write_text("new")
    assert "impls/mine.py" in refused(*words)
    assert cli.main(["history", "HEAD~2..HEAD~1"]) == 0  # of others they say nothing


@pytest.mark.parametrize("name", ["nowhere", "", "HEAD~9", "--all", "HEAD:impls", "a b", "0" * 40])
def test_what_is_no_commit_is_refused_with_a_sentence(repository, name):
    with pytest.raises(BadCommit) as caught:
        find_commit(name, repository)
    assert str(caught.value).startswith(f"{name!r} is no commit of {repository}")


@pytest.mark.parametrize(
    ("branch", "why"), [("main", "no folder impls"), ("other", "99"), ("older", "says none")]
)
def test_a_commit_without_impls_or_of_another_contract_is_refused(tmp_path, branch, why):
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "commit", "--quiet", "--allow-empty", "-m", "nothing")
    plants.commit(root, "other", {"impls/spec.py": "INTERFACE = 99\n"})
    plants.commit(root, "older", {"impls/spec.py": "x = 1\n"})
    commit = find_commit(branch, root)
    with pytest.raises(BadCommit, match=why), CloneOf(root).laid_out(commit):
        pass
