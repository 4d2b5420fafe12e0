"""What the tests of history share: a repository of planted commits, and a clone with a stand-in."""

import json
import shutil

import pytest

from attnbench.features.commits import rows
from tests.commits import plants
from tests.repositories import git

CONFIGURATION = """{
    // as asv takes it
    "version": 1, "project": "p", "repo": ".", "results_dir": "results/asv",
    "html_dir": "reports/asv"
}"""
STAND_IN = """
import json, os, sys, time
from pathlib import Path
print("asv at work on", sys.argv[1], flush=True)
asked = Path(os.environ["ASKED"])
lines = asked.read_text() if asked.exists() else ""
given = sys.stdin.read()
asked.write_text(lines + json.dumps([sys.argv[1:], given, os.getcwd()]) + "\\n")
time.sleep(float(os.environ.get("TAKES_S", "0")))
print(os.environ.get("LAST", ""), file=sys.stderr)
sys.exit(int(os.environ.get("STATUS_" + sys.argv[1].upper(), "0")))
"""


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """Branches that change one thing each, of which every table is read once."""
    read, known = rows.rows_of, {}

    def rows_of(commit, where):
        if where.whole:
            return read(commit, where)
        key = git(where.root, "rev-parse", f"{commit.sha}:impls/dense")
        if key not in known:
            known[key] = read(commit, where)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "rows_of", rows_of)
        yield plants.make(tmp_path_factory.mktemp("made") / "repository")


@pytest.fixture(scope="session")
def four_commits(tmp_path_factory):
    """A repository, of which each test has a copy."""
    root = tmp_path_factory.mktemp("made") / "clone"
    (root / "impls").mkdir(parents=True)
    shutil.copyfile(plants.ROOT / "impls" / "spec.py", root / "impls" / "spec.py")
    (root / "asv.conf.json").write_text(CONFIGURATION)
    git(root, "init", "--quiet", "--initial-branch", "main")
    for number in range(4):
        (root / "impls" / "speed").write_text(str(number))
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "-m", f"commit {number}")
    return root


@pytest.fixture
def clone(tmp_path, four_commits, monkeypatch):
    """A repository of four commits where we stand; asv is a stand-in, and home is empty."""
    root = shutil.copytree(four_commits, tmp_path / "clone")
    (tmp_path / "stand-in" / "asv").mkdir(parents=True)
    (tmp_path / "stand-in" / "asv" / "__init__.py").touch()
    (tmp_path / "stand-in" / "asv" / "__main__.py").write_text(STAND_IN)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stand-in"))
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def asked(clone, tmp_path):
    """What asv was asked, call by call."""
    return lambda: [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]
