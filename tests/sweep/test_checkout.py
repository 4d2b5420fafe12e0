"""Commits of a checkout: what git is asked, what is refused, and where the workers look."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.core.checkout import BadCommit, changed, laid_out, resolve
from impls.loading import load_file
from impls.spec import INTERFACE

repository = load_file(Path(__file__).with_name("repository.py"))
ROOT = repository.ROOT
checkout = repository.checkout
commit = repository.commit
compared = repository.compared
git = repository.git
opened = repository.opened


# ---- names ---------------------------------------------------------------------------------------


def test_a_name_is_looked_up_in_the_checkout(checkout):
    full = git(checkout, "rev-parse", "HEAD~1")
    for name in ("HEAD~1", full, full[:8]):
        found = resolve(name, checkout)
        assert (found.name, found.sha, found.subject) == (name, full, "first")
    assert str(resolve("HEAD~1", checkout)) == f"{full[:7]} (HEAD~1)"
    assert str(resolve(full[:8], checkout)) == full[:7]


@pytest.mark.parametrize("name", ["nowhere", "", "HEAD~9", "--all", "HEAD:impls", "a b", "0" * 40])
def test_what_is_no_commit_is_refused_with_a_sentence(checkout, opened, name):
    with pytest.raises(BadCommit) as caught:
        compared(checkout, opened, b=name)
    assert str(caught.value).startswith(f"{name!r} is no commit of {checkout}")
    assert opened.workers == []


def test_outside_a_checkout_that_is_said(tmp_path, opened, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(BadCommit, match="is no git checkout, so it has no commits to compare"):
        compared(tmp_path, opened)


def test_a_commit_without_impls_is_refused(checkout, opened):
    git(checkout, "rm", "-r", "--quiet", "impls")
    git(checkout, "commit", "--quiet", "-m", "gone")
    with pytest.raises(BadCommit, match=r"\(HEAD\) has no folder impls"):
        compared(checkout, opened)


@pytest.mark.parametrize(
    ("text", "says"), [("INTERFACE = 99\n", "has version 99"), ("x = 1\n", "says none")]
)
def test_a_table_of_another_contract_is_refused(checkout, opened, text, says):
    commit(checkout, "other", {"spec.py": text})
    with pytest.raises(BadCommit) as caught:
        compared(checkout, opened)
    assert says in str(caught.value)
    assert f"this attnbench measures version {INTERFACE}" in str(caught.value)


# ---- where a worker looks ------------------------------------------------------------------------


def test_each_worker_gets_its_commits_files_and_they_are_gone_afterwards(checkout, opened):
    compared(checkout, opened)
    # each is every other time the one at home
    assert [w.seconds for w in opened.workers[:4]] == [0.001, 0.002, 0.002, 0.001]
    assert len(set(opened.folders)) == 2
    assert not any(folder.exists() for folder in opened.folders)


def test_impls_are_the_commits_and_the_ruler_is_ours(checkout):
    commit(checkout, "marked", {"__init__.py": "MARK = 'of the commit'\n"})
    with laid_out(resolve("HEAD", checkout), checkout) as folder:
        assert sorted(p.name for p in folder.iterdir()) == ["attnbench", "impls"]
        code = "import impls, attnbench; print(impls.MARK); print(attnbench.__path__[0])"
        path = os.pathsep.join([str(folder), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            cwd=ROOT,
        )
    mark, ruler = done.stdout.split("\n")[:2]
    assert mark == "of the commit"
    assert Path(ruler) == folder / "attnbench"


def test_the_files_that_changed_are_named(checkout):
    commit(checkout, "third", {"speed": "0.003", "other": "new"})
    (checkout / "elsewhere.txt").write_text("changed")
    commit(checkout, "fourth")
    a, b = (resolve(name, checkout) for name in ("HEAD~3", "HEAD"))
    assert changed(a, b, checkout) == ["impls/other", "impls/speed"]
    assert changed(b, b, checkout) == []
