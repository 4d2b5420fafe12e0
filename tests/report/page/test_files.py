"""A report on disk: whole files, the same bytes for the same records, nothing of anybody else's."""

import html
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from attnbench.core.disk import StoreError
from attnbench.features.report import page
from attnbench.features.report.page import LIMIT, summary
from attnbench.report.sentences import Missing
from tests.report.page import runs
from tests.report.page.runs import timed, untimed

GOLDEN = Path(__file__).with_name("golden")


def test_a_report_is_its_page_and_its_texts_and_says_no_path_of_this_machine(report):
    """With GOLDENS=write it writes the texts anew: look at what has changed before it stays."""
    out = report.index.parent
    written = {path.name: path.read_bytes() for path in out.iterdir()}
    assert {path.name for path in report.files} == written.keys()
    assert written.keys() == {"index.html", "summary.md", "data.csv"}
    assert not any(str(out.parents[2]).encode() in content for content in written.values())
    for name in ("summary.md", "data.csv"):
        if os.environ.get("GOLDENS") == "write":
            (GOLDEN / name).write_bytes(written[name])
        assert written[name] == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_where_nothing_can_be_written_is_a_sentence(tmp_path, out):
    run = runs.written(tmp_path / "box" / "run", runs.small())
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"can't write the report to .*--out"):
        page.make([run], tmp_path / out)


@pytest.mark.slow
def test_a_run_of_the_whole_table_has_a_small_page(tmp_path):
    records = runs.many(45, [128 << n for n in range(8)], ["forward", "train"])
    folder = runs.written(tmp_path / "box" / "run", records)
    out = page.make([folder], tmp_path / "out").index.parent
    assert (out / "index.html").stat().st_size <= 1_500_000
    assert (out / "data.csv").read_text().count("\n") == len(records) + 1
    assert len((out / "summary.md").read_text()) <= 60_000


WORDS = (
    f"{runs.MARKUP} `code` **bold** _x_ [x](y.html) ![i](u) back\\slash|",
    "<script> @everyone ~~gone~~ a &amp; b <!-- x",
    "a\nb\n# c\n- item\n1. one",
)


def read_summary(folder, name):
    """The summary of a run of which this is a variant, a reason and a remedy; and as it is read."""
    failed = untimed("c", "failed", name, remedy=name)
    text = summary(runs.filled(folder, [timed("b", 2e-3), timed(name), failed]))
    read = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render
    return text, read(text)


@pytest.mark.parametrize("name", WORDS)
def test_no_words_are_markup(tmp_path, name):
    """They come out of a Markdown reader as they went in."""
    tags = re.compile(r"<[^>]*>")
    _, plain = read_summary(tmp_path / "plain", "plain")
    text, marked = read_summary(tmp_path / "other", name)
    assert "@" not in text  # nobody is called by it
    assert tags.findall(marked) == tags.findall(plain)
    heard = html.unescape(tags.sub("", marked)).replace("\N{REPLACEMENT CHARACTER}", " ")
    assert heard.count(" ".join(name.split())) >= 4


def test_however_much_there_is_it_fits_a_comment(filled):
    reasons = [(f"reason {n} " + "x" * 5000, "y" * 5000) for n in range(500)]
    many = [Missing("failed", *both, ["v" * 300] * 50, ["w"], 1) for both in reasons]
    text = summary(replace(filled(runs.small()), missing=many, headlines=["h" * 5000] * 100))
    assert len(text) <= LIMIT and text.rstrip().endswith("*") and "cut here" in text
