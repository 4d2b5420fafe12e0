"""A table in each form, and how it fits a terminal: words wrap, numbers don't, nothing is cut."""

import csv
import io
import re

import pytest

from attnbench.report import tables
from attnbench.report.tables import BAD, BOLD, Column, Styled, Table, show
from attnbench.report.tidy import csv_of

NASTY = "<b>|`*_&{7}$%#~^\\x"
TIMES = Table(
    "times",
    [Column("variant"), Column("median, ms", "right")],
    [("a", Styled(1.2, BOLD, "of [1, 2]")), ("=1+1", None), (NASTY, Styled(12.0, BAD))],
)


def test_a_terminal_shows_title_values_and_notes_and_obeys_none_of_them(shown):
    text = shown(show, Table("[red]t\x1b[1m", TIMES.columns, TIMES.rows, ["[dim]note"], "and more"))
    title, head, *rows, note = text.strip().splitlines()
    assert title == "[red]t\N{REPLACEMENT CHARACTER}[1m  and more" and note == "[dim]note"
    assert head.split() == ["variant", "median,", "ms"]
    assert [" ".join(row.split()) for row in rows] == ["a 1.2 of [1, 2]", "=1+1 –", f"{NASTY} 12.0"]


def test_a_file_has_the_values_as_they_are_and_no_formula():
    own = [{"=x": "a", "y": 1.23456}, {"=x": "=1+1"}, {"=x": NASTY, "y": 12.0}]
    head, *rows = csv.reader(io.StringIO(csv_of(own)))
    assert head == ["'=x", "y"]
    assert rows == [["a", "1.23456"], ["'=1+1", ""], [NASTY, "12.0"]]


def test_html_has_headings_marks_numbers_and_escapes():
    text = tables.to_html(Table('a "t"', TIMES.columns, [*TIMES.rows, ("b\n<i>why", 1)]))
    assert 'aria-label="a &quot;t&quot;"' in text and "<b>" not in text and "<i>" not in text
    assert '<th scope="col" class="n">median, ms</th>' in text
    assert '<th scope="row">a</th><td class="n">1.2 of [1, 2]</td>' in text
    assert '<th scope="row">b<p class="remedy">&lt;i&gt;why</p></th>' in text


def test_markdown_marks_what_is_bold_and_holds_no_markup_of_others():
    head, rule, first, _, last = tables.to_markdown(TIMES).splitlines()
    assert (head, rule) == ("| variant | median, ms |", "| --- | ---: |")
    assert first == r"| a | **1.2** of \[1, 2\] |"
    assert len(re.findall(r"(?<!\\)\|", last)) == 3 and "<" not in last


@pytest.mark.parametrize("columns", ["40", "80", "200"])
@pytest.mark.parametrize("terminal", ["", "xterm", "dumb"])
def test_lines_are_as_wide_as_columns_says_but_no_word_and_no_number_is_cut(
    monkeypatch, columns, terminal
):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", terminal)
    out = io.StringIO()
    out.isatty = lambda: bool(terminal)
    monkeypatch.setattr("sys.stdout", out)
    words, path = ["word"] * 100, "/a/long/path" * 30
    tables.console().print(" ".join([*words, path, *words]))
    numbers = [f"{n}.25" for n in range(60)]
    show(Table("", [Column("of")] * len(numbers), [numbers]))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    (whole,) = (line for line in lines if path in line)
    (row,) = (line for line in lines if line.startswith("0.25"))
    assert whole == path and row.split() == numbers
    prose = [line for line in lines if set(line.split()) == {"word"}]
    assert " ".join(prose).split() == words * 2
    assert int(columns) - len(" word") < max(map(len, prose)) <= int(columns)
