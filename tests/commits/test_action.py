"""The composite action for GitHub, its script run by bash with a stand-in for attnbench."""

import os
import re
import shlex
import subprocess

import pytest

from tests.calling import ROOT
from tests.repositories import git

yaml = pytest.importorskip("yaml")  # comes with transformers


@pytest.mark.parametrize(
    ("rows", "prints", "status"),
    [("k/rows.py", "| worse |", 1), ("", "| unchanged |", 0), ("", "", 2)],
)
def test_the_summary_has_the_table_and_the_job_ends_as_it_says(tmp_path, rows, prints, status):
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (script,) = [step["run"] for step in action["runs"]["steps"] if step.get("id") == "compare"]
    repository, runner = tmp_path / "repository", tmp_path / "runner"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    for message in ("fork point", "later on main"):
        git(repository, "commit", "-q", "--allow-empty", "-m", message)
    base, fork = git(repository, "rev-parse", "main"), git(repository, "rev-parse", "main~1")
    git(repository, "checkout", "-q", "-b", "$(id)", fork)
    git(repository, "commit", "-q", "--allow-empty", "-m", "head")
    (runner / "attnbench" / "bin").mkdir(parents=True)
    stand_in = runner / "attnbench" / "bin" / "attnbench"
    called = shlex.quote(str(tmp_path / "called"))
    stand_in.write_text(f'#!/bin/sh\necho "$@" >{called}\nprintf "%s" "{prints}"\nexit {status}\n')
    stand_in.chmod(0o755)
    given = {"BASE": base, "HEAD": "$(id)", "ROWS": rows, "OPTIONS": "--seq 64"}
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=repository,
        env={**os.environ, "RUNNER_TEMP": str(runner), **given, **files},
    )
    assert done.returncode == status
    table = f"--table {rows} " if rows else ""
    called = (tmp_path / "called").read_text().strip()
    assert called == f"history compare {fork} $(id) {table}--seq 64 --markdown"
    summary = (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    failed = "The variants could not be compared; the log of this job says why."
    assert summary.strip() == (prints or failed)
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == f"table={runner}/attnbench.md\n"


def test_what_the_repository_needs_is_installed_beside_attnbench(tmp_path):
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    script = action["runs"]["steps"][0]["run"]
    called, pip = tmp_path / "called", tmp_path / "attnbench" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done >"{called}"\n')
    (python := tmp_path / "python").write_text("#!/bin/sh\n")
    for program in (pip, python):
        program.chmod(0o755)
    subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        check=True,
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(tmp_path),
            "ACTION": "/an action",
            "INSTALL": ". numba",
        },
    )
    assert called.read_text().splitlines()[-3:] == ["/an action", ".", "numba"]


@pytest.mark.parametrize("name", ["history.yml", "plugin.yml"])
def test_workflows_give_the_action_what_it_takes(name):
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    steps = yaml.safe_load((ROOT / "docs" / name).read_text())["jobs"]["compare"]["steps"]
    (uses,) = [step for step in steps if step.get("id") == "attnbench"]
    assert set(uses.get("with", {})) <= set(action["inputs"])
    outputs = {
        word for step in steps for word in re.findall(r"attnbench\.outputs\.(\w+)", str(step))
    }
    assert outputs and outputs <= set(action["outputs"])
