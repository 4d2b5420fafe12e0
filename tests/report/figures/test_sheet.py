"""Sheets: the same bytes each time, markup stays text, words that fit; a look by its name."""

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

import attnbench
from attnbench.core.record import Record, Status
from attnbench.report.figures import sheet as sheets
from attnbench.report.figures.sheet import HUES, finish, sheet, shorten
from attnbench.report.figures.style import FIRST, looks
from impls import own_rows
from impls.problem import Problem
from tests.report.page.runs import timed

NASTY = "</text><script>alert(1)</script> & #ffffff \x00\x1b 漢字 $x^2$ {a} 0.6571 \n\"'"


def figure(words="plain", title="t"):
    with sheet(4, 3) as fig:
        axes = fig.add_axes((0.1, 0.1, 0.8, 0.8))
        axes.plot([1, 2, 3], [1, 2, 3], marker="o", color=HUES["blue"])
        fig.text(0.5, 0.5, words)
        return finish(fig, title, "2.485e-7")


def test_the_same_drawing_gives_the_same_bytes_whatever_a_readers_own_settings():
    before = figure()
    with mpl.rc_context({"lines.linewidth": 9, "axes.facecolor": "black"}):
        assert figure() == before
    assert before.png.startswith(b"\x89PNG")


def test_markup_in_a_name_stays_text():
    drawn = figure(words=NASTY, title=NASTY)
    root = ElementTree.fromstring(drawn.svg)
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert "#ffffff \ufffd\ufffd" in "".join(root.itertext())
    assert drawn.__html__().count("<") == 1 and "&lt;script&gt;" in drawn.__html__()


@pytest.mark.parametrize("name", ["sdpa", "a very long name " * 3, "x" * 5000, "a\x00\nb" * 40, ""])
def test_what_fits_is_as_it_was_and_the_rest_has_an_ellipsis(name):
    short = shorten(name, 50, 8)
    assert short == name if len(name) < 9 else len(short) == 11 and "…" in short
    assert "\n" not in short and "\x00" not in short


def test_the_page_has_the_colours_of_the_pictures_on_light_paper():
    css = (Path(attnbench.__file__).parent / "features/report/page.css").read_text()
    own = {"ink": sheets.INK, "faint": sheets.FAINT, "grid": sheets.GRID, "paper": sheets.PAPER}
    colours = dict(re.findall(r"--(\w+): light-dark\((#\w{6}), #\w{6}\)", css))
    assert colours == own | HUES
    assert set(re.findall(r"^\.h-(\w+) ", css, re.MULTILINE)) == HUES.keys()


def test_a_name_alone_says_how_a_variant_looks_and_no_two_built_in_are_alike():
    rows = own_rows().values()
    found = looks(Record.of(row, Problem(), Status.UNSUPPORTED, "why") for row in rows)
    drawn = {look.marking for look in found.values()}
    assert len(drawn) == len(own_rows())
    assert {found[name].hue for name in FIRST} == HUES.keys()
    theirs = looks(map(timed, ("theirs", "sdpa", "mine?block=3")))
    assert theirs["sdpa"].place == found["sdpa"].place
    assert (theirs["theirs"].hue, theirs["theirs"].marker) == ("blue", "v")
    assert looks([timed("mine?block=3")])["mine?block=3"].marker == theirs["mine?block=3"].marker
