"""Commits of a checkout: what git is asked, what is refused, and where the workers look."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.core.checkout import BadCommit, changed, laid_out
from attnbench.features.commits.revisions import find_commit
from tests.commits import planted
from tests.commits.planted import ROOT
from tests.repositories import git


def test_a_name_is_looked_up_in_the_checkout(repository):
    full = git(repository, "rev-parse", "slower")
    for name in ("slower", full, full[:8]):
        found = find_commit(name, repository)
        assert (found.name, found.sha, found.subject) == (name, full, "slower")
        assert str(found) == full[:7] + " (slower)" * (name == "slower")


@pytest.mark.parametrize("name", ["nowhere", "", "HEAD~9", "--all", "HEAD:impls", "a b", "0" * 40])
def test_what_is_no_commit_is_refused_with_a_sentence(repository, name):
    with pytest.raises(BadCommit) as caught:
        find_commit(name, repository)
    assert str(caught.value).startswith(f"{name!r} is no commit of {repository}")


def test_a_commit_without_impls_or_of_another_contract_is_refused(tmp_path):
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "commit", "--quiet", "--allow-empty", "-m", "nothing")
    planted.commit(root, "other", {"impls/spec.py": "INTERFACE = 99\n"})
    planted.commit(root, "older", {"impls/spec.py": "x = 1\n"})
    for branch, says in (("main", "no folder impls"), ("other", "99"), ("older", "says none")):
        with pytest.raises(BadCommit, match=says), laid_out(find_commit(branch, root), root):
            pass


def test_impls_are_the_commits_and_the_ruler_is_ours(repository):
    with laid_out(find_commit("touched", repository), repository) as folder:
        assert sorted(p.name for p in folder.iterdir()) == ["attnbench", "impls"]
        code = "import impls, attnbench; print(impls.__file__); print(attnbench.__path__[0])"
        path = os.pathsep.join([str(folder), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            cwd=ROOT,
        )
        ours = [Path(line) for line in done.stdout.split("\n")[:2]]
        assert ours == [folder / "impls" / "__init__.py", folder / "attnbench"]
        assert "# other" in (folder / "impls" / "dense" / "online.py").read_text()
    assert not folder.exists()


def test_the_files_that_changed_are_named(repository):
    a, b = planted.ends(repository, "main", "fresh-fails")
    assert changed(a, b, repository) == ["impls/dense/__init__.py", "impls/takes.json"]
    assert changed(b, b, repository) == []
