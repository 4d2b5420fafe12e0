"""Commits of a checkout: what git is asked, what is refused, and where the workers look."""

import pytest

from attnbench.core.checkout import BadCommit, find_commit, laid_out
from tests.commits import plants
from tests.repositories import git


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
    plants.commit(root, "other", {"impls/spec.py": "INTERFACE = 99\n"})
    plants.commit(root, "older", {"impls/spec.py": "x = 1\n"})
    for branch, says in (("main", "no folder impls"), ("other", "99"), ("older", "says none")):
        with pytest.raises(BadCommit, match=says), laid_out(find_commit(branch, root), root):
            pass
