"""How tables fit: words wrap, numbers do not, and nothing is cut off."""

import io
import re
import sys

import pytest

from attnbench.report.tables import console, grid, put

NUMBERS = [f"{n}.25 ±2.0" for n in range(1, 9)]


def table(*rows, columns=("name", "worst error at all", "why")):
    made = grid(*columns, right=columns[1:2], words=["why"])
    for row in rows:
        made.add_row(*row)
    return made


def test_words_wrap_within_their_own_column(shown):
    why = " ".join(f"w{n}" for n in range(40))
    lines = shown(put, table(("a", "1.5", why), ("b", "2.5", "so")), width=60).splitlines()
    first, *more, last = lines[2:]
    assert first.split()[:2] == ["a", "1.5"] and last.split() == ["b", "2.5", "so"]
    start = first.index("w0")
    assert more and all(line[:start].strip() == "" and line[start] == "w" for line in more)
    assert " ".join(" ".join([first[start:], *more]).split()) == why


def test_headings_wrap_once_and_before_words_do(shown):
    why = " ".join("x" * 15)
    one_line = [["name", "worst", "error", "at", "all", "why"], ["a", "1.5", *why.split()]]
    two_lines = [["worst", "error"], ["name", "at", "all", "why"], ["a", "1.5", *why.split()]]
    for width, wanted in ((60, one_line), (49, two_lines)):
        lines = shown(put, table(("a", "1.5", why)), width=width).splitlines()
        assert [line.split() for line in lines] == wanted


def test_numbers_are_never_broken_however_many(shown):
    columns = ("name", *map(str, range(8)))
    made = grid(*columns, right=columns[1:])
    made.add_row("a", *NUMBERS)
    _, line = shown(put, made, width=40).splitlines()
    assert line.split("  ")[-1].endswith(NUMBERS[-1]) and all(n in line for n in NUMBERS)


def test_a_word_without_end_is_folded_and_not_cut(shown):
    word = "/path" * 60
    lines = shown(put, table(("a", "1", word)), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(line[line.rindex(" ") + 1 :] for line in lines[2:]) == word


def test_no_line_ends_in_blanks(shown):
    made = table(("a", "1", "words " * 40), ("b", "", ""))
    text = shown(put, made, width=60)
    text += shown(lambda: console().print("a few words " * 20, style="dim"), width=60)
    assert text.count("\n") > 10
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("columns", [50, 200])
def test_on_a_terminal_its_width_is_taken(monkeypatch, columns):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    for name, value in (("COLUMNS", str(columns)), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    put(table(("a", "1", " ".join(["why"] * 100))))
    lines = re.sub("\x1b.*?m", "", screen.getvalue()).splitlines()
    assert columns - 5 < max(len(x.rstrip()) for x in lines) <= columns
