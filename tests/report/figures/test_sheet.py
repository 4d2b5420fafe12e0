"""Sheets: the same bytes each time, markup stays text, words that fit; a look by its name."""

import re
from pathlib import Path
from xml.etree import ElementTree

import attnbench
from attnbench.report.figures import sheet as sheets
from attnbench.report.figures.sheet import HUES, finish, sheet

NASTY = "</text><script>alert(1)</script> & #ffffff \x00\x1b 漢字 $x^2$ {a} 0.6571 \n\"'"


def figure(words="plain", title="t"):
    with sheet(4, 3) as fig:
        axes = fig.add_axes((0.1, 0.1, 0.8, 0.8))
        axes.plot([1, 2, 3], [1, 2, 3], marker="o", color=HUES["blue"])
        fig.text(0.5, 0.5, words)
        return finish(fig, title, "2.485e-7")


def test_markup_in_a_name_stays_text():
    drawn = figure(words=NASTY, title=NASTY)
    root = ElementTree.fromstring(drawn.svg)
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert "#ffffff \ufffd\ufffd" in "".join(root.itertext())
    assert drawn.__html__().count("<") == 1 and "&lt;script&gt;" in drawn.__html__()


def test_the_page_has_the_colours_of_the_pictures_on_light_paper():
    css = (Path(attnbench.__file__).parent / "features/report/page.css").read_text()
    own = {"ink": sheets.INK, "faint": sheets.FAINT, "grid": sheets.GRID, "paper": sheets.PAPER}
    colours = dict(re.findall(r"--(\w+): light-dark\((#\w{6}), #\w{6}\)", css))
    assert colours == own | HUES
    assert set(re.findall(r"^\.h-(\w+) ", css, re.MULTILINE)) == HUES.keys()
