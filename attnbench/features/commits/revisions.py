"""Commits of a checkout, looked up by name or range; and changes that no commit holds."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from attnbench.core.checkout import BadCommit, Commit, git, run_git

NAMED = 3
"""Changed files that are named; the rest is counted."""


def checkout(where: Path) -> Path:
    """The top of the checkout that a folder lies in; raises BadCommit where there is none."""
    found = _git(where, "rev-parse", "--show-toplevel")
    if found is None:
        why = _complaint(where)
        raise BadCommit(
            f"{where} is in no git checkout ({why}), so it has no history; run attnbench from a "
            "clone: git clone, then pip install -e . there"
        )
    return Path(found)


def find_commit(name: str, root: Path) -> Commit:
    """The commit of a name; raises BadCommit where there is none."""
    sha = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if not sha:
        if is_shallow(root):
            raise BadCommit(
                f"{name!r} is not in {root}, which is a shallow clone: its history was cut off. "
                "Fetch the rest with 'git fetch --unshallow' (in GitHub Actions: fetch-depth: 0 "
                "for actions/checkout)"
            )
        raise BadCommit(
            f"{name!r} is no commit of {root}; 'git log --oneline' and 'git branch --all' there "
            "show what is"
        )
    return Commit(name, sha, _git(root, "log", "-1", "--format=%s", sha) or "")


def find_commits(text: str, root: Path) -> list[Commit]:
    """The commits of ``A..B``, oldest first, those after A on the way to B; or of ``A`` alone."""
    if ".." not in text:
        return [find_commit(text, root)]
    if is_shallow(root):
        raise BadCommit(
            f"{root} is a shallow clone: which commits {text!r} holds can't be told. Fetch the "
            "rest with 'git fetch --unshallow' (in GitHub Actions: fetch-depth: 0 for "
            "actions/checkout)"
        )
    first, _, last = text.partition("..")
    if last.startswith("."):
        raise BadCommit(f"{text!r} has three dots; two, as in A..B, mean what came after A up to B")
    ends = [find_commit(name or "HEAD", root).sha for name in (first, last)]
    found = _git(root, "rev-list", "--first-parent", "--reverse", f"{ends[0]}..{ends[1]}") or ""
    if not found:
        raise BadCommit(
            f"{text!r} holds no commit: {last or 'HEAD'} comes no later than {first or 'HEAD'}; "
            "HEAD~3..HEAD are the last three"
        )
    return [find_commit(sha, root) for sha in found.split()]


def is_shallow(root: Path) -> bool:
    """True for a clone whose history was cut off."""
    return _git(root, "rev-parse", "--is-shallow-repository") == "true"


def refuse_dirty(commits: Iterable[Commit], root: Path, what: str = "impls") -> None:
    """Raise BadCommit where HEAD is one of the commits and ``what`` has changes since.

    They would not be measured.
    """
    if _git(root, "rev-parse", "HEAD") not in [commit.sha for commit in commits]:
        return
    status = _git(root, "status", "--porcelain", "--untracked-files=all", "--", what) or ""
    lines = [line.split(maxsplit=1) for line in status.splitlines()]
    changed = [name for kind, name in lines if kind != "??" or name.endswith(".py")]
    if changed:
        more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
        raise BadCommit(
            f"{', '.join(changed[:NAMED])}{more} has changes that no commit holds, and commits are "
            "what is measured; commit them, or put them aside with 'git stash --include-untracked'"
        )


def _git(where: Path, *words: str) -> str | None:
    """The output of git; None where it fails."""
    output = git(where, *words)
    return None if output is None else output.decode(errors="replace").strip()


def _complaint(where: Path) -> str:
    """Why git can't read a checkout, in its own words."""
    try:
        done = run_git(where, "rev-parse", "--git-dir")
    except (OSError, subprocess.SubprocessError) as error:
        return f"git can't be run: {error}"
    lines = done.stderr.decode(errors="replace").strip().splitlines() or ["git says nothing"]
    return lines[0]
