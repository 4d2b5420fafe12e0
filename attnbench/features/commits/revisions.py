"""Commits of a checkout, looked up by name or range; and changes that no commit holds."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import impls
from attnbench.core.checkout import BadCommit, Commit, git, run_git

NAMED = 3
"""Changed files that are named; the rest is counted."""


def repository(tables: Sequence[str] = ()) -> tuple[Path, list[str]]:
    """The checkout whose commits are meant, and the places of row files in it.

    It is where we stand, if that holds the row files, or ``impls``; else where ``impls`` lies.
    """
    own = Path(impls.__file__).resolve().parents[1]
    try:
        root = checkout(Path.cwd())
    except BadCommit:
        if tables:
            raise
        root = own
    if not tables and not (root / "impls" / "spec.py").exists():
        root = own
    if root == own:
        checkout(own)
    try:
        inside = [Path(f).resolve().relative_to(root.resolve()).as_posix() for f in tables]
    except ValueError:
        raise BadCommit(
            f"{', '.join(tables)} is not in {root}, and a row file is read as each commit has it; "
            "give one that is, or leave --table out"
        ) from None
    return root, inside


def checkout(where: Path) -> Path:
    """The top of the checkout that a folder lies in; raises BadCommit where there is none."""
    if found := _git(where, "rev-parse", "--show-toplevel"):
        return Path(found)
    try:
        said = run_git(where, "rev-parse", "--git-dir").stderr.decode(errors="replace")
        why = (said.strip().splitlines() or ["git says nothing"])[0]
    except (OSError, subprocess.SubprocessError) as error:
        why = f"git can't be run: {error}"
    raise BadCommit(
        f"{where} is in no git checkout ({why}), so it has no history; run attnbench from a "
        "clone: git clone, then pip install -e . there"
    )


def find_commit(name: str, root: Path) -> Commit:
    """The commit of a name; raises BadCommit where there is none."""
    sha = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if not sha:
        _refuse_shallow(name, root)
        raise BadCommit(
            f"{name!r} is no commit of {root}; 'git log --oneline' and 'git branch --all' there "
            "show what is"
        )
    return Commit(name, sha, _git(root, "log", "-1", "--format=%s", sha))


def find_commits(text: str, root: Path) -> list[Commit]:
    """The commits of ``A..B``, oldest first, those after A on the way to B; or of ``A`` alone."""
    first, dots, last = text.partition("..")
    if not dots:
        return [find_commit(text, root)]
    _refuse_shallow(text, root)
    if last.startswith("."):
        raise BadCommit(f"{text!r} has three dots; two, as in A..B, mean what came after A up to B")
    a, b = (find_commit(name or "HEAD", root).sha for name in (first, last))
    found = _git(root, "rev-list", "--first-parent", "--reverse", f"{a}..{b}")
    if not found:
        raise BadCommit(
            f"{text!r} holds no commit: {last or 'HEAD'} comes no later than {first or 'HEAD'}; "
            "HEAD~3..HEAD are the last three"
        )
    return [find_commit(sha, root) for sha in found.split()]


def _refuse_shallow(text: str, root: Path) -> None:
    if _git(root, "rev-parse", "--is-shallow-repository") == "true":
        raise BadCommit(
            f"{text!r} can't be told in {root}, a shallow clone whose history was cut off. Fetch "
            "the rest with 'git fetch --unshallow' (in GitHub Actions: fetch-depth: 0 for "
            "actions/checkout)"
        )


def refuse_dirty(commits: Iterable[Commit], root: Path, what: str = "impls") -> None:
    """Raise BadCommit where HEAD is one of the commits and ``what`` has changes since.

    They would not be measured.
    """
    if _git(root, "rev-parse", "HEAD") not in [commit.sha for commit in commits]:
        return
    status = _git(root, "status", "--porcelain", "--untracked-files=all", "--", what)
    lines = [line.split(maxsplit=1) for line in status.splitlines()]
    if files := [name for kind, name in lines if kind != "??" or name.endswith(".py")]:
        more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
        raise BadCommit(
            f"{', '.join(files[:NAMED])}{more} has changes that no commit holds, and commits are "
            "what is measured; commit them, or put them aside with 'git stash --include-untracked'"
        )


def _git(where: Path, *words: str) -> str:
    """The output of git; nothing where it fails."""
    return (git(where, *words) or b"").decode(errors="replace").strip()
