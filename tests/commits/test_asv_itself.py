"""asv itself over a small repository: whose ruler, whose impls, and what it makes of them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.core import checkout
from attnbench.features.commits import suite
from attnbench.features.commits.asv_interface import Asv
from tests.commits import runs
from tests.repositories import NAMES, copied

pytestmark = pytest.mark.slow
CHECKOUT = Path(__file__).resolve().parents[2]
FILES = ("impls", "attnbench", "benchmarks", "asv.conf.json")
MARK = """
import json, os, attnbench, attnbench.core.record
from pathlib import Path
with open(os.environ["PROOF"], "a") as proof:
    said = [os.environ["ASV_COMMIT"], {word!r}, __file__, os.path.realpath(attnbench.__file__),
            attnbench.core.record.PROTOCOL]
    proof.write(json.dumps(said) + "\\n")
"""
LARGER = """
import torch
_plain = build
def build(problem):
    attend = _plain(problem)
    def larger(q, k, v):
        spare = torch.zeros(1 << 20)
        return attend(q, k, v)
    return larger
"""
WRONG = """
_right = build
def build(problem, **options):
    attend = _right(problem, **options)
    return lambda q, k, v: attend(q, k, v) * 1.5
"""
GRID = """
PRESETS["history"] = Preset("a few", ("matmul", "einsum", "sdpa", "chunked"), seq=("16",),
                            heads=(1,), head_dim=(8,), phase=("forward",), budget=0.01)
"""


class Repository:
    """A checkout with a history, and asv in it."""

    def __init__(self, folder):
        self.root, self.proof = folder / "repository", folder / "proof"
        own = {"HOME": str(folder), "PROOF": str(self.proof)}
        self.environment = {**os.environ, **NAMES, **own}
        self.environment.pop(suite.VARIABLE, None)
        self.root.mkdir()
        without = shutil.ignore_patterns("__pycache__")
        for name in FILES[:-1]:
            copied(CHECKOUT / name, self.root / name, ignore=without)
        shutil.copyfile(CHECKOUT / FILES[-1], self.root / FILES[-1])
        self.add("attnbench/sweep/presets.py", GRID)
        told = self.root / "attnbench/features/commits/suite.py"
        told.write_text(told.read_text().replace(f"PROCESSES = {suite.PROCESSES}", "PROCESSES = 2"))
        self.call("git", "init", "-q", "-b", "main")

    def call(self, *command, status=0):
        where = {"cwd": self.root, "env": self.environment, "stdin": subprocess.DEVNULL}
        done = subprocess.run(command, **where, capture_output=True, text=True, timeout=600)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def add(self, file, text):
        with (self.root / file).open("a") as opened:
            opened.write(text)

    def commit(self, subject):
        self.call("git", "add", "-A")
        self.call("git", "commit", "-q", "-m", subject)
        return self.call("git", "rev-parse", "HEAD").strip()

    def asv(self, *words, status=0):
        return self.call(sys.executable, "-P", "-m", "asv", *words, status=status)

    def figures(self, sha, figure="time"):
        """Values and samples by variant."""
        (file,) = (self.root / "results" / "asv").glob(f"*/{sha[:8]}-shared-*.json")
        cells = runs.cells(file, f"attention.{figure}")
        return {variant.strip("'"): both for (variant, *_), both in cells.items()}


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Commits measured by one ``asv run``: the repository, their hashes, and what asv said."""
    found = Repository(tmp_path_factory.mktemp("history"))
    shas = {}
    found.add("impls/dense/matmul.py", MARK.format(word="first"))
    shas["first"] = found.commit("the first")
    found.add("impls/dense/matmul.py", LARGER + MARK.format(word="larger"))
    found.add("attnbench/core/record.py", "raise RuntimeError('this is the ruler of a commit')\n")
    found.add("benchmarks/attention.py", "raise RuntimeError('this is the suite of a commit')\n")
    found.add("impls/dense/sdpa.py", "raise RuntimeError('it is not finished')\n")
    found.add("impls/dense/chunked.py", WRONG)
    shas["larger"] = found.commit("more memory, a wrong variant, a broken one, and another ruler")
    shutil.rmtree(found.root / "impls")
    shas["bare"] = found.commit("nothing to measure")
    found.call("git", "checkout", "-q", shas["first"], "--", *FILES)
    found.add("attnbench/core/protocol.py", "\nPROTOCOL = 77\n")  # no commit has this ruler
    hashes = found.root.parent / "hashes"
    hashes.write_text("\n".join(shas[name] for name in ("bare", "first", "larger")))
    told = found.asv("run", f"HASHFILE:{hashes}", "--show-stderr", "--record-samples", status=2)
    return found, shas, told


def test_the_ruler_is_the_checkouts_and_what_is_measured_the_commits(history):
    found, shas, _ = history
    lines = [json.loads(line) for line in found.proof.read_text().splitlines()]
    words = {sha: {w for s, w, *_ in lines if s == sha} for sha in shas.values()}
    assert words[shas["first"]] == {"first"}
    assert words[shas["larger"]] == {"first", "larger"}
    for _, _, impls_file, ruler_file, protocol in lines:
        assert found.root not in Path(impls_file).parents
        assert Path(ruler_file) == found.root / "attnbench" / "__init__.py"
        assert protocol == 77


def test_the_figures_are_those_of_each_commit_and_what_fails_is_never_given_one(history):
    found, shas, told = history
    before, after = (found.figures(shas[name], "memory") for name in ("first", "larger"))
    assert after["matmul"][0] - before["matmul"][0] == pytest.approx(4 << 20, rel=0.01)
    assert after["einsum"] == before["einsum"]
    for name in ("sdpa", "chunked"):
        assert found.figures(shas["larger"])[name][0] is None
    assert "it is not finished" in told and "chunked at 16, forward, is wrong: " in told
    for value, samples in found.figures(shas["first"]).values():
        assert 0 < min(samples) <= value <= max(samples) < 1
        assert len(set(samples)) == 2  # of processes, which are never quite alike


def test_a_commit_that_can_not_be_measured_is_skipped_in_a_sentence(history):
    found, shas, told = history
    values = [value for value, _ in found.figures(shas["bare"]).values()]
    assert len(values) == 4
    assert all(x != x for x in values), "skipped, not failed: NaN and not None"
    assert f"commit {shas['bare'][:7]} has no folder impls" in told


def test_asv_says_what_moved_when_it_is_asked_as_history_asks_it(history, monkeypatch):
    found, shas, _ = history
    monkeypatch.setenv("HOME", str(found.root.parent))
    (machine,) = (x.name for x in (found.root / "results" / "asv").iterdir() if x.is_dir())
    asv = Asv.of(checkout.Repository(found.root))
    lines = asv.compare(shas["first"], shas["larger"], machine, 1.05)
    assert any("memory" in line and "matmul" in line for line in lines)
