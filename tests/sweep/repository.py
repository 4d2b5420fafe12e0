"""A small repository with commits that take their time, and workers that read it from them."""

from contextlib import contextmanager
from pathlib import Path

import pytest

import attnbench
import impls
from attnbench.core.checkout import resolve
from attnbench.features.commits.pairs import Refused
from attnbench.features.commits.rounds import compare_in_rounds
from attnbench.sweep.plan import Cell
from impls.loading import load_file
from impls.problem import Problem
from impls.spec import INTERFACE

git = load_file(Path(__file__).parents[1] / "repositories.py").git
ROOT = Path(attnbench.__file__).parents[1]


def commit(root, subject, files=()):
    """Write files of ``impls`` and commit all that has changed."""
    for name, text in dict(files).items():
        (root / "impls" / name).write_text(text)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "-m", subject)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path):
    """A repository whose ``impls`` say how fast they are: HEAD~1 takes 1 ms, HEAD 2 ms."""
    root = tmp_path / "checkout"
    (root / "impls").mkdir(parents=True)
    git(root, "init", "--quiet")
    (root / "elsewhere.txt").write_text("of no account")
    commit(root, "first", {"speed": "0.001", "spec.py": f"INTERFACE = {INTERFACE}\n"})
    commit(root, "second\n\nmore words", {"speed": "0.002"})
    return root


def cells(*labels):
    rows = impls.table()
    problem = Problem(q_len=8, kv_len=8)
    return [Cell(rows.find(label), problem, None, 0.0) for label in labels or ("sdpa",)]


class FakeWorker:
    """Takes as long as the file ``speed`` in the folder that it was opened with says."""

    def __init__(self, folder, refuses=(), falls_after=None):
        self.seconds = float((folder / "impls" / "speed").read_text())
        self.refuses, self.left = refuses, falls_after
        self.held, self.looks, self.samples = [], 0, 0

    def hold(self, variant, problem):
        if variant in self.refuses:
            raise Refused(f"there is no variant {variant!r}")
        self.held.append((variant, problem))
        return self

    def fresh(self):
        self.looks += 1

    def sample(self):
        self.samples += 1
        if self.left is not None and self.samples > self.left:
            raise Refused("the worker died of SIGSEGV")
        return self.seconds


class Opened:
    """Opens fake workers, and keeps them: two a process, a commit each."""

    def __init__(self, kind=FakeWorker):
        self.workers, self.folders, self.kind = [], [], kind
        self.more = [{}, {}]
        """Of base's workers, and of head's."""
        self._sides = {}

    @contextmanager
    def __call__(self, folder):
        self.folders.append(folder)
        yield self.worker(folder)

    def worker(self, folder):
        side = self._sides.setdefault(folder, len(self._sides))  # base is first at home
        self.workers.append(self.kind(folder, **self.more[side % 2]))
        self.workers[-1].beside = self.worker
        return self.workers[-1]


@pytest.fixture
def opened():
    return Opened()


def compared(checkout, opened, a="HEAD~1", b="HEAD", some=None, **more):
    ends = resolve(a, checkout), resolve(b, checkout)
    more = {"margin": 0.01, "root": checkout, **more}
    return compare_in_rounds(*ends, some or cells(), opened, **more)
