"""A small repository with commits that take their time, and workers that read it from them."""

from contextlib import contextmanager
from pathlib import Path

import pytest

import attnbench
import impls
from attnbench.pairs import Rule
from attnbench.sweep.commits import Refused, compare_commits
from attnbench.sweep.plan import Cell
from impls.loading import load_file
from impls.problem import Problem
from impls.spec import INTERFACE

git = load_file(Path(__file__).parents[1] / "repositories.py").git
ROOT = Path(attnbench.__file__).parents[1]
RULE = Rule(margin=0.01, first=20, cap=80)


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


@pytest.fixture
def opened():
    """Opens fake workers, and keeps them: ``opened.workers``."""

    class Opened:
        def __init__(self):
            self.workers, self.folders, self.more = [], [], [{}, {}]

        @contextmanager
        def __call__(self, folder):
            self.folders.append(folder)
            self.workers.append(FakeWorker(folder, **dict(*self.more[len(self.workers) :][:1])))
            yield self.workers[-1]

    return Opened()


def compared(checkout, opened, a="HEAD~1", b="HEAD", some=None, **more):
    return compare_commits(a, b, some or cells(), opened, rule=RULE, root=checkout, **more)
