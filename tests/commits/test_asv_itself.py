"""asv itself over a small repository: whose ruler, whose impls, and what it makes of them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.features.commits import suite
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

    def results(self, sha):
        """What asv keeps of a commit, by benchmark."""
        (file,) = (self.root / "results" / "asv").glob(f"*/{sha[:8]}-shared-*.json")
        kept = json.loads(file.read_text())
        columns = kept["result_columns"]
        return {n: dict(zip(columns, row, strict=False)) for n, row in kept["results"].items()}

    def figure(self, sha, figure):
        """Values by variant."""
        row = self.results(sha)[f"attention.{figure}"]
        if row["result"] is None:
            return {}
        return {v.strip("'"): x for v, x in zip(row["params"][0], row["result"], strict=True)}


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
    (found.root / "impls" / "errors.py").unlink()
    shas["torn"] = found.commit("a table that can't be loaded")
    shutil.rmtree(found.root / "impls")
    shas["bare"] = found.commit("nothing to measure")
    found.call("git", "checkout", "-q", shas["first"], "--", *FILES)
    found.add("attnbench/core/protocol.py", "\nPROTOCOL = 77\n")  # no commit has this ruler
    hashes = found.root.parent / "hashes"
    hashes.write_text("\n".join(shas[name] for name in ("bare", "torn", "first", "larger")))
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
    versions = {row["version"] for row in found.results(shas["larger"]).values()}
    assert versions == {"protocol 77", "protocol 77, a value a process"}


def test_the_figures_are_those_of_each_commit_and_what_fails_is_never_given_one(history):
    found, shas, told = history
    before, after = (found.figure(shas[name], "memory") for name in ("first", "larger"))
    assert after["matmul"] - before["matmul"] == pytest.approx(4 << 20, rel=0.01)
    assert after["einsum"] == before["einsum"]
    for figure in ("time", "memory", "error"):
        values = found.figure(shas["larger"], figure)
        assert values["sdpa"] is values["chunked"] is None
    assert "it is not finished" in told
    assert "chunked at 16, forward, is wrong: " in told
    for figure in ("time", "error"):
        assert all(0 < x < 1 for x in found.figure(shas["first"], figure).values())
    row = found.results(shas["first"])["attention.time"]
    for index, samples in enumerate(row["samples"]):
        assert len(samples) == row["stats_repeat"][index] == 2
        assert len(set(samples)) > 1  # of processes, which are never quite alike
        assert min(samples) <= row["result"][index] <= max(samples)


def test_a_commit_that_can_not_be_measured_is_skipped_in_a_sentence_and_a_broken_one_fails(history):
    found, shas, told = history
    values = found.results(shas["bare"])["attention.time"]["result"]
    assert len(values) == 4
    assert all(x != x for x in values), "skipped, not failed: NaN and not None"
    assert f"commit {shas['bare'][:7]} has no folder impls" in told
    assert found.results(shas["torn"])["attention.time"]["result"] is None
    assert "No module named 'impls.errors'" in told
