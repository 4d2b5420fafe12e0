"""The summary: winners, what is missing, and nobody's words as markup."""

import html
import re
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from attnbench.features.report.contents import Missing
from attnbench.features.report.files import LIMIT, summary
from tests.report.page import runs
from tests.report.page.runs import at, timed, untimed


def test_winners_are_a_table_with_ties_and_doubts_and_what_has_none(filled):
    records = [
        *(timed("sdpa", 1e-3, n) for n in (64, 128, 256)),
        timed("tied", 1e-3, 64),
        timed("behind", 2e-3, 128, flags=["drifting"]),
        timed("w", 1e-3, 512, computes=runs.OWN),
        *(timed("sdpa", 1e-3, at(n, phase="train")) for n in (64, 128)),
    ]
    text = summary(filled(records))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == "| regime | 64 | 128 | 256 | 512 |"
    assert rows[2] == "| train | **sdpa** alone | **sdpa** alone | not asked | not asked |"
    assert rows[3] == (
        "| forward | tie of 2: sdpa, tied | **sdpa** 2.00× \\[1.92, 2.08\\] (in doubt) | "
        "**sdpa** alone | nothing exact has a time |"
    )


@pytest.mark.parametrize(
    "words",
    [runs.MARKUP, "`code` **bold** _x_", "[x](y.html) ![i](u)", "<script>", "@everyone ~~gone~~",
     "a\nb\n# c", "back\\slash|", "a &amp; b", "<!-- x", "\n- item", "\n\n1. one"],
)  # fmt: skip
def test_no_words_are_markup(filled, words, tmp_path):
    """They come out of a Markdown reader as they went in."""
    read = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render

    def told(name):
        failed = untimed("c", "failed", name, remedy=name)
        return summary(filled([timed("b", 2e-3), timed(name), failed]))

    text = told("plain")
    (tmp_path / "m").rename(tmp_path / "before")
    said = told(words)
    assert "@" not in said  # nobody is called by it
    plain, marked = read(text), read(said)
    tags = re.compile(r"<[^>]*>")
    assert tags.findall(marked) == tags.findall(plain)
    heard = html.unescape(tags.sub("", marked)).replace("\N{REPLACEMENT CHARACTER}", " ")
    assert heard.count(" ".join(words.split())) >= 4


def test_runs_stand_side_by_side_and_are_compared(filled):
    other = [r.with_(note="x") for r in runs.small()]
    found = filled(runs.small(), other, [timed("nobody's")])
    assert found.to_run == {0: "..", 1: "../../run1", 2: "../../run2"}
    assert [scene.run.number for scene in found.scenes] == [0, 0, 1, 1, 2]
    text = summary(found)
    assert text.index("## run0 on slow-box-2c") < text.index("## run1 on slow-box-2c")
    verdicts = r"\*\*run1 on slow-box-2c\*\* against run0 on slow-box-2c: \d+ [\w ']+"
    assert re.search(verdicts + r".*\(unpaired, margin \d+\.\d%\)\.", text)
    assert "Not compared: run0 on slow-box-2c and run2 on slow-box-2c have no cell in" in text
    assert "- run0 on slow-box-2c: ruler self-check: 74/74" in text
    assert text.count("    attnbench run --seq 64,128,256\n") == 1


def test_however_much_there_is_it_fits_a_comment(filled):
    reasons = [(f"reason {n} " + "x" * 5000, "y" * 5000) for n in range(500)]
    many = [Missing("failed", *both, ["v" * 300] * 50, ["w"], 1) for both in reasons]
    text = summary(replace(filled(runs.small()), missing=many, headlines=["h" * 5000] * 100))
    assert len(text) <= LIMIT and text.rstrip().endswith("*") and "cut here" in text
