"""The workflow for pull requests: its own script is run, with a stand-in for attnbench."""

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

import attnbench
from attnbench.command import arguments
from attnbench.features.commits.revisions import find_commit, refuse_dirty

ROOT = Path(attnbench.__file__).parents[1]
WORKFLOW = (ROOT / "docs" / "history.yml").read_text()


def step(name):
    """The script of a step of the workflow."""
    found = re.search(
        rf"- name: {name}\n(?:.*\n)*?        run: \|\n((?:          .*\n|\n)+)", WORKFLOW
    )
    return textwrap.dedent(found[1])


@pytest.mark.parametrize(
    ("status", "table", "rows"),
    [
        (0, "| a table |", ""),
        (1, "| a table |", "kernels/rows.py"),
        (2, "", ""),
    ],
)
def test_the_workflow_compares_with_where_the_branch_left_and_passes_the_status_on(
    pulls, clone, tmp_path, status, table, rows
):
    """Its own script, with a stand-in for attnbench; the base has gone on since."""
    pulls.git(clone, "checkout", "--quiet", "-b", "change", "HEAD~1")
    pulls.git(clone, "commit", "--quiet", "--allow-empty", "-m", "a change")
    left, asked = pulls.git(clone, "rev-parse", "HEAD~1"), tmp_path / "words"
    stand_in = tmp_path / "venv" / "bin" / "attnbench"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{asked}\nprintf "{table}"\nexit {status}\n'
    )
    stand_in.chmod(0o755)
    own = {
        "RUNNER_TEMP": str(tmp_path),
        "ROWS": rows,
        "BASE": "main",
        "HEAD": "change",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }
    done = subprocess.run(
        ["bash", "-e", "-c", step("compare")], cwd=clone, env={**os.environ, **own}
    )
    assert done.returncode == 0  # so that the comment is still written
    assert (tmp_path / "output").read_text() == f"status={status}\n"
    assert (tmp_path / "summary").read_text() == (clone / "table.md").read_text() != ""
    assert (table or "could not be compared") in (clone / "table.md").read_text()
    words = asked.read_text().split()
    given = arguments.parser().parse_args(words)
    assert (given.verb, given.form, given.a, given.b) == ("history", "compare", left, "change")
    assert (given.table, given.markdown) == ([rows] if rows else [], True)
    refuse_dirty([find_commit("change", clone)], clone, ".")  # what it wrote is no change


def test_the_workflow_fails_last_and_for_a_finding():
    order = [
        WORKFLOW.index(text)
        for text in ("- name: compare", "- name: comment", "- name: fail", "run: exit 1")
    ]
    assert order == sorted(order)
    assert "if: steps.compare.outputs.status != '0'" in WORKFLOW
