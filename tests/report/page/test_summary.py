"""The summary: winners, what is missing, and nobody's words as markup."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from attnbench.features.report import build
from attnbench.features.report.contents import Missing
from attnbench.features.report.files import LIMIT, summary
from attnbench.report.scenes import gather
from attnbench.report.tables import markdown_text
from impls.loading import load_file

runs = load_file(Path(__file__).with_name("runs.py"))


@pytest.fixture
def contents(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "draw_all", lambda *_: ([], {}))

    def made(*records):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        paths = [runs.written(folder / f"run{n}", some) for n, some in enumerate(records)]
        return build.contents_of(gather(paths), folder / "report")

    return made


def test_the_answer_comes_first(contents):
    lines = summary(contents(runs.small())).splitlines()
    assert lines[0] == "# Which attention to use on Slow Box, 2 cores, 25 GiB"
    assert lines[2].startswith("To train at 256 tokens, use sdpa: 12.0 ms")


def test_winners_are_a_table_with_ties_and_what_has_none(contents):
    records = [
        *(runs.timed("sdpa", 1e-3, runs.at(n)) for n in (64, 128, 256)),
        runs.timed("tied", 1e-3, runs.at(64)),
        runs.timed("behind", 2e-3, runs.at(128)),
        runs.timed("w", 1e-3, runs.at(512), computes="its own operator"),
        *(runs.timed("sdpa", 1e-3, runs.at(n, phase="train")) for n in (64, 128)),
    ]
    text = summary(contents(records))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == "| regime | 64 | 128 | 256 | 512 |"
    assert rows[2] == "| train | **sdpa** alone | **sdpa** alone | not asked | not asked |"
    assert rows[3] == (
        "| forward | tie of 2: sdpa, tied | **sdpa** 2.00× \\[1.92, 2.08\\] | "
        "**sdpa** alone | nothing exact has a time |"
    )


def test_doubts_are_said_in_the_table(contents):
    records = [runs.timed("sdpa", 1e-3, flags=["drifting"]), runs.timed("b", 2e-3)]
    assert re.search(r"\*\*sdpa\*\* 2\.00× \S+ \S+ \(in doubt\)", summary(contents(records)))


@pytest.mark.parametrize(
    "words",
    [
        runs.MARKUP,
        "a|b",
        "`code`",
        "**bold**",
        "[x](y.html)",
        "<script>",
        "@everyone",
        "~~gone~~",
        "a\nb\n# c",
        "back\\slash|",
        "![i](u)",
        "_x_",
        "a &amp; b",
        "<!-- x",
        "\n- item",
        "\n\n1. one",
    ],
)
def test_no_words_are_markup(contents, words):
    """They come out of a Markdown reader as they went in."""
    read = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render
    texts = [
        summary(
            contents(
                [
                    runs.timed(each, 1e-3),
                    runs.timed("b", 2e-3),
                    runs.untimed("c", "failed", each, remedy=each),
                ]
            )
        )
        for each in ("plain", words)
    ]
    assert "@" not in texts[1]  # nobody is called by it
    plain, marked = map(read, texts)
    tags = re.compile(r"<[^>]*>")
    assert tags.findall(marked) == tags.findall(plain)
    said = html.unescape(tags.sub("", marked)).replace("\N{REPLACEMENT CHARACTER}", " ")
    assert said.count(" ".join(words.split())) >= 4


def test_what_is_missing_is_listed_with_reason_and_remedy(contents):
    text = summary(contents(runs.small()))
    assert (
        "- unavailable: sdpa.efficient (6 cells): runs on cuda; this machine has cpu → "
        "run it on a machine with a GPU"
    ) in text
    assert "- out of memory: einsum (1 cell): " in text
    assert "- not run: einsum (2 cells): there is no record of it" in text
    assert "Every cell that was begun has a time." in summary(contents([runs.timed("a", 1e-3)]))


def test_runs_stand_side_by_side_and_are_compared(contents):
    text = summary(contents(runs.small(), runs.small()))
    assert text.index("## run0 on slow-box-2c") < text.index("## run1 on slow-box-2c")
    assert "**run1 on slow-box-2c** against run0 on slow-box-2c: " in text
    assert "- run0 on slow-box-2c: ruler self-check: 74/74" in text


def test_however_much_there_is_it_fits_a_comment(contents):
    made = contents(runs.small())
    many = [
        Missing("failed", f"reason {n} " + "x" * 5000, "y" * 5000, ["v" * 300] * 50, ["w"], 1)
        for n in range(500)
    ]
    text = summary(replace(made, missing=many, headlines=["h" * 5000] * 100))
    assert len(text) <= LIMIT
    assert text.rstrip().endswith("*")
    assert "cut here" in text


def test_an_ampersand_is_escaped_only_where_it_would_be_something_else():
    assert markdown_text("cd a && b & c &copy d") == "cd a && b & c &copy d"
    assert markdown_text("a &amp; b &#64; c") == "a &amp;amp; b &amp;\\#64; c"


def test_how_sure_and_which_alone_are_said_below_the_headlines(contents):
    lines = summary(contents(runs.small())).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("How sure: of 6 answers 6 are"))
    assert lines[at + 2].startswith("If you may choose only one: sdpa, within 1.25× of the best on")
    assert at < lines.index("## Winners")
    assert "If you may" not in summary(contents([runs.timed("a", 1e-3)]))
