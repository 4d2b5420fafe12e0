"""A report on disk: whole files, the same bytes for the same records, nothing of anybody else's."""

import html
import io
import os
import re
import shutil
import subprocess
import time
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from attnbench.core.disk import StoreError
from attnbench.features.report import build, files
from attnbench.features.report.files import LIMIT, summary, tables
from attnbench.report.figures.sheet import Drawn, sheet
from attnbench.report.sentences import Missing
from tests.report.page import runs
from tests.report.page.runs import OWN, at, timed, untimed

PLAIN_S = 0.15
"""What a plain figure takes of the processor where the limit is meant."""


def test_figures_of_before_go_and_what_is_not_ours_stays(filled, tmp_path):
    out, contents = tmp_path / "out", filled(runs.small())
    kept, gone = (Drawn("memory", name, "t", "d", "<svg/>", b"", "") for name in ("kept", "gone"))
    files.write(replace(contents, figures=[kept, gone]), out)
    (out / "figures" / "mine.svg").write_text("mine")
    (out / "notes.txt").write_text("mine")
    (out / "figures" / "gone.svg").unlink()
    (out / "figures" / "gone.svg").mkdir()  # a folder of that name is not ours
    files.write(replace(contents, figures=[kept]), out)
    left = {path.stem for path in (out / "figures").iterdir()}
    assert left == {"kept", "gone", "mine", "figures"}
    for listed in ('["../../notes.txt", 3, "/etc/passwd"]', "{", "3"):
        (out / "figures" / "figures.json").write_text(listed)
        files.write(contents, out)
        assert (out / "notes.txt").read_text() == "mine"


def test_where_nothing_can_be_written_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "draw_all", lambda *_: ([], {}))
    run = runs.written(tmp_path / "box" / "run", runs.small())
    (tmp_path / "file").write_text("")
    longest = os.pathconf(tmp_path, "PC_PATH_MAX") - len("/figures") - 3
    deep = tmp_path
    while (room := longest - len(str(deep))) > 1:
        deep /= "d" * min(200, room - 1)
    for out in (tmp_path / "file", tmp_path / "file" / "below", deep):
        with pytest.raises(StoreError, match=r"can't write the report to .*--out"):
            files.make([run], out)
    assert (deep / "figures").is_dir()  # there was room for the folder, and none for what is in it


def seconds(function):
    """What a call returns, and the processor's time for it."""
    start = time.process_time()
    made = function()
    return made, time.process_time() - start


def plain_figure():
    """What matplotlib itself takes for one, on this host."""
    with sheet(4.6, 3.4) as figure:
        axes = figure.add_axes((0.1, 0.1, 0.6, 0.8))
        for n in range(20):
            axes.plot(range(1, 9), [n + m for m in range(8)], marker="o")
            axes.text(8, n, f"variant {n}")
        for kind in ("svg", "png"):
            figure.savefig(io.BytesIO(), format=kind)


@pytest.mark.slow
def test_a_run_of_the_whole_table_has_a_small_page_in_ten_seconds(tmp_path):
    records = runs.many(45, [128 << n for n in range(8)], ["forward", "train"])
    folder = runs.written(tmp_path / "box" / "run", records)
    plain_figure()  # and what is imported for it
    slow = max(1.0, min(seconds(plain_figure)[1] for _ in range(3)) / PLAIN_S)
    made, spent = seconds(lambda: files.make([folder], tmp_path / "out"))
    assert spent <= 10 * slow
    assert made.index.stat().st_size <= 1_500_000
    assert (made.index.parent / "data.csv").read_text().count("\n") == len(records) + 1
    assert len((made.index.parent / "summary.md").read_text()) <= 60_000
    assert "could not be drawn" not in str(made.contents.absent)


def latex(*records):
    return tables(runs.staged(*records)[0])


def test_the_fastest_exact_and_what_ties_with_it_are_bold_and_the_rest_says_how_it_ended():
    measured = {
        "fast": {64: 1e-3, 128: 2e-3}, "tied": {64: 1.02e-3}, "slow": {64: 2e-3, 128: 1e-3},
    }  # fmt: skip
    ends = {"fast": "out_of_memory", "slow": "timed_out"}
    text = latex(
        *(timed(name, s, n) for name, times in measured.items() for n, s in times.items()),
        timed("other", 1e-4, computes=OWN),
        *(untimed(name, status, problem=256) for name, status in ends.items()),
        untimed("never", "failed"),
    )
    lines = [line.split(" & ") for line in text.splitlines()]
    row = {cells[1]: [c.strip(" \\") for c in cells[2:]] for cells in lines if len(cells) == 5}
    assert row["fast"] == ["bfseries 1.00", "2.00", "memory"]
    assert row["tied"] == ["bfseries 1.02", "--", "--"]
    assert row["slow"] == ["2.00", "bfseries 1.00", "too slow"]
    assert row["other"] == ["0.100", "--", "--"]
    assert text.index("other") > text.index("slow") and "never" not in text
    assert "tabular" not in tables([])
    long = latex(*(timed(f"v{n}", 1e-3 * (n + 1)) for n in range(80)))
    assert r"\begin{longtable}" in long


def test_no_name_is_a_command(tmp_path):
    nasty = "a_b&c%d#e$f{g}h~i^j\\input{/etc/passwd}"
    text = latex(timed(nasty), timed("b", 2e-3), *runs.small())
    line = next(line for line in text.splitlines() if "passwd" in line)
    assert "\\input" not in text and len(re.findall(r"(?<!\\)&", line)) == 2
    assert not re.search(r"(?<!\\)[%#$_](?!\w*textasci)", line.replace(r"\textasciicircum", ""))
    if shutil.which("pdflatex"):
        head = "\\documentclass{article}\\usepackage{booktabs,longtable}\\begin{document}\n"
        (tmp_path / "t.tex").write_text(head + text + "\\end{document}")
        command = ["pdflatex", "-halt-on-error", "t.tex"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


def test_winners_are_a_table_with_ties_and_doubts_and_what_has_none(filled):
    records = [
        *(timed("sdpa", 1e-3, n) for n in (64, 128, 256)),
        timed("tied", 1e-3, 64),
        timed("behind", 2e-3, 128, flags=["drifting"]),
        timed("w", 1e-3, 512, computes=OWN),
        *(timed("sdpa", 1e-3, at(n, phase="train")) for n in (64, 128)),
    ]
    rows = [line for line in summary(filled(records)).splitlines() if line.startswith("|")]
    assert rows[0] == "| regime | 64 | 128 | 256 | 512 |"
    assert rows[2] == "| train | **sdpa** alone | **sdpa** alone | not asked | not asked |"
    assert rows[3] == (
        "| forward | tie of 2: sdpa, tied | **sdpa** 2.00× \\[1.92, 2.08\\] (noisy) | "
        "**sdpa** alone | nothing exact has a time |"
    )


WORDS = (
    runs.MARKUP, "`code` **bold** _x_", "[x](y.html) ![i](u)", "<script>", "@everyone ~~gone~~",
    "a\nb\n# c", "back\\slash|", "a &amp; b", "<!-- x", "\n- item", "\n\n1. one",
)  # fmt: skip


def test_no_words_are_markup(filled, tmp_path):
    """They come out of a Markdown reader as they went in."""
    read = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render
    tags = re.compile(r"<[^>]*>")
    plain = None
    for name in ("plain", *WORDS):
        failed = untimed("c", "failed", name, remedy=name)
        said = summary(filled([timed("b", 2e-3), timed(name), failed]))
        shutil.rmtree(tmp_path / "m")
        marked = read(said)
        plain = plain or marked
        assert "@" not in said  # nobody is called by it
        assert tags.findall(marked) == tags.findall(plain), name
        heard = html.unescape(tags.sub("", marked)).replace("\N{REPLACEMENT CHARACTER}", " ")
        assert heard.count(" ".join(name.split())) >= 4


def test_runs_stand_side_by_side_and_are_compared(filled):
    other = [r.with_(note="x") for r in runs.small()]
    found = filled(runs.small(), other, [timed("nobody's")])
    assert found.to_run == {0: "..", 1: "../../run1", 2: "../../run2"}
    assert [scene.run.number for scene in found.scenes] == [0, 0, 1, 1, 2]
    text = summary(found)
    assert text.index("## run0 on slow-box-2c") < text.index("## run1 on slow-box-2c")
    verdicts = r"\*\*run1 on slow-box-2c\*\* against run0 on slow-box-2c: \d+ [\w ']+"
    assert re.search(verdicts + r".*\(unpaired, margin \d+\.\d%\)\.", text)
    apart = "run0 on slow-box-2c and run2 on slow-box-2c have no measurement in"
    assert f"Not compared: {apart}" in text
    assert "- run0 on slow-box-2c: ruler self-check: 74/74" in text
    assert text.count("    attnbench run --seq 64,128,256\n") == 1


def test_however_much_there_is_it_fits_a_comment(filled):
    reasons = [(f"reason {n} " + "x" * 5000, "y" * 5000) for n in range(500)]
    many = [Missing("failed", *both, ["v" * 300] * 50, ["w"], 1) for both in reasons]
    text = summary(replace(filled(runs.small()), missing=many, headlines=["h" * 5000] * 100))
    assert len(text) <= LIMIT and text.rstrip().endswith("*") and "cut here" in text
