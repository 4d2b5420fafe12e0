"""What the README shows is what works."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

import impls
from attnbench.command import arguments
from attnbench.core.checkout import Repository, find_commit
from attnbench.features.commits.rows import rows_of
from attnbench.features.run.view import show_answer
from attnbench.report.scenes import gather
from proofs import gallery
from tests.calling import ROOT, measured_here, well
from tests.repositories import git

README = (ROOT / "README.md").read_text()
PAGES = README + "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
LINES = [
    line.split(" #")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", PAGES, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("attnbench ")
]


def test_each_line_of_the_command_line_is_understood():
    parser = arguments.parser()
    verbs = {parser.parse_args(shlex.split(line)[1:]).verb for line in LINES}
    assert len(LINES) > 40 and verbs <= {v for group in arguments.GROUPS.values() for v in group}


def test_every_verb_has_its_words_and_the_rows_are_counted():
    verbs = {verb for group in arguments.GROUPS.values() for verb in group}
    table = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    assert verbs <= {words.split()[0] for cell in table for words in re.findall(r"`(.+?)`", cell)}
    assert f"\n{len(impls.table().rows)} rows, " in README


def test_the_screen_that_is_shown_is_what_the_committed_run_answers(monkeypatch, capsys):
    (shown,) = re.findall(r"<!-- output: run -->\n```text\n(.*?)\n```", README, re.DOTALL)
    command, first, *rest = shown.splitlines()
    assert command.startswith("$ attnbench run --")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    (run,) = gather([Path(gallery.REPORTS["reports/cpu"])])
    show_answer(run, first.split(" · ")[1], Path("reports/cpu/index.html"))
    assert [first, *rest] == capsys.readouterr().out.splitlines()


def test_what_is_linked_is_there_and_no_placeholder_is_left():
    for link in re.findall(r"\]\(((?!http)[^)#]+)", README):
        assert (ROOT / link).exists(), link
    assert not re.search(r"@[A-Z]+@", README + (ROOT / "DESIGN.md").read_text())


def test_the_test_files_that_the_checks_name_are_there():
    texts = [(ROOT / ".ci" / "run").read_text(), *(p.read_text() for p in ROOT.glob("proofs/*.py"))]
    named = {name for text in texts for name in re.findall(r"tests/[\w/]+\.py", text)}
    assert len(named) > 8 and not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.slow
def test_the_variant_that_is_shown_passes_the_check_as_it_stands(tmp_path, monkeypatch):
    (code,) = re.findall(r"<!-- example: mine.py -->\n```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    (line,) = [x for x in LINES if x.startswith("attnbench check mine")]
    with measured_here():
        assert re.search(r"mine\s+27 of 27", well(*shlex.split(line)[1:]).stdout)


@pytest.mark.slow
def test_the_plugin_that_is_shown_is_one(tmp_path, monkeypatch):
    """A commit of its files has the rows, which pass the check, and the edit that is shown fits."""
    page = (ROOT / "docs" / "plugin.md").read_text()
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "-m", "as it is shown")
    assert rows_of(find_commit("HEAD", tmp_path), Repository(tmp_path)).own == ["my.attention"]
    (change,) = re.findall(r"^sed .*$", page, re.MULTILINE)
    subprocess.run(shlex.split(change), cwd=tmp_path, check=True)
    assert git(tmp_path, "diff", "--numstat").startswith("1\t1\tsrc/my_attention/core.py")
    monkeypatch.syspath_prepend(tmp_path / "src")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "src"))
    rows = tmp_path / "src" / "my_attention" / "rows.py"
    with measured_here():
        said = well("check", "my.attention", "--table", rows, "--seq", "255").stdout
        assert re.search(r"my\.attention\s+(\d+) of \1\b", said)
