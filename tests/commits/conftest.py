"""What the tests of history share: a repository of planted commits, and a clone with a stand-in."""

import json
import shutil
from pathlib import Path

import pytest

from attnbench import cli
from impls.loading import load_file

made = load_file(Path(__file__).with_name("pull_requests.py"))
CONFIGURATION = """{
    // as asv takes it
    "version": 1, "project": "p", "repo": ".", "results_dir": "results/asv",
    "html_dir": "reports/asv"
}"""
STAND_IN = """
import json, os, sys
from pathlib import Path
asked = Path(os.environ["ASKED"])
lines = asked.read_text() if asked.exists() else ""
given = sys.stdin.read()
asked.write_text(lines + json.dumps([sys.argv[1:], given, os.getcwd()]) + "\\n")
print("asv at work on", sys.argv[1], flush=True)
print(os.environ.get("LAST", ""), file=sys.stderr)
sys.exit(int(os.environ.get("STATUS_" + sys.argv[1].upper(), "0")))
"""


@pytest.fixture
def place(tmp_path):
    """A repository of two commits, whose runs are exported."""
    return load_file(Path(__file__).with_name("runs.py")).Place(tmp_path)


@pytest.fixture(scope="session")
def pulls():
    """How commits are made and compared here."""
    return made


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """Branches that change one thing each."""
    return made.make(tmp_path_factory.mktemp("made") / "repository")


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A repository of four commits where we stand; asv is a stand-in, and home is empty."""
    root = tmp_path / "clone"
    (root / "impls").mkdir(parents=True)
    shutil.copy(made.ROOT / "impls" / "spec.py", root / "impls")
    (root / "asv.conf.json").write_text(CONFIGURATION)
    made.git(root, "init", "--quiet", "--initial-branch", "main")
    for number in range(4):
        (root / "impls" / "speed").write_text(str(number))
        made.git(root, "add", "--all")
        made.git(root, "commit", "--quiet", "-m", f"commit {number}")
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

    def lines():
        return [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]

    return lines


@pytest.fixture
def refused(capsys):
    """The sentence that a form of the verb was refused with."""

    def sentence(*words):
        assert cli.main(["history", *words]) == 2
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert said.out == ""
        return said.err

    return sentence
