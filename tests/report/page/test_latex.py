"""The tables for a paper: what they say, and that a name can't be a command."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from attnbench.features.report.files import tables
from attnbench.report.scenes import gather, scenes
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))
timed, at = runs.timed, runs.at


@pytest.fixture
def made(tmp_path):
    return lambda records: tables(scenes(gather([runs.written(tmp_path / "run", records)])))


def row(text, name):
    (line,) = [line for line in text.splitlines() if f"& {name} &" in line]
    return [cell.strip(" \\") for cell in line.split(" & ")]


def test_the_fastest_exact_and_what_ties_with_it_are_bold(made):
    text = made(
        [
            timed("fast", 1e-3),
            timed("tied", 1.02e-3),
            timed("slow", 2e-3),
            timed("other", 1e-4, computes="its own operator"),
            timed("fast", 2e-3, at(128)),
            timed("slow", 1e-3, at(128)),
        ]
    )
    assert row(text, "fast")[-2:] == ["bfseries 1", "2"]
    assert row(text, "tied")[-2:] == ["bfseries 1.02", "--"]
    assert row(text, "slow")[-2:] == ["2", "bfseries 1"]
    assert row(text, "other")[-2:] == ["0.1", "--"]
    assert text.index("other") > text.index("slow")


def test_what_has_no_time_says_how_it_ended(made):
    text = made(
        [
            timed("a", 1e-3),
            timed("b", 1e-3),
            runs.untimed("a", "out_of_memory", problem=at(128)),
            runs.untimed("b", "timed_out", problem=at(128)),
            runs.untimed("never", "failed"),
        ]
    )
    assert row(text, "a")[-1] == "memory"
    assert row(text, "b")[-1] == "too slow"
    assert "never" not in text


def test_a_table_a_regime_and_none_where_nothing_was_timed(made):
    text = made(runs.small())
    assert text.count(r"\begin{tabular}") == 2
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 2
    assert "% Median" in text
    assert "tabular" not in tables([])


NASTY = "a_b&c%d#e$f{g}h~i^j\\input{/etc/passwd}"


def test_no_name_is_a_command(made):
    text = made([timed(NASTY, 1e-3), timed("b", 2e-3)])
    assert "\\input" not in text
    line = next(line for line in text.splitlines() if "passwd" in line)
    assert len(re.findall(r"(?<!\\)&", line)) == 2
    assert not re.search(r"(?<!\\)[%#$_](?!\w*textasci)", line.replace(r"\textasciicircum", ""))


def test_many_rows_may_break_over_pages(made):
    text = made([timed(f"v{n}", 1e-3 * (n + 1)) for n in range(80)])
    assert r"\begin{longtable}" in text
    assert "booktabs and longtable" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex here")
def test_latex_takes_it(made, tmp_path):
    body = made([*runs.small(), timed(NASTY, 1e-3)])
    (tmp_path / "t.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs,longtable}\\begin{document}\n"
        + body
        + "\\end{document}"
    )
    subprocess.run(
        ["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, capture_output=True
    )
