"""Commits of the checkout that holds ``impls``: looked up, held against each other, laid out."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attnbench
import impls
from attnbench.core.protocol import unlike
from impls.asked import CantBeDone
from impls.spec import INTERFACE

GIT_LIMIT_S = 60


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


def changed(a: Commit, b: Commit, root: Path, whole: bool = False) -> list[str]:
    """The files of ``impls``, or of all there are, that two commits have otherwise."""
    where = "." if whole else "impls"
    names = git(root, "diff", "--name-only", "--relative", a.sha, b.sha, "--", where)
    if names is None:  # nothing said is not nothing changed
        raise BadCommit(f"git can't compare {a} and {b} in {root}; 'git diff' there says why")
    return names.decode(errors="replace").splitlines()


@contextmanager
def laid_out(commit: Commit, root: Path, whole: bool = False) -> Iterator[Path]:
    """A folder with the commit's ``impls`` and a link to the ``attnbench`` that runs now.

    ``whole``: with all that the commit holds. It is of a repository of one's own, whose row files
    stand beside the code that they name; ``impls`` is a link too where it has none.
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


def git(root: Path, *words: str, trusted: bool = False) -> bytes | None:
    """The output of a git command in ``root``; None where it fails.

    ``trusted``: also where another user owns the checkout, as for the code that runs here anyway.
    """
    options = ["-c", "safe.directory=*", "-c", "core.fsmonitor=false"] if trusted else []
    with suppress(OSError, subprocess.SubprocessError):
        done = run_git(root, *options, *words)
        return done.stdout if done.returncode == 0 else None
    return None


def run_git(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """A git command, carried out in ``root``; raises OSError or SubprocessError where it can't be.

    Hooks set ``GIT_DIR`` and more of that kind, which would lead git to another repository.
    """
    return subprocess.run(
        ["git", "-C", str(root), *words],
        env=without_git(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=GIT_LIMIT_S,
        check=False,
    )


def without_git(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment that doesn't tell git which repository is meant."""
    return {name: value for name, value in environment.items() if not name.startswith("GIT_")}


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
