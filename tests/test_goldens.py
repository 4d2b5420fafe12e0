"""What each verb prints and how it ends, held against reviewed copies in ``tests/goldens``.

Verbs that read are called on the committed runs, so their words and numbers must be equal. Verbs
that measure are called on one tiny problem, and only the names in their data are compared.
After a change that is meant, write the copies anew and read the difference before it is committed:
``GOLDENS=write python -m pytest tests/test_goldens.py -m 'slow or not slow'``.
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.calling import ROOT, attnbench_

GOLDENS = Path(__file__).with_name("goldens")
GRID, MASKS = "results/amd-epyc-2c/20261122-135617", "results/amd-epyc-2c/20261123-021508"
NEWEST = "results/amd-epyc-2c/20261128-073342"
EVIDENCE = "results/amd-epyc-2c/evidence"
TINY = (
    "--seq 32 --batch 1 --heads 2 --head-dim 16 --phase forward --dtype float32 --mask causal "
    "--threads 1 --device cpu"
)
LARGEST = 20_000
"""Characters of JSON that are kept as they are; of more, only names are kept."""

READS = {  # name: the words of the call; its output must be equal
    "no-verb": "",
    "version": "--version",
    "help": "--help",
    "show-layer": "show mha",
    "choose": f"choose --from {NEWEST} --seq 1024 --heads 4 --phase train",
    "choose-json": f"choose --from {NEWEST} --seq 1024 --heads 4 --phase train --json",
    "choose-for": f"choose --from {NEWEST} --seq 512 --heads 4 --phase forward --for sdpa_kernel",
    "choose-between": f"choose --from {NEWEST} --seq 1500 --heads 4 --phase forward",
    "choose-approximate": f"choose --from {NEWEST} --seq 1500 --heads 4 --phase forward "
    "--allow approximate,other --max-error 0.5",
    "choose-nothing-fits": f"choose --from {NEWEST} --seq 1024 --heads 4 --phase train "
    "--max-memory 1MiB",
    "choose-beyond": f"choose --from {NEWEST} --seq 1000000 --heads 4 --phase train",
    "compare-same-run": f"compare {GRID} {GRID}",
    "compare-same-run-json": f"compare {GRID} {GRID} --json",
    "compare-unlike-runs": f"compare {GRID} {MASKS}",
    "reproduce-list": "reproduce --list",
    "quality-model": f"quality model --from {EVIDENCE}/20261123-003700-model.json",
    "quality-model-json": f"quality model --from {EVIDENCE}/20261123-003700-model.json --json",
    "quality-real": f"quality real --from {EVIDENCE}/20261123-003053-real.json",
    "quality-recall": f"quality recall --from {EVIDENCE}/20261123-002918-recall.json",
}
MEASURES = {  # name: the words of a call that measures; names must be equal
    "list-json": "list --json",
    "show-json": "show sdpa.flash --json",
    "check-json": "check matmul --json --seq 16 --batch 1 --heads 2 --kv-heads 2 --head-dim 16",
    "run-json": f"run matmul einsum --json --no-report --budget 0.01 --out OUT {TINY}",
    "tune-json": f"tune chunked --json --margin 0.9 {TINY}",
    "compare-json": f"compare matmul einsum --json {TINY}",
    "profile-json": f"profile matmul --json --out OUT {TINY}",
    "crossover-json": "crossover matmul einsum --json --seq 32,64 --batch 1 --heads 2 "
    "--head-dim 16 --phase forward --mask causal --threads 1 --device cpu",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the committed runs: pictures are drawn beside the evidence that is read."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(ROOT / "results", folder / "results")
    return folder


@pytest.fixture
def call(place, monkeypatch):
    """The exit status, standard output and standard error of ``attnbench WORDS``."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "120")

    def of(words):
        done = attnbench_(*(str(place / "out") if x == "OUT" else x for x in words.split()))
        texts = (text.replace(str(place), "OUT") for text in (done.stdout, done.stderr))
        return done.returncode, *texts

    return of


def names(value, above=""):
    """Each name in plain values with the names above it; elements of a list share theirs."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield f"{above}.{name}".lstrip(".")
            yield from names(each, f"{above}.{name}".lstrip("."))
    if isinstance(value, list):
        for each in value:
            yield from names(each, above + "[]")


def rounded(value):
    """The same with six digits of each number, since libraries differ in the last ones."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def held(name, found):
    """Compare with the reviewed copy, or write it where that was asked for."""
    path = GOLDENS / f"{name}.txt"
    if os.environ.get("GOLDENS") == "write":
        path.write_text(found)
    assert path.read_text() == found, f"{path} is another; the top of this file says what to do"


def shown(words, status, out, err):
    """One text of all that a call gave."""
    if out.startswith(("{", "[")):
        values = json.loads(out)
        text = json.dumps(rounded(values), indent=1)
        out = text if len(text) < LARGEST else "\n".join(sorted(set(names(values))))
    parts = [f"$ attnbench {words}", f"exit status {status}", out.rstrip()]
    parts += ["--- standard error", err.rstrip()] if err.strip() else []
    return "\n".join(re.sub(r"[ \t]+$", "", part, flags=re.MULTILINE) for part in parts) + "\n"


@pytest.mark.parametrize("name", READS)
def test_output_is_the_reviewed_one(name, call):
    words = READS[name]
    held(name, shown(words, *call(words)))


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURES)
def test_names_are_the_reviewed_ones(name, call):
    words = MEASURES[name]
    status, out, _ = call(words)
    found = "\n".join(sorted(set(names(json.loads(out)))))
    held(name, f"$ attnbench {words}\nexit status {status}\n{found}\n")
