"""Commits of the repository that is measured: looked up, held against each other, laid out."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
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
from impls.loading import import_roots, module_file
from impls.outside import GROUP
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
        env={**without_git(os.environ), "LC_ALL": "C"},  # its sentences are read below
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


def _git_text(root: Path, *words: str) -> str:
    """The output as text; nothing where it fails."""
    return (git(root, *words) or b"").decode(errors="replace").strip()


def code(folder: Path | None = None) -> dict[str, Any]:
    """The commit of the checkout that some code lies in, and whether it was changed since.

    ``folder``: where it lies; attnbench itself, if none is given. None for both where git doesn't
    track it: an installed wheel may lie below the checkout of something else, whose commit says
    nothing of it.
    """
    own = Path(attnbench.__file__).resolve().parent
    here, what = (own, (".", "../impls")) if folder is None else (folder, (":/",))
    commit = changes = None
    if git(here, "ls-files", "--", "*.py", trusted=True):
        commit = git(here, "rev-parse", "HEAD", trusted=True)
        changes = _uncommitted(here, *what, trusted=True)
    return {
        "commit": None if commit is None else commit.decode().strip(),
        "dirty": None if changes is None else bool(changes),
    }


def _uncommitted(where: Path, *what: str, trusted: bool = False) -> list[str] | None:
    """Files that HEAD has otherwise, and Python files that it hasn't; None where git fails.

    Not those in ``build``, where an installer leaves a copy.
    """
    words = "status", "--porcelain", "--untracked-files=all", "--", *what
    if (status := git(where, *words, trusted=trusted)) is None:
        return None
    lines = [line.split(maxsplit=1) for line in status.decode(errors="replace").splitlines()]
    return [
        name
        for kind, name in lines
        if kind != "??" or (name.endswith(".py") and not name.startswith("build/"))
    ]


# ---- which commits -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repository:
    """A checkout whose commits are measured, and the row files in it that were named."""

    root: Path
    tables: tuple[str, ...] = ()
    """By their path in it."""

    @property
    def own(self) -> bool:
        """Whether it holds kernels of somebody's own, and not attnbench's table."""
        return not (self.root / "impls" / "spec.py").exists()

    @property
    def whole(self) -> bool:
        """Whether all that a commit holds is laid out, and not ``impls`` alone."""
        return self.own or bool(self.tables)

    @property
    def measured(self) -> str:
        """What may not have changes that no commit holds."""
        return "." if self.whole else "impls"

    def refuse_dirty(self, commits: Iterable[Commit]) -> None:
        """Raise BadCommit where HEAD is one of the commits, and changes since would not be
        measured.
        """
        if _git_text(self.root, "rev-parse", "HEAD") not in [commit.sha for commit in commits]:
            return
        if files := _uncommitted(self.root, self.measured):
            raise BadCommit(
                f"{first_few(files, NAMED)} has changes that no commit holds, and commits are "
                "what is measured; commit them, or put them aside with "
                "'git stash --include-untracked'"
            )

    def changed(self, a: Commit, b: Commit) -> list[str]:
        """The measured files that two commits have otherwise; raises BadCommit where git can't
        compare them.
        """
        words = "diff", "--name-only", "--relative", a.sha, b.sha, "--", self.measured
        names = git(self.root, *words)
        if names is None:  # nothing said is not nothing changed
            raise BadCommit(f"git can't compare {a} and {b} in {self.root}; 'git diff' says why")
        return names.decode(errors="replace").splitlines()

    @contextmanager
    def laid_out(self, commit: Commit) -> Iterator[Path]:
        """A folder for as long as the block runs, as :meth:`lay_out` fills it."""
        with tempfile.TemporaryDirectory(prefix="attnbench-") as name:
            folder = Path(name).resolve()
            self.lay_out(commit, folder)
            yield folder

    def lay_out(self, commit: Commit, folder: Path) -> None:
        """Fill a folder with what a commit measures, and a link to the ``attnbench`` that runs now.

        It is ``impls`` alone, or all that the commit holds, with a link to ``impls`` where it has
        none. Raises BadCommit where the commit has no ``impls``, or one that this attnbench can't
        measure, or declares rows in a module that it hasn't.
        """
        what = [] if self.whole else ["impls"]
        packed = git(self.root, "archive", "--format=zip", commit.sha, *what)
        if packed is None:
            raise BadCommit(f"commit {commit} has no folder impls in {self.root}; give a later one")
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            archive.extractall(folder)
        shutil.rmtree(folder / "attnbench", ignore_errors=True)
        for package in (attnbench, impls):
            if not (folder / package.__name__).exists():
                here = Path(str(package.__file__)).resolve().parent
                (folder / package.__name__).symlink_to(here)
        if why := unlike(folder / "impls", INTERFACE, str(commit)):
            raise BadCommit(why)
        if self.own:
            for name, points in self._entry_points(commit, folder).items():
                _declare(name, commit.sha[:7], points, folder)

    def _entry_points(self, commit: Commit, folder: Path) -> dict[str, dict[str, str]]:
        """By its distribution the entry points of rows that a commit's own pyproject.toml has; of
        the name that the checkout has now none, where the commit has another.
        """
        there, here = (_project(each / "pyproject.toml") for each in (folder, self.root))
        names = {_plain_name(str(each["name"])) for each in (there, here) if "name" in each}
        points: dict[str, str] = there.get("entry-points", {}).get(GROUP, {})
        for value in points.values():
            if not _module_in(folder, value):
                raise BadCommit(
                    f"commit {commit} declares rows in {value}, and has no such module at its "
                    "top or in src, where attnbench looks; lay the package out in one of them, "
                    "or name its row file with --table FILE"
                )
        own = _plain_name(str(there.get("name")))
        return {name: dict(points) if name == own else {} for name in names}


def _project(file: Path) -> dict[str, Any]:
    """The table ``project`` of a pyproject.toml; empty where there is none that can be read."""
    with suppress(OSError, ValueError):
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        return project if isinstance(project, dict) else {}
    return {}


def _plain_name(name: str) -> str:
    """A distribution's name as the names of two are compared."""
    return re.sub(r"[-_.]+", "_", name).lower()


def _module_in(folder: Path, value: str) -> bool:
    """Whether a folder has the module of an entry point's value."""
    module = str(value).partition(":")[0].partition("[")[0].strip()
    return any(module_file(module, root) for root in import_roots(folder))


def _declare(name: str, version: str, points: Mapping[str, str], folder: Path) -> None:
    """Have importlib find these entry points in a folder, and not those of the same distribution
    that are installed: the first of a name on the path counts.
    """
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(about)
    lines = [f"[{GROUP}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def repository(tables: Sequence[str] = ()) -> Repository:
    """The checkout that we stand in, with the places of row files in it.

    Raises BadCommit where we stand in none, or it lacks one of the row files.
    """
    root = top(Path.cwd())
    try:
        inside = [Path(f).resolve().relative_to(root.resolve()).as_posix() for f in tables]
    except ValueError:
        raise BadCommit(
            f"{', '.join(tables)} is not in {root}, and a row file is read as each commit has it; "
            "give one that is, or leave --table out"
        ) from None
    return Repository(root, tuple(inside))


def top(where: Path) -> Path:
    """The top of the checkout that a folder lies in; raises BadCommit where there is none."""
    if root := _git_text(where, "rev-parse", "--show-toplevel"):
        return Path(root)
    why = run_git(where, "rev-parse", "--git-dir").stderr.decode(errors="replace").strip()
    why = "" if "not a git repository" in why else f" ({why})"
    raise BadCommit(
        f"{where} is in no git checkout{why}, so it has no history; go into the repository that "
        "holds your kernels, or into a clone of attnbench"
    )


def find_commit(name: str, root: Path) -> Commit:
    """The commit of a name; raises BadCommit where there is none."""
    sha = _git_text(
        root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
    )
    if not sha:
        _refuse_shallow(name, root)
        raise BadCommit(
            f"{name!r} is no commit of {root}; 'git log --oneline' and 'git branch --all' there "
            "show what is"
        )
    return Commit(name, sha, _git_text(root, "log", "-1", "--format=%s", sha))


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
    shas = _git_text(root, "rev-list", "--first-parent", "--reverse", f"{a}..{b}")
    if not shas:
        raise BadCommit(
            f"{text!r} holds no commit: {last or 'HEAD'} comes no later than {first or 'HEAD'}; "
            "HEAD~3..HEAD are the last three"
        )
    return [find_commit(sha, root) for sha in shas.split()]


def _refuse_shallow(text: str, root: Path) -> None:
    if _git_text(root, "rev-parse", "--is-shallow-repository") == "true":
        raise BadCommit(
            f"{text!r} can't be told in {root}, a shallow clone whose history was cut off. Fetch "
            "the rest with 'git fetch --unshallow' (in GitHub Actions: fetch-depth: 0 for "
            "actions/checkout)"
        )
