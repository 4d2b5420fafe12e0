"""Commits of the checkout that holds ``impls``: looked up, held against each other, laid out."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attnbench
import impls
from attnbench.core.format import first_few
from attnbench.core.protocol import unlike
from impls.errors import CantBeDone
from impls.spec import INTERFACE

GIT_LIMIT_S = 60
NAMED = 3
"""Changed files that are named; the rest is counted."""


class BadCommit(CantBeDone):
    """A commit that can't be measured; a sentence with what to do."""


@dataclass(frozen=True)
class Commit:
    """A commit as it was asked for, and which one it is."""

    name: str
    sha: str
    subject: str

    def __str__(self) -> str:
        short = self.sha[:7]
        return short if self.sha.startswith(self.name) else f"{short} ({self.name})"


# ---- git -----------------------------------------------------------------------------------------


def without_git(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment that doesn't tell git which repository is meant, as hooks' do."""
    return {name: value for name, value in environment.items() if not name.startswith("GIT_")}


def run_git(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """A git command, done in ``root``; raises OSError or SubprocessError where it can't be."""
    return subprocess.run(
        ["git", "-C", str(root), *words],
        env=without_git(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=GIT_LIMIT_S,
        check=False,
    )


def git(root: Path, *words: str, trusted: bool = False) -> bytes | None:
    """The output of a git command in ``root``; None where it fails.

    ``trusted``: also where another user owns the checkout, as for the code that runs here anyway.
    """
    options = ["-c", "safe.directory=*", "-c", "core.fsmonitor=false"] if trusted else []
    with suppress(OSError, subprocess.SubprocessError):
        done = run_git(root, *options, *words)
        return done.stdout if done.returncode == 0 else None
    return None


def _said(root: Path, *words: str) -> str:
    """The output as text; nothing where it fails."""
    return (git(root, *words) or b"").decode(errors="replace").strip()


def code() -> dict[str, Any]:
    """The commit of the checkout that this code lies in, and whether it was changed since.

    None for both where git doesn't track this code: an installed wheel may lie below the checkout
    of something else, whose commit says nothing of it.
    """
    here = Path(attnbench.__file__).resolve().parent
    commit = changes = None
    if git(here, "ls-files", "--error-unmatch", "--", "__init__.py", trusted=True) is not None:
        commit = git(here, "rev-parse", "HEAD", trusted=True)
        changes = git(here, "status", "--porcelain", "--", ".", "../impls", trusted=True)
    return {
        "commit": None if commit is None else commit.decode().strip(),
        "dirty": None if changes is None else bool(changes.strip()),
    }


# ---- which commits -------------------------------------------------------------------------------


def repository(tables: Sequence[str] = ()) -> tuple[Path, list[str]]:
    """The checkout whose commits are meant, and the places of row files in it.

    It is where we stand, if that holds the row files, or ``impls``; else where ``impls`` lies.
    Raises BadCommit where that is no checkout, or lacks one of the row files.
    """
    own = Path(impls.__file__).resolve().parents[1]
    try:
        root = top(Path.cwd())
    except BadCommit:
        if tables:
            raise
        root = own
    if not tables and not (root / "impls" / "spec.py").exists():
        root = own
    if root == own:
        top(own)
    try:
        inside = [Path(f).resolve().relative_to(root.resolve()).as_posix() for f in tables]
    except ValueError:
        raise BadCommit(
            f"{', '.join(tables)} is not in {root}, and a row file is read as each commit has it; "
            "give one that is, or leave --table out"
        ) from None
    return root, inside


def top(where: Path) -> Path:
    """The top of the checkout that a folder lies in; raises BadCommit where there is none."""
    if found := _said(where, "rev-parse", "--show-toplevel"):
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
    sha = _said(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if not sha:
        _refuse_shallow(name, root)
        raise BadCommit(
            f"{name!r} is no commit of {root}; 'git log --oneline' and 'git branch --all' there "
            "show what is"
        )
    return Commit(name, sha, _said(root, "log", "-1", "--format=%s", sha))


def find_commits(text: str, root: Path) -> list[Commit]:
    """The commits of ``A..B``, oldest first, those after A on the way to B; or of ``A`` alone.

    Raises BadCommit where a name is no commit, or where there is none between the two.
    """
    first, dots, last = text.partition("..")
    if not dots:
        return [find_commit(text, root)]
    _refuse_shallow(text, root)
    if last.startswith("."):
        raise BadCommit(f"{text!r} has three dots; two, as in A..B, mean what came after A up to B")
    a, b = (find_commit(name or "HEAD", root).sha for name in (first, last))
    found = _said(root, "rev-list", "--first-parent", "--reverse", f"{a}..{b}")
    if not found:
        raise BadCommit(
            f"{text!r} holds no commit: {last or 'HEAD'} comes no later than {first or 'HEAD'}; "
            "HEAD~3..HEAD are the last three"
        )
    return [find_commit(sha, root) for sha in found.split()]


def _refuse_shallow(text: str, root: Path) -> None:
    if _said(root, "rev-parse", "--is-shallow-repository") == "true":
        raise BadCommit(
            f"{text!r} can't be told in {root}, a shallow clone whose history was cut off. Fetch "
            "the rest with 'git fetch --unshallow' (in GitHub Actions: fetch-depth: 0 for "
            "actions/checkout)"
        )


def refuse_dirty(commits: Iterable[Commit], root: Path, what: str = "impls") -> None:
    """Raise BadCommit where HEAD is one of the commits and ``what`` has changes since, which would
    not be measured.
    """
    if _said(root, "rev-parse", "HEAD") not in [commit.sha for commit in commits]:
        return
    status = _said(root, "status", "--porcelain", "--untracked-files=all", "--", what)
    lines = [line.split(maxsplit=1) for line in status.splitlines()]
    if files := [name for kind, name in lines if kind != "??" or name.endswith(".py")]:
        raise BadCommit(
            f"{first_few(files, NAMED)} has changes that no commit holds, and commits are "
            "what is measured; commit them, or put them aside with 'git stash --include-untracked'"
        )


# ---- what they hold ------------------------------------------------------------------------------


def changed(a: Commit, b: Commit, root: Path, whole: bool = False) -> list[str]:
    """The files of ``impls``, or of all there are, that two commits have otherwise; raises
    BadCommit where git can't compare them.
    """
    where = "." if whole else "impls"
    names = git(root, "diff", "--name-only", "--relative", a.sha, b.sha, "--", where)
    if names is None:  # nothing said is not nothing changed
        raise BadCommit(f"git can't compare {a} and {b} in {root}; 'git diff' there says why")
    return names.decode(errors="replace").splitlines()


@contextmanager
def laid_out(commit: Commit, root: Path, whole: bool = False) -> Iterator[Path]:
    """A folder with the commit's ``impls`` and a link to the ``attnbench`` that runs now.

    ``whole``: with all that the commit holds. It is of a repository of one's own, whose row files
    stand beside the code that they name; ``impls`` is a link too where it has none. Raises
    BadCommit where the commit has no ``impls``, or one that this attnbench can't measure.
    """
    packed = git(root, "archive", "--format=zip", commit.sha, *([] if whole else ["impls"]))
    if packed is None:
        raise BadCommit(f"commit {commit} has no folder impls in {root}; give a later one")
    with tempfile.TemporaryDirectory(prefix="attnbench-") as name:
        folder = Path(name)
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            archive.extractall(folder)
        shutil.rmtree(folder / "attnbench", ignore_errors=True)
        for package in (attnbench, impls):
            if not (folder / package.__name__).exists():
                here = Path(str(package.__file__)).resolve().parent
                (folder / package.__name__).symlink_to(here)
        if why := unlike(folder / "impls", INTERFACE, str(commit)):
            raise BadCommit(why)
        yield folder
