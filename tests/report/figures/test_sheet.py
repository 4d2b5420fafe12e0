"""Sheets: the same bytes each time, colours by name, nothing of one in another; words that fit."""

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.patches import Rectangle

import attnbench
from attnbench.report.figures import sheet as sheets
from attnbench.report.figures.sheet import HUES, finish, sheet, shorten, width
from attnbench.report.figures.style import FIRST, looks
from impls import own_rows
from tests.report.page.runs import timed

NASTY = "</text><script>alert(1)</script> & #ffffff \x00\x1b 漢字 $x^2$ {a} 0.6571 \n\"'"
BY_HAND = re.compile(r"\b(pyplot|rcParams|rc_context|Figure\(|mpl\.use)")


def figure(name="f", words="plain", title="t"):
    with sheet(4, 3) as fig:
        axes = fig.add_axes((0.1, 0.1, 0.8, 0.8))
        axes.plot([1, 2, 3], [1, 2, 3], marker="o", color=HUES["blue"])
        axes.plot([1], [2], marker="s", color=HUES["red"])
        edge = {"hatch": "////", "edgecolor": HUES["orange"], "alpha": 0.3}
        fig.add_artist(Rectangle((0.2, 0.2), 0.3, 0.3, facecolor="none", **edge))
        for colour in sheets.VARIABLES:
            fig.add_artist(Rectangle((0, 0), 0.1, 0.1, facecolor=colour))
        fig.text(0.5, 0.5, words)
        return finish(fig, name, title, "2.485e-7")


def test_the_same_drawing_gives_the_same_bytes_whatever_a_readers_own_settings():
    before = figure()
    with mpl.rc_context({"lines.linewidth": 9, "axes.facecolor": "black"}):
        assert figure() == before
    assert before.png.startswith(b"\x89PNG")


def test_every_picture_is_on_a_sheet():
    root = Path(attnbench.__file__).parent
    by_hand = {p.name for p in root.rglob("*.py") if BY_HAND.search(p.read_text())}
    assert by_hand == {"sheet.py"}


def test_every_reference_is_to_something_of_the_same_figure_and_no_style_is_for_the_page():
    ids = []
    for drawn in (figure("one"), figure("two")):
        for text in (drawn.svg, drawn.inline):
            wanted = set(re.findall(r'(?:url\(|href=")#([\w-]+)', text))
            assert wanted and wanted == set(re.findall(r'\bid="([^"]+)"', text))
            assert "<style" not in text
        ids.append(wanted)
    assert not ids[0] & ids[1]


def test_markup_in_a_name_stays_text_and_keeps_its_digits():
    drawn = figure(words=NASTY, title=NASTY)
    for text in (drawn.svg, drawn.inline):
        root = ElementTree.fromstring(text)
        assert not [e for e in root.iter() if e.tag.endswith("script")]
        assert "#ffffff \ufffd\ufffd" in "".join(root.itertext())  # and is no colour
        assert "0.6571" in root.get("aria-label") and root.get("aria-label").endswith("2.485e-7")
        assert all(re.search(r"\.\d\d", e.get("d", "")) is None for e in root.iter())


def test_what_fits_is_as_it_was_and_the_rest_ends_in_an_ellipsis():
    assert shorten("sdpa", 100, 8) == "sdpa"
    for name in ("a very long name " * 3, "x" * 5000, "漢字" * 50, "a\x00\nb" * 40, "", "…"):
        short = shorten(name, 50, 8)
        assert width(short, 8) <= 50 and "\n" not in short and "\x00" not in short


def test_a_name_alone_says_how_a_variant_looks_and_no_two_built_in_are_alike():
    found = looks(map(timed, own_rows()))
    assert len({(look.hue, look.marker) for look in found.values()}) == len(own_rows())
    assert {found[name].hue for name in FIRST} == HUES.keys()
    theirs = looks(map(timed, ("theirs", "sdpa", "mine?block=3")))
    assert theirs["sdpa"].place == found["sdpa"].place
    assert (theirs["theirs"].hue, theirs["theirs"].marker) == ("blue", "v")
    assert looks([timed("mine?block=3")])["mine?block=3"].marker == theirs["mine?block=3"].marker
